"""The server that plays the Hub in these tests, held to the Hub's protocol by the official client: what changes there.

Each operation is judged twice: by what the server holds afterwards, and by what the client sees.
"""

import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

from hub_client import CLIENT_VERSION, TOKEN, Client, sha256  # first: it restarts this file where the client is
from common import clean_environment, main
import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, errors
from huggingface_hub.utils._runtime import is_xet_available


class Installed(unittest.TestCase):
    def test_it_is_the_pinned_client_without_xet(self):
        self.assertEqual(huggingface_hub.__version__, CLIENT_VERSION)
        self.assertFalse(is_xet_available())


class Repositories(Client):
    def test_whoami(self):
        self.hub.add_token("hf_reader", "reader", read_only=True)
        self.assertEqual(self.api.whoami()["name"], "tester")
        self.assertEqual(self.client("hf_reader").whoami()["auth"]["accessToken"]["role"], "read")
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.client("hf_unknown").whoami()
        self.assertEqual(refused.exception.response.status_code, 401)

    def test_create(self):
        url = self.api.create_repo("org/model", private=True)
        self.assertEqual((url.repo_id, url.endpoint), ("org/model", self.hub.url))
        self.assertTrue(self.hub.exists("org/model"))
        info = self.api.model_info("org/model")
        self.assertEqual((info.id, info.private, info.gated), ("org/model", True, False))
        self.assertEqual([commit.title for commit in self.hub.commits("org/model")], ["initial commit"])
        self.assertEqual(self.api.create_repo("org/model", exist_ok=True).repo_id, "org/model")
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.api.create_repo("org/model")
        self.assertEqual(refused.exception.response.status_code, 409)
        self.assertEqual(self.api.create_repo("mine").repo_id, "tester/mine")

    def test_delete(self):
        self.api.create_repo("org/model")
        self.api.delete_repo("org/model")
        self.assertFalse(self.hub.exists("org/model"))
        with self.assertRaises(errors.RepositoryNotFoundError):
            self.api.delete_repo("org/model")
        self.api.delete_repo("org/model", missing_ok=True)

    def test_a_renamed_repository_is_found_by_its_old_name(self):
        self.api.create_repo("org/old")
        self.api.upload_file(path_or_fileobj=b"one", path_in_repo="a.txt", repo_id="org/old")
        self.api.move_repo("org/old", "org/new")
        self.assertEqual(self.api.model_info("org/old").id, "org/new")
        downloaded = self.api.hf_hub_download("org/old", "a.txt", cache_dir=self.scratch)
        self.assertEqual(Path(downloaded).read_bytes(), b"one")
        self.api.upload_file(path_or_fileobj=b"two", path_in_repo="b.bin", repo_id="org/old")
        self.assert_holds("org/new", {"a.txt": b"one", "b.bin": b"two"})
        locations = {entry.raw_path for entry in self.hub.requests() if entry.status == 307}
        self.assertIn("/org/old/resolve/main/a.txt", locations)
        self.assertIn("/org/old.git/info/lfs/objects/batch", locations)

    def test_settings(self):
        self.api.create_repo("org/model")
        self.api.update_repo_settings("org/model", private=True, gated="manual")
        info = self.api.model_info("org/model")
        self.assertEqual((info.private, info.gated), (True, "manual"))


