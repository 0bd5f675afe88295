"""What `reshard publish` says and finds out before it sends anything, and what it refuses to send or to touch."""

import json
import shutil
import subprocess

import safetensors_io
from checkpoints import EXPERT_0, packed_tiny, raw, write_small
from common import flip_bit, free_port, main
from publishing import COMPLETE, REPO, TOKEN, PublishCase


class Refuse(PublishCase):
    def packed(self):
        folder = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), folder))
        return folder

    def test_folders_that_are_not_what_was_sealed(self):
        folder, hub = self.packed(), self.new_hub()
        flip_bit(folder / EXPERT_0, -1)
        self.assert_refused_unchanged(hub, self.publish(hub, folder), EXPERT_0 + " differs from its digest", "Nothing")
        flip_bit(folder / EXPERT_0, -1)
        with open(folder / "config.json", "ab") as file:
            file.write(b" ")
        self.assert_refused_unchanged(hub, self.publish(hub, folder), "config.json has")
        (folder / "config.json").unlink()
        self.assert_refused_unchanged(hub, self.publish(hub, folder), "config.json is missing")
        (folder / "model" / "more.safetensors").write_bytes(b"x")
        self.assert_refused_unchanged(hub, self.publish(hub, folder), "config.json is missing", "more.safetensors",
                                      "not sealed")
        flip_bit(folder / "manifest.json", 100)
        self.assert_refused_unchanged(hub, self.publish(hub, folder), "manifest.json")
        self.assert_refused_unchanged(hub, self.publish(hub, self.data()), "not a packed repository")
        self.assert_refused_unchanged(hub, self.publish(hub, self.scratch / "nowhere"), "nowhere", "manifest.json")

    def test_an_unfinished_folder(self):
        hub, out = self.new_hub(), self.scratch / "unfinished"
        source = self.serve(write_small(self.scratch / "source"))
        source.add_fault("model-00002*", "404", min_bytes=4096)
        self.repack(source.url, out)
        self.assert_refused_unchanged(hub, self.publish(hub, out), "unfinished")

    def test_tokens(self):
        hub = self.new_hub()
        hub.add_token("hf_reader_of_the_test", "me", read_only=True)
        hub.add_token("hf_stranger_of_the_test", "stranger")
        hub.add("me/there")
        self.assert_refused_unchanged(hub, self.publish(hub, token=""), "token", "HF_TOKEN")
        self.assertEqual(hub.requests(), [])
        for token, needles in (("hf_wrong", ("401", "does not accept the token")),
                               ("hf_reader_of_the_test", ("403", "write access to", "write token")),
                               ("hf_stranger_of_the_test", ("403", "write access to"))):
            for repo in (REPO, "me/there"):
                with self.subTest(token=token, repo=repo):
                    result = self.publish(hub, token=token, repo=repo)
                    self.assertEqual(result.code, 1, str(result))
                    for needle in (repo.partition("/")[0], *needles):
                        self.assertIn(needle, result.stderr)
                    self.assertNotIn(token, result.stdout + result.stderr)
        self.assertFalse(hub.exists(REPO))
        self.assertEqual(set(hub.files("me/there")), {".gitattributes"})

    def test_a_full_account_is_no_fault_of_the_token(self):
        for method, path, words in (("POST", "*/objects/batch", "Private repository storage limit reached, please upgrade"),
                                    ("POST", "api/models/*/preupload/*", "Your storage patterns tripped our internal systems!"),
                                    ("POST", "api/models/*/commit/*", "You have exceeded your quota")):
            hub = self.new_hub()
            hub.add_fault(method, path, "403", headers={"X-Error-Message": words})
            result = self.publish(hub)
            self.assertEqual(result.code, 1, str(result))
            line = result.stderr.rstrip("\n").split("\n")[-1]
            self.assertIn("me has no room left on the Hub", line)
            self.assertIn(words, line)
            self.assertNotIn("token", line.replace("the token's", ""))

    def test_a_reader_may_open_a_pull_request(self):
        hub = self.new_hub()
        hub.add(REPO, self.folder)
        hub.add_token("hf_stranger_of_the_test", "stranger")
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(hub, layered, "--create-pr", token="hf_stranger_of_the_test"))
        self.assert_published(hub)
        self.assert_published(hub, layered, "refs/pr/1")
        self.assertEqual([pull.author for pull in hub.pull_requests(REPO)], ["stranger"])
        merging = self.publish(hub, layered, token="hf_stranger_of_the_test")
        self.assert_refused_merge(hub, merging)

    def assert_refused_merge(self, hub, result):
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("write access to " + REPO, result.stderr)
        self.assert_published(hub)

    def test_a_repository_of_other_files_is_left_alone(self):
        hub = self.new_hub()
        hub.add(REPO, self.data())
        result = self.publish(hub)
        self.assert_refused_unchanged(hub, result, REPO, "no part of a packed repository", "model-00001-of-000005")
        self.assertEqual(len(hub.commits(REPO)), 2)

    def test_another_kind_of_manifest_is_no_licence_to_delete(self):
        hub = self.new_hub()
        hub.add(REPO, self.data())
        hub.commit(REPO, {"manifest.json": b'{"name": "a web application"}'})
        result = self.publish(hub)
        self.assert_refused_unchanged(hub, result, REPO, "not that of a packed repository", "delete")

    def test_old_files_that_the_old_manifest_names_are_deleted(self):
        source = write_small(self.scratch / "source")
        (source / "NOTICE").write_text("old")
        folder, hub = self.scratch / "packed", self.new_hub()
        self.assert_ok(self.repack(source, folder))
        for revision in ("main", "b"):
            self.assert_ok(self.publish(hub, folder, "--revision", revision))
            self.assertIn("NOTICE", hub.files(REPO, revision))
            self.assert_ok(self.publish(hub, self.folder, "--revision", revision))
            self.assert_published(hub, revision=revision)
            self.assert_commits_in_order(hub, revision)

    def test_a_renamed_repository(self):
        hub = self.new_hub()
        hub.add("me/old")
        hub.rename("me/old", "me/new")
        self.assert_refused_unchanged(hub, self.publish(hub, repo="me/old"), "redirect", "me/new", "new name")

    def test_no_server(self):
        port = free_port()
        result = self.run_program("publish", self.folder, "--repo", REPO, "--dev", "retries=0",
                                  env={"HF_ENDPOINT": "http://127.0.0.1:%d" % port, "HF_TOKEN": TOKEN})
        self.assert_refused(result, "cannot reach the server")

    def test_usage(self):
        for arguments in (["publish"], ["publish", "x"], ["publish", "x", "--repo", "name"],
                          ["publish", "x", "--repo", "a/b/c"], ["publish", "x", "--repo", "a/.."],
                          ["publish", "x", "--repo", "a/b", "--create-pr", "--revision", "c"],
                          ["publish", "x", "--repo", "a/b", "--check", "--dry-run"],
                          ["publish", "x", "--repo", "a/b", "--check", "--private"],
                          ["publish", "x", "--repo", "a/b", "--jobs", "0"]):
            with self.subTest(arguments):
                result = self.run_program(*arguments)
                self.assertEqual((result.code, result.stdout), (2, ""), str(result))
        self.assertIn("--create-pr", self.assert_ok(self.run_program("publish", "--help")).stdout)


