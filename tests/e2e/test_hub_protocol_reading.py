"""The server that plays the Hub in these tests, held to the Hub's protocol by the official client: listings, downloads,
and who may see what."""

import os
from pathlib import Path
from unittest import mock

from hub_client import TOKEN, Client, sha256  # first: it restarts this file where the client is
from common import main
import huggingface_hub
from huggingface_hub import errors


class Downloads(Client):
    options = {"page_size": 4}

    def setUp(self):
        super().setUp()
        self.files = {"config.json": b'{"a": 1}', "m.safetensors": os.urandom(5000), "sub/a.txt": b"text",
                      "sub/b.txt": b"", "sub/deep/n.safetensors": os.urandom(10), "with space+%.txt": b"odd"}
        self.hub.add("org/model", self.folder(self.files, "model"))
        self.head = self.hub.commits("org/model")[0]

    def get(self, path, api=None, **options):
        return Path((api or self.api).hf_hub_download("org/model", path, cache_dir=self.scratch / "cache", **options))

    def test_everything(self):
        for redirected, xet in ((False, False), (True, False), (False, True)):
            with self.subTest(small_file_redirect=redirected, announce_xet=xet):
                self.hub.small_file_redirect, self.hub.announce_xet = redirected, xet
                self.assert_holds("org/model", self.files)
        held = self.api.get_paths_info("org/model", "m.safetensors")[0]
        self.assertEqual(held.xet_hash, self.head.files["m.safetensors"].xet_hash)

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
        below = ["sub/a.txt", "sub/b.txt", "sub/deep", "sub/deep/n.safetensors"]
        self.assertEqual(paths(recursive=True), top[:4] + below + top[4:])
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
        chunks = mock.patch.object(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
        with chunks, self.assertLogs("huggingface_hub"):
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


if __name__ == "__main__":
    main()
