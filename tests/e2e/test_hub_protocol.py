"""The server that plays the Hub in these tests, held to the Hub's protocol by the official client, huggingface_hub.

Each operation is judged twice: by what the server holds afterwards, and by what the client sees. The client lives in a
virtual environment (scripts/common.sh makes it); this file restarts itself under that environment's Python.
"""

import hashlib
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

CLIENT_VERSION = "2.4.0"
RESTARTED = "DSPACK_TEST_RESTARTED"
TOKEN = "hf_secret_of_the_test"


def restart_under_the_client():
    """Variables of the client are read when it is imported: they are set before."""
    python = os.environ.get("DSPACK_TEST_PYTHON", "")
    if not os.access(python, os.X_OK):
        print("DID NOT RUN: huggingface_hub is not installed: DSPACK_TEST_PYTHON (%s) is no Python; scripts/test makes it"
              % (python or "not set"), flush=True)
        sys.exit(77)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HOME": "/nonexistent", RESTARTED: "1"}
    os.execve(python, [python, "-B", "-W", "ignore::DeprecationWarning", *sys.argv], {**kept, **settings})


if RESTARTED not in os.environ:
    restart_under_the_client()

from unittest import mock  # noqa: E402

import huggingface_hub  # noqa: E402
from common import EndToEnd, clean_environment, main  # noqa: E402
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi  # noqa: E402
from huggingface_hub import errors  # noqa: E402
from huggingface_hub.utils._runtime import is_xet_available  # noqa: E402
from hub_server import HubServer  # noqa: E402


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Client(EndToEnd):
    """`self.api` speaks to `self.hub` with the token of the account that may do everything."""
    options = {}

    def setUp(self):
        super().setUp()
        self.hub = HubServer(token=TOKEN, **self.options)
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)
        self.addCleanup(self.hub.assert_token_stayed_home)
        self.api = self.client(TOKEN)

    def client(self, token=False):
        return HfApi(endpoint=self.hub.url, token=token)

    def folder(self, files, name="folder"):
        for path, data in files.items():
            place = self.scratch / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return self.scratch / name

    def assert_holds(self, repo, files, revision="main"):
        """Exactly these files (and the Hub's .gitattributes), on the server and as the client lists and downloads them."""
        wanted = {path: sha256(data) for path, data in files.items()}
        held = self.hub.files(repo, revision)
        held.pop(".gitattributes")
        self.assertEqual(held, wanted)
        listed = set(self.api.list_repo_files(repo, revision=revision))
        self.assertEqual(listed, {".gitattributes", *wanted})
        place = self.scratch / ("seen-" + os.urandom(4).hex())
        folder = Path(self.api.snapshot_download(repo, revision=revision, local_dir=place))
        seen = {str(path.relative_to(folder)): sha256(path.read_bytes()) for path in folder.rglob("*")
                if path.is_file() and ".cache" not in path.parts and path.name != ".gitattributes"}
        self.assertEqual(seen, wanted)


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
        self.assertEqual(Path(self.api.hf_hub_download("org/old", "a.txt", cache_dir=self.scratch)).read_bytes(), b"one")
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
        files.update({"README.md": b"---\nlicense: mit\n---\n# Model\n", "config.json": b"{}", "d/\u00e4 #?&%20.txt": b"odd"})
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
        done = subprocess.run([Path(sys.executable).parent / "hf", "upload", "org/other", self.folder(files), "."],
                              env=environment, capture_output=True, text=True, timeout=120)
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
        found = list(self.api.get_repo_discussions("org/model", discussion_type="pull_request", discussion_status="open"))
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