class Before(PublishCase):
    def test_a_dry_run_needs_neither_network_nor_token(self):
        for token in ("", TOKEN):
            environment = {"HF_ENDPOINT": "http://127.0.0.1:%d" % free_port(), **({"HF_TOKEN": token} if token else {})}
            result = self.assert_ok(self.run_program("publish", self.folder, "--repo", REPO, "--dry-run", "--dev", "retries=0",
                                                     env=environment))
            size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
            self.assertIn("to send  338 of 338 files, %.1f MB" % (size / 1e6), result.stdout)
            self.assertIn("commits  5\n", result.stdout)
            self.assertIn("at 100 Mbit/s", result.stdout)
            self.assertIn("could not be asked" if token else "not asked: there is no token", result.stdout)

    def test_a_dry_run_asks_and_changes_nothing(self):
        hub = self.new_hub()
        self.assert_ok(self.publish(hub, None, "--dry-run"))
        self.assertFalse(hub.exists(REPO))
        hub.add(REPO, self.folder)
        hub.commit(REPO, {EXPERT_0.replace("001", "003"): None})
        count = len(hub.commits(REPO))
        result = self.assert_ok(self.publish(hub, None, "--dry-run"))
        self.assertIn("to send  1 of 338 files", result.stdout)
        self.assertEqual((len(hub.commits(REPO)), hub.pull_requests(REPO)), (count, []))

    def test_checking_needs_no_token_where_reading_needs_none(self):
        hub = self.new_hub()
        hub.add(REPO, self.folder)
        self.assertIn(COMPLETE, self.assert_ok(self.publish(hub, None, "--check", token="")).stdout)
        result = self.publish(hub, None, "--check", repo="me/other", token="")
        self.assert_refused(result, "me/other", "no such repository")
        self.assert_refused(self.publish(hub, None, "--check", "--revision", "v2"), "has no branch v2")

    def test_many_files_are_warned_of(self):
        source = self.scratch / "source"
        source.mkdir()
        names = ["model.layers.%d.mlp.experts.%d.up_proj.weight" % (layer, expert)
                 for layer in range(40) for expert in range(256)]
        safetensors_io.write(source / "model.safetensors", {name: ("U8", [1], raw(1, 1)) for name in names})
        folder = self.scratch / "packed"
        self.assert_ok(self.repack(source, folder))
        result = self.assert_ok(self.run_program("publish", folder, "--repo", REPO, "--dry-run"))
        self.assertRegex(result.stderr, r"^warning: 10\d+ files: .*--by layer")
        self.assertIn("commits  104\n", result.stdout)


class Card(PublishCase):
    def test_a_card_that_the_hub_will_not_take_is_found_out_first(self):
        hub = self.new_hub()
        hub.add_fault("POST", "api/validate-yaml", "status", status=400,
                      body=json.dumps({"errors": [{"message": '"license" must be one of [...]'}], "warnings": []}))
        result = self.publish(hub)
        self.assert_refused(result, "README.md", '"license" must be one of [...]', "source's own card")
        self.assertFalse(hub.exists(REPO))
        hub.clear_faults()
        hub.add_fault("POST", "api/validate-yaml", "404")  # a mirror that has no such call
        self.assert_ok(self.publish(hub))

    def test_its_own_command_verifies_the_files(self):
        """The command that needs nothing of ours, as it stands in the card."""
        folder = shutil.copytree(packed_tiny(), self.scratch / "copy")
        text = (folder / "README.md").read_text()
        command = text[text.index("python3 -c"):text.index("reshard verify .\n")]
        self.assertEqual(subprocess.run(command, shell=True, cwd=folder).returncode, 0)
        (folder / "config.json").write_text("{}")
        checked = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout), (1, "config.json: FAILED\n"))


if __name__ == "__main__":
    main()