class Uploads(Client):
    options = {"page_size": 3, "multipart_threshold": 1000, "chunk_size": 300}

    def setUp(self):
        super().setUp()
        self.api.create_repo("org/model")

    def put(self, data, path, **options):
        return self.api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id="org/model", **options)

    def test_a_small_file_travels_in_the_commit(self):
        made = self.put(b"{}", "config.json", commit_message="A title", commit_description="and more")
        self.assert_holds("org/model", {"config.json": b"{}"})
        self.assertFalse(self.hub.is_lfs("org/model", "config.json"))
        newest = self.hub.commits("org/model")[0]
        self.assertEqual((newest.id, newest.title, newest.message), (made.oid, "A title", "and more"))
        seen = self.api.list_repo_commits("org/model")
        self.assertEqual([(commit.commit_id, commit.title) for commit in seen],
                         [(commit.id, commit.title) for commit in self.hub.commits("org/model")])
        self.assertEqual(self.hub.requests("PUT"), [])

    def test_an_lfs_object_in_one_piece(self):
        data = os.urandom(1000)
        self.put(data, "deep/in/folders/m.safetensors")
        self.assert_holds("org/model", {"deep/in/folders/m.safetensors": data})
        self.assertTrue(self.hub.is_lfs("org/model", "deep/in/folders/m.safetensors"))
        self.assertEqual(self.hub.objects("org/model"), [sha256(data)])
        sent, = self.hub.requests("PUT")
        self.assertEqual((sent.host, sent.authorization, sent.received), ("storage", None, 1000))

    def test_an_lfs_object_in_parts(self):
        data = os.urandom(3001)
        self.put(data, "m.safetensors")
        self.assert_holds("org/model", {"m.safetensors": data})
        sent = self.hub.requests("PUT")
        self.assertEqual([entry.received for entry in sent], [300] * 10 + [1])
        self.assertEqual({entry.authorization for entry in sent}, {None})
        self.assertEqual(len(self.hub.requests("POST", "api/complete_multipart")), 1)
        self.assertEqual(len(self.hub.requests("POST", "*/objects/verify")), 1)

    def test_an_object_that_is_stored_is_not_sent_again(self):
        data = os.urandom(500)
        self.put(data, "one.safetensors")
        self.put(data, "two.safetensors")
        self.assert_holds("org/model", {"one.safetensors": data, "two.safetensors": data})
        self.assertEqual(len(self.hub.requests("PUT")), 1)

    def test_what_has_not_changed_makes_no_commit(self):
        files = {"m.safetensors": os.urandom(500), "config.json": b"{}", "empty.bin": b""}
        self.api.upload_folder(repo_id="org/model", folder_path=self.folder(files))
        head = self.hub.commits("org/model")[0].id
        again = self.api.upload_folder(repo_id="org/model", folder_path=self.folder(files))
        self.assertEqual((again.oid, self.hub.commits("org/model")[0].id), (head, head))
        self.assert_holds("org/model", files)

    def test_a_folder(self):
        files = {"layers/%02d/expert %d.safetensors" % (layer, expert): os.urandom(200 + 300 * expert)
                 for layer in range(3) for expert in range(5)}
        files.update({"README.md": b"---\nlicense: mit\n---\n# Model\n", "config.json": b"{}",
                      "d/\u00e4 #?&%20.txt": b"odd"})
        self.api.upload_folder(repo_id="org/model", folder_path=self.folder(files))
        self.assert_holds("org/model", files)
        self.assertEqual(len(self.hub.commits("org/model")), 2)

    def test_a_path_that_no_pattern_covers_gets_a_line_in_gitattributes(self):
        self.put(b"binary\0", "strange name.xyz")
        self.assertTrue(self.hub.is_lfs("org/model", "strange name.xyz"))
        self.assertIn(b"strange[[:space:]]name.xyz filter=lfs", self.hub.read("org/model", ".gitattributes"))
        self.assert_holds("org/model", {"strange name.xyz": b"binary\0"})

    def test_one_commit_adds_copies_and_deletes(self):
        data = os.urandom(400)
        self.put(data, "old.safetensors")
        self.put(b"1", "sub/one.txt")
        self.put(b"2", "sub/two.txt")
        self.put(b"3", "three.txt")
        made = self.api.create_commit("org/model", [
            CommitOperationAdd("four.txt", b"4"), CommitOperationDelete("sub/"), CommitOperationDelete("three.txt"),
            CommitOperationCopy("old.safetensors", "new.safetensors"), CommitOperationDelete("old.safetensors"),
        ], commit_message="All at once")
        self.assertEqual(self.hub.commits("org/model")[0].id, made.oid)
        self.assert_holds("org/model", {"four.txt": b"4", "new.safetensors": data})
        self.api.delete_file("four.txt", "org/model")
        self.assert_holds("org/model", {"new.safetensors": data})
        with self.assertRaises(errors.EntryNotFoundError):
            self.api.delete_file("four.txt", "org/model")

    def test_the_parent_commit_is_a_lock(self):
        first = self.put(b"1", "a.txt")
        self.put(b"2", "a.txt", parent_commit=first.oid)
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.put(b"3", "a.txt", parent_commit=first.oid)
        self.assertEqual(refused.exception.response.status_code, 412)
        self.assert_holds("org/model", {"a.txt": b"2"})

    def test_gitignore(self):
        self.api.upload_folder(repo_id="org/model", folder_path=self.folder(
            {".gitignore": b"*.log\n", "a.txt": b"a", "b.log": b"b", "c/d.log": b"d"}))
        self.assert_holds("org/model", {".gitignore": b"*.log\n", "a.txt": b"a"})

    def test_branches_and_tags(self):
        self.api.create_branch("org/model", branch="v2")
        with self.assertRaises(errors.HfHubHTTPError):
            self.api.create_branch("org/model", branch="v2")
        self.put(b"2", "a.txt", revision="v2")
        self.assert_holds("org/model", {})
        self.assert_holds("org/model", {"a.txt": b"2"}, revision="v2")
        self.api.create_tag("org/model", tag="first", revision="v2")
        refs = self.api.list_repo_refs("org/model")
        self.assertEqual({ref.name: ref.target_commit for ref in refs.branches}, self.hub.branches("org/model"))
        self.assertEqual([ref.name for ref in refs.tags], ["first"])
        self.api.delete_branch("org/model", branch="v2")
        self.assertEqual(set(self.hub.branches("org/model")), {"main"})
        self.assert_holds("org/model", {"a.txt": b"2"}, revision="first")

    def test_actions_that_name_the_official_host(self):
        """As behind a proxy: the client puts its own endpoint in."""
        self.hub.official_action_urls = True
        data = os.urandom(1500)
        self.put(data, "m.safetensors")
        self.assert_holds("org/model", {"m.safetensors": data})

    def test_an_object_that_is_refused(self):
        data = os.urandom(100)
        self.hub.lfs_errors[sha256(data)] = (422, "no such objects here")
        with self.assertRaisesRegex(ValueError, "no such objects here"):
            self.put(data, "m.safetensors")
        self.assert_holds("org/model", {})

    def test_what_was_damaged_on_the_way_is_not_stored(self):
        data = os.urandom(100)
        for kind in ("corrupt_upload", "truncate_upload"):
            with self.subTest(kind):
                fault = self.hub.add_fault("PUT", "uploads/*", kind, times=1)
                with self.assertRaises(RuntimeError) as refused:
                    self.put(data, "m.safetensors")
                self.assertIn("the object has", str(refused.exception.__cause__))
                self.assertEqual((fault.struck, self.hub.objects("org/model")), (1, []))
        self.put(data, "m.safetensors")
        self.assert_holds("org/model", {"m.safetensors": data})

    def test_the_command_line_program_uploads(self):
        """As the documentation says: `hf upload`."""
        files = {"a/m.safetensors": os.urandom(2000), "config.json": b"{}"}
        environment = clean_environment(self.scratch, {"HF_ENDPOINT": self.hub.url, "HF_TOKEN": TOKEN,
                                                       "HF_HUB_DISABLE_XET": "1"})
        done = subprocess.run([sys.executable, "-m", "huggingface_hub.cli.hf", "upload", "org/other", self.folder(files),
                               "."], env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_holds("org/other", files)


class PullRequests(Client):
    def setUp(self):
        super().setUp()
        self.api.create_repo("org/model")

    def put(self, data, path, **options):
        return self.api.upload_file(path_or_fileobj=data, path_in_repo=path, repo_id="org/model", **options)

    def test_open_add_to_it_and_merge(self):
        weights = os.urandom(300)
        opened = self.put(weights, "m.safetensors", create_pr=True, commit_message="Weights")
        self.assertEqual((opened.pr_num, opened.pr_revision), (1, "refs/pr/1"))
        self.put(b"{}", "config.json", revision="refs/pr/1")
        self.assert_holds("org/model", {})
        self.assert_holds("org/model", {"m.safetensors": weights, "config.json": b"{}"}, revision="refs/pr/1")
        refs = self.api.list_repo_refs("org/model", include_pull_requests=True)
        self.assertEqual([(ref.ref, ref.target_commit) for ref in refs.pull_requests],
                         [("refs/pr/1", self.hub.pull_requests("org/model")[0].head)])
        self.put(b"meanwhile", "other.txt")
        details = self.api.get_discussion_details("org/model", 1)
        self.assertEqual((details.status, details.is_pull_request, details.conflicting_files, details.target_branch),
                         ("open", True, [], "refs/heads/main"))
        self.assertEqual([event.type for event in details.events], ["comment", "commit", "commit"])
        self.api.merge_pull_request("org/model", 1)
        self.assert_holds("org/model", {"m.safetensors": weights, "config.json": b"{}", "other.txt": b"meanwhile"})
        newest = self.hub.commits("org/model")[0]
        self.assertEqual(newest.title, "Weights (#1)")
        details = self.api.get_discussion_details("org/model", 1)
        self.assertEqual((details.status, details.merge_commit_oid), ("merged", newest.id))
        self.assertEqual([event.type for event in details.events], ["comment", "commit", "commit", "status-change"])

    def test_a_draft_is_published_before_it_is_merged(self):
        draft = self.api.create_pull_request("org/model", title="A draft", description="for later")
        self.assertEqual((draft.num, draft.status, draft.git_reference), (1, "draft", "refs/pr/1"))
        self.put(b"1", "a.txt", revision="refs/pr/1")
        with self.assertRaises(errors.BadRequestError):
            self.api.merge_pull_request("org/model", 1)
        self.api.change_discussion_status("org/model", 1, new_status="open")
        self.api.merge_pull_request("org/model", 1)
        self.assert_holds("org/model", {"a.txt": b"1"})

    def test_conflicts_and_closing(self):
        self.put(b"1", "a.txt", create_pr=True)
        self.put(b"2", "a.txt")
        self.assertEqual(self.api.get_discussion_details("org/model", 1).conflicting_files, ["a.txt"])
        with self.assertRaises(errors.HfHubHTTPError):
            self.api.merge_pull_request("org/model", 1)
        self.api.change_discussion_status("org/model", 1, new_status="closed")
        self.assertEqual(self.hub.pull_requests("org/model")[0].status, "closed")
        self.assert_holds("org/model", {"a.txt": b"2"})

    def test_listing(self):
        for number in range(12):
            self.put(b"%d" % number, "a.txt", create_pr=True, commit_message="Number %d" % number)
        self.api.change_discussion_status("org/model", 3, new_status="closed")
        found = list(self.api.get_repo_discussions("org/model", discussion_type="pull_request",
                                                   discussion_status="open"))
        self.assertEqual([item.num for item in found], [12, 11, 10, 9, 8, 7, 6, 5, 4, 2, 1])
        self.assertEqual(found[0].title, "Number 11")

    def test_a_reader_may_open_one_and_nothing_else(self):
        self.hub.add_token("hf_stranger", "stranger")
        stranger = self.client("hf_stranger")
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            stranger.upload_file(path_or_fileobj=b"1", path_in_repo="a.txt", repo_id="org/model")
        self.assertEqual(refused.exception.response.status_code, 403)
        data = os.urandom(50)
        stranger.upload_file(path_or_fileobj=data, path_in_repo="a.bin", repo_id="org/model", create_pr=True)
        with self.assertRaises(errors.HfHubHTTPError):
            stranger.merge_pull_request("org/model", 1)
        self.assert_holds("org/model", {})
        self.assert_holds("org/model", {"a.bin": data}, revision="refs/pr/1")


class Trouble(Client):
    def setUp(self):
        super().setUp()
        self.api.create_repo("org/model")
        self.hub.commit("org/model", {"a.txt": b"a"})

    def test_the_client_waits_as_the_rate_limit_says(self):
        self.hub.rate_limits["api"] = (2, 3.0)
        started = time.monotonic()
        for _ in range(2):
            self.assertEqual(self.api.list_repo_files("org/model"), [".gitattributes", "a.txt"])
        self.assertLess(time.monotonic() - started, 3.0)
        with self.assertLogs("huggingface_hub", "WARNING") as told:
            self.assertEqual(self.api.list_repo_files("org/model"), [".gitattributes", "a.txt"])
        self.assertIn("Rate limited", "".join(told.output))
        self.assertGreaterEqual(time.monotonic() - started, 3.0)
        self.assertEqual([entry.status for entry in self.hub.requests("GET")], [200, 200, 429, 200])

    def test_the_client_reads_the_rate_limit_it_is_told(self):
        self.hub.rate_limits["api"] = (1, 300)
        self.api.model_info("org/model")
        with self.assertRaisesRegex(errors.HfHubHTTPError, r"'api' rate limit.*\n?.*Retry after \d+ seconds \(0/1 "
                                                           r"requests remaining in current 300s window\)"):
            self.api.model_info("org/model")

    def test_a_server_error_is_tried_again(self):
        fault = self.hub.add_fault("GET", "*/tree/*", "503", times=1)
        with self.assertLogs("huggingface_hub", "WARNING"):
            self.assertEqual(self.api.list_repo_files("org/model"), [".gitattributes", "a.txt"])
        self.assertEqual(fault.struck, 1)

    def test_a_commit_whose_answer_is_lost_was_made(self):
        for number, (kind, options) in enumerate((("lost", {}), ("lost", {"status": 504}))):
            with self.subTest(options=options):
                self.hub.add_fault("POST", "*/commit/*", kind, times=1, **options)
                with self.assertRaises(Exception) as refused:
                    self.api.upload_file(path_or_fileobj=b"%d" % number, path_in_repo="b.txt", repo_id="org/model")
                expected = errors.HfHubHTTPError if options else Exception
                self.assertIsInstance(refused.exception, expected)
                self.assert_holds("org/model", {"a.txt": b"a", "b.txt": b"%d" % number})


if __name__ == "__main__":
    main()
