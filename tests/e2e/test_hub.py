"""The Hub as source, played by a local server behind HF_ENDPOINT: names, revisions, redirects, and where a token goes."""

import json

from checkpoints import SHARDS, write_small
from common import EndToEnd, main

TOKEN = "hf_secret_of_the_test"


class Hub(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "root" / "files")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.out = self.scratch / "packed"

    def hub(self, prefix, **options):
        server = self.serve(self.scratch / "root", **options)
        server.renames[prefix] = "files/"
        return server

    def assert_same_weights(self):
        """A Hub repository is named in manifest and card; all else is as from a folder."""
        for path in (self.whole / "model").rglob("*.safetensors"):
            self.assertEqual((self.out / path.relative_to(self.whole)).read_bytes(), path.read_bytes(), path)
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))

    def origin(self):
        return json.loads((self.out / "manifest.json").read_text())["origin"]

    def test_without_a_source_it_is_deepseek_v3(self):
        server = self.hub("deepseek-ai/DeepSeek-V3/resolve/main/")
        for endpoint in (server.url, server.url + "/"):
            self.out = self.scratch / ("packed" + str(len(endpoint)))
            self.assert_ok(self.run_program("--by", "expert", "--out", self.out, env={"HF_ENDPOINT": endpoint}))
            self.assert_same_weights()
            self.assertEqual(self.origin()["repository"], "deepseek-ai/DeepSeek-V3")
        self.assertTrue(all(request.authorization is None for request in server.requests()))
        self.assertNotIn(server.url, (self.out / "manifest.json").read_text() + (self.out / "README.md").read_text())

    def test_names_and_revisions(self):
        for place, prefix in (("some-org/my.model_1", "some-org/my.model_1/resolve/main/"),
                              ("o/n@v1.0", "o/n/resolve/v1.0/"), ("hf://o/n@" + "ab" * 20, "o/n/resolve/%s/" % ("ab" * 20)),
                              ("o/n@refs/pr/7", "o/n/resolve/refs/pr/7/")):
            with self.subTest(place):
                server = self.hub(prefix)
                self.out = self.scratch / place.replace("/", "_")
                self.assert_ok(self.repack(place, self.out, env={"HF_ENDPOINT": server.url}))
                self.assert_same_weights()
                revision = self.origin()["revision"]
                self.assertEqual(revision, place.partition("@")[2] or "main")
                encoded = "/resolve/%s/" % revision.replace("/", "%2F")
                self.assertTrue(all(encoded in request.raw_path for request in server.requests()))

    def test_a_local_folder_of_that_name_wins(self):
        server = self.hub("o/n/resolve/main/")
        write_small(self.scratch / "o" / "n")
        self.assert_ok(self.repack("o/n", self.out, env={"HF_ENDPOINT": server.url}, cwd=self.scratch))
        self.assertEqual(server.requests(), [])
        self.assert_same_tree(self.out, self.whole)

    def test_the_token_goes_to_the_hub_and_not_where_it_redirects(self):
        storage = self.hub("deepseek-ai/DeepSeek-V3/resolve/main/")
        hub = self.hub("deepseek-ai/DeepSeek-V3/resolve/main/", token=TOKEN)
        hub.add_fault("*.safetensors", "redirect", to=storage.url)
        self.assert_ok(self.run_program("--by", "expert", "--out", self.out,
                                        env={"HF_ENDPOINT": hub.url, "HF_TOKEN": "  %s\n" % TOKEN}))
        self.assert_same_weights()
        self.assertTrue(all(request.authorization == "Bearer " + TOKEN for request in hub.requests()))
        self.assertGreaterEqual(len(storage.requests("*.safetensors")), len(SHARDS))
        self.assertEqual([request.authorization for request in storage.requests() if request.authorization], [])

    def test_the_token_stays_on_a_redirect_within_the_hub(self):
        hub = self.hub("new/name/resolve/main/", token=TOKEN)
        hub.renames["old/name/resolve/main/"] = "files/"
        hub.add_fault("old/name/*", "redirect", to="", status=307, within="old/name:new/name")
        self.assert_ok(self.repack("old/name", self.out, env={"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}))
        self.assert_same_weights()
        self.assertTrue(hub.requests("new/name/*"))
        self.assertTrue(all(request.authorization == "Bearer " + TOKEN for request in hub.requests()))

    def test_the_token_is_read_from_the_usual_files(self):
        hub = self.hub("o/n/resolve/main/", token=TOKEN)
        (self.scratch / "token").write_text(TOKEN + "\n")
        (self.scratch / "cache" / "huggingface").mkdir(parents=True)
        (self.scratch / "cache" / "huggingface" / "token").write_text(TOKEN)
        for number, env in enumerate(({"HF_TOKEN_PATH": str(self.scratch / "token"), "HF_HOME": "/nowhere"},
                                      {"HF_HOME": str(self.scratch)},
                                      {"HF_HOME": "", "XDG_CACHE_HOME": str(self.scratch / "cache")})):
            with self.subTest(env):
                out = self.scratch / str(number)
                self.assert_ok(self.repack("o/n", out, env={"HF_ENDPOINT": hub.url, **env}))

    def test_without_the_right_token_access_is_denied(self):
        hub = self.hub("o/n/resolve/main/", token=TOKEN)
        for token in ({}, {"HF_TOKEN": "hf_wrong"}):
            result = self.repack("o/n", self.out, env={"HF_ENDPOINT": hub.url, **token})
            self.assert_refused(result, hub.url, "401", "HF_TOKEN")
            self.assertNotIn("hf_wrong", result.stderr)
            self.assert_absent(self.out)

    def test_the_token_is_not_sent_to_other_servers(self):
        server = self.serve(self.source)
        self.assert_ok(self.repack(server.url, self.out, env={"HF_TOKEN": TOKEN}))
        self.assertEqual([request.authorization for request in server.requests() if request.authorization], [])
        for path in self.out.rglob("*"):
            self.assertTrue(path.is_dir() or TOKEN.encode() not in path.read_bytes(), path)

    def test_a_repository_that_is_not_there(self):
        server = self.hub("o/n/resolve/main/")
        result = self.repack("o/other", self.out, env={"HF_ENDPOINT": server.url})
        self.assert_refused(result, "o/other", "not a checkpoint")
        self.assert_absent(self.out)

    def resolutions(self, fault, **options):
        """How often the Hub and the storage behind it were asked for a shard."""
        storage = self.hub("o/n/resolve/main/")
        hub = self.hub("o/n/resolve/main/")
        hub.add_fault("*.safetensors", "redirect", to=storage.url)
        storage.add_fault("*" + SHARDS[0], fault, **options)
        self.assert_ok(self.repack("o/n", self.out, env={"HF_ENDPOINT": hub.url}))
        self.assert_same_weights()
        asked = [request for request in hub.requests("*" + SHARDS[0]) if request.method == "GET"]
        return len(asked), len(storage.requests("*" + SHARDS[0]))

    def test_a_link_is_used_again_after_a_lost_connection(self):
        opened = 2  # for the catalogue, and to be read
        self.assertEqual(self.resolutions("truncate", times=1), (opened, opened + 1))

    def test_a_link_that_expires_is_resolved_again(self):
        # The second request on one link comes when the first was cut.
        storage = self.hub("o/n/resolve/main/")
        hub = self.hub("o/n/resolve/main/")
        hub.add_fault("*.safetensors", "redirect", to=storage.url)
        storage.add_fault("*" + SHARDS[0], "truncate", times=1)
        storage.add_fault("*" + SHARDS[0], "403", times=1)
        self.assert_ok(self.repack("o/n", self.out, env={"HF_ENDPOINT": hub.url}))
        asked = [request for request in hub.requests("*" + SHARDS[0]) if request.method == "GET"]
        self.assertEqual((len(asked), len(storage.requests("*" + SHARDS[0]))), (3, 4))
        self.assert_same_weights()


if __name__ == "__main__":
    main()