class Downloads(Client):
    options = {"page_size": 4}

    def setUp(self):
        super().setUp()
        self.files = {"config.json": b'{"a": 1}', "m.safetensors": os.urandom(5000), "sub/a.txt": b"text", "sub/b.txt": b"",
                      "sub/deep/n.safetensors": os.urandom(10), "with space+%.txt": b"odd"}
        self.hub.add("org/model", self.folder(self.files, "model"))
        self.head = self.hub.commits("org/model")[0]

    def get(self, path, api=None, **options):
        return Path((api or self.api).hf_hub_download("org/model", path, cache_dir=self.scratch / "cache", **options))

    def test_everything(self):
        for redirected in (False, True):
            with self.subTest(small_file_redirect=redirected):
                self.hub.small_file_redirect = redirected
                self.assert_holds("org/model", self.files)

    def test_model_info(self):
        info = self.api.model_info("org/model", files_metadata=True)
        self.assertEqual((info.sha, info.author, info.disabled), (self.head.id, "org", False))
        for sibling in info.siblings:
            file = self.head.files[sibling.rfilename]
            self.assertEqual((sibling.size, sibling.blob_id), (file.size, file.oid))
            self.assertEqual(sibling.lfs.sha256 if sibling.lfs else None, file.content.sha256 if file.lfs else None)
        self.assertEqual({sibling.rfilename for sibling in info.siblings}, {".gitattributes", *self.files})
        first = self.hub.commits("org/model")[-1].id
        self.assertEqual([sibling.rfilename for sibling in self.api.model_info("org/model", revision=first).siblings],
                         [".gitattributes"])
        self.assertEqual(self.api.model_info("org/model", expand=["sha"]).sha, self.head.id)

    def test_trees(self):
        def paths(*arguments, **options):
            return [entry.path for entry in self.api.list_repo_tree("org/model", *arguments, **options)]
        top = [".gitattributes", "config.json", "m.safetensors", "sub", "with space+%.txt"]
        self.assertEqual(paths(), top)
        self.assertEqual(paths("sub"), ["sub/a.txt", "sub/b.txt", "sub/deep"])
        self.assertEqual(paths(recursive=True), top[:4] + ["sub/a.txt", "sub/b.txt", "sub/deep", "sub/deep/n.safetensors"]
                         + top[4:])
        pages = [entry for entry in self.hub.requests("GET", "*/tree/*") if "recursive=true" in entry.raw_path]
        self.assertEqual(len(pages), 3)
        with self.assertRaises(errors.EntryNotFoundError):
            paths("absent")
        changed = self.hub.commit("org/model", {"sub/a.txt": b"new"}, "Change one")
        last = {entry.path: entry.last_commit.oid for entry in self.api.list_repo_tree("org/model", expand=True,
                                                                                     recursive=True)}
        self.assertEqual((last["sub/a.txt"], last["sub"], last["config.json"]), (changed, changed, self.head.id))

    def test_paths_info(self):
        found = self.api.get_paths_info("org/model", ["m.safetensors", "sub", "absent", "config.json"])
        self.assertEqual([entry.path for entry in found], ["m.safetensors", "sub", "config.json"])
        self.assertEqual((found[0].lfs.sha256, found[0].size), (sha256(self.files["m.safetensors"]), 5000))
        self.assertEqual((found[1].tree_id, found[2].lfs), (self.head.folders["sub"], None))

    def test_a_large_file_comes_from_the_storage_without_the_token(self):
        self.assertEqual(self.get("m.safetensors").read_bytes(), self.files["m.safetensors"])
        self.assertEqual(self.get("m.safetensors").resolve().name, sha256(self.files["m.safetensors"]))
        head = self.hub.requests("HEAD")[0]
        self.assertEqual((head.status, head.authorization), (302, "Bearer " + TOKEN))
        read, = self.hub.requests("GET", host="storage")
        self.assertEqual((read.status, read.authorization), (200, None))
        self.assertNotEqual(self.hub.url.rpartition(":")[0], self.hub.storage_url.rpartition(":")[0])

    def test_small_files_are_named_by_their_git_blob(self):
        self.assertEqual(self.get("config.json").resolve().name, self.head.files["config.json"].oid)
        self.assertEqual(self.get("config.json").parent.name, self.head.id)

    def test_revisions(self):
        for revision in ("main", "refs/heads/main", self.head.id, self.head.id[:7]):
            with self.subTest(revision):
                self.assertEqual(self.get("config.json", revision=revision).parent.name, self.head.id)
        with self.assertRaises(errors.RevisionNotFoundError):
            self.get("config.json", revision="v9")
        with self.assertRaises(errors.EntryNotFoundError):
            self.get("absent.json")
        absent = self.scratch / "cache" / "models--org--model" / ".no_exist" / self.head.id / "absent.json"
        self.assertTrue(absent.is_file())

    def test_a_body_that_breaks_off_is_continued(self):
        fault = self.hub.add_fault("GET", "objects/*", "cut", times=1)
        with mock.patch.object(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000), self.assertLogs("huggingface_hub"):
            self.assertEqual(self.get("m.safetensors").read_bytes(), self.files["m.safetensors"])
        self.assertEqual(fault.struck, 1)
        self.assertEqual([(entry.status, entry.range) for entry in self.hub.requests("GET", host="storage")],
                         [(200, None), (206, (2000, 5000))])

    def test_an_expired_link_is_forbidden(self):
        self.hub.link_seconds = -1
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.get("m.safetensors")
        self.assertEqual(refused.exception.response.status_code, 403)
        self.hub.link_seconds = 60
        self.get("m.safetensors")


class Access(Client):
    def setUp(self):
        super().setUp()
        folder = self.folder({"a.txt": b"a", "m.bin": b"m"})
        self.hub.add("org/private", folder, private=True)
        self.hub.add("org/gated", folder, gated=True, granted=["guest"])
        self.hub.add("org/public", folder)
        self.hub.add_token("hf_guest", "guest")
        self.hub.add_token("hf_stranger", "stranger")
        self.hub.add_token("hf_member", "member", namespaces=["org"])

    def get(self, repo, token, path="a.txt"):
        cache = self.scratch / os.urandom(4).hex()
        return Path(self.client(token).hf_hub_download(repo, path, cache_dir=cache)).read_bytes()

    def status(self, error, *arguments):
        with self.assertRaises(error) as refused:
            self.get(*arguments)
        cause = refused.exception
        while not hasattr(cause, "response"):
            cause = cause.__cause__
        self.assertTrue(cause.request_id.startswith("Root="), cause.request_id)
        return cause.response.status_code

    def test_public(self):
        self.assertEqual(self.get("org/public", False), b"a")
        self.assertEqual(self.get("org/public", "hf_stranger", "m.bin"), b"m")

    def test_missing(self):
        self.assertEqual(self.status(errors.RepositoryNotFoundError, "org/absent", False), 401)
        self.assertEqual(self.status(errors.RepositoryNotFoundError, "org/absent", TOKEN), 404)

    def test_private(self):
        self.assertEqual(self.status(errors.RepositoryNotFoundError, "org/private", False), 401)
        self.assertEqual(self.status(errors.RepositoryNotFoundError, "org/private", "hf_stranger"), 404)
        self.assertEqual(self.get("org/private", "hf_member"), b"a")
        self.assertEqual(self.client(False).repo_exists("org/private"), False)
        self.assertEqual(self.client("hf_member").repo_exists("org/private"), True)

    def test_gated(self):
        self.assertEqual(self.status(errors.GatedRepoError, "org/gated", False), 401)
        self.assertEqual(self.status(errors.GatedRepoError, "org/gated", "hf_stranger"), 403)
        self.assertEqual(self.get("org/gated", "hf_guest", "m.bin"), b"m")
        self.assertEqual(self.client(False).model_info("org/gated").gated, "manual")
        self.assertIn("m.bin", self.client(False).list_repo_files("org/gated"))

    def test_a_token_that_nobody_has(self):
        self.assertEqual(self.status(errors.HfHubHTTPError, "org/public", "hf_unknown"), 401)

    def test_who_may_create(self):
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.client("hf_stranger").create_repo("org/new")
        self.assertEqual(refused.exception.response.status_code, 403)
        with self.assertRaises(errors.HfHubHTTPError) as refused:
            self.client(False).create_repo("org/new")
        self.assertEqual(refused.exception.response.status_code, 401)
        self.client("hf_member").create_repo("org/new")
        self.assertTrue(self.hub.exists("org/new"))


class Trouble(Client):
    def setUp(self):
        super().setUp()
        self.api.create_repo("org/model")
        self.hub.commit("org/model", {"a.txt": b"a"})

    def test_the_client_waits_as_the_rate_limit_says(self):
        self.hub.rate_limits["api"] = (2, 1.5)
        started = time.monotonic()
        for _ in range(2):
            self.assertEqual(self.api.list_repo_files("org/model"), [".gitattributes", "a.txt"])
        self.assertLess(time.monotonic() - started, 1.5)
        with self.assertLogs("huggingface_hub", "WARNING") as told:
            self.assertEqual(self.api.list_repo_files("org/model"), [".gitattributes", "a.txt"])
        self.assertIn("Rate limited", "".join(told.output))
        self.assertGreaterEqual(time.monotonic() - started, 1.5)
        self.assertEqual([entry.status for entry in self.hub.requests("GET")], [200, 200, 429, 200])

    def test_the_client_reads_the_rate_limit_it_is_told(self):
        self.hub.rate_limits["api"] = (1, 300)
        self.api.model_info("org/model")
        with self.assertRaisesRegex(errors.HfHubHTTPError, r"'api' rate limit.*\n?.*Retry after \d+ seconds \(0/1 requests "
                                                           r"remaining in current 300s window\)"):
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
