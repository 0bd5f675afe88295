"""The Hub client's store that repositories share: weights that came by Xet are read from there, as the client left them.

Needs the official client (see hub_client.py). There is no Xet storage here: the client's download by Xet is replaced by
one over plain HTTP, all that it writes to its cache is its own."""

import shutil
import warnings
from pathlib import Path
from unittest import mock

import hub_client
from hub_client import TOKEN, Client
from checkpoints import SHARDS, write_small
from common import flip_bit, main
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _shared_blobs


def get_without_xet(*, incomplete_path, xet_file_data, headers, **_):
    """Of `file_download.xet_get`: what the hash stands for is asked of the server that announced it."""
    data = get_without_xet.hub.by_xet_hash(xet_file_data.file_hash)
    Path(incomplete_path).write_bytes(data)


class SharedStore(Client):
    options = {"announce_xet": True}

    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "files")
        self.hub.add("o/n", self.source)
        self.hub.add("p/copy", self.source)
        for name in SHARDS:
            self.assertTrue(self.hub.is_lfs("o/n", name))
        self.cache, self.out = self.scratch / "hub", self.scratch / "packed"
        get_without_xet.hub = self
        for place, name, value in ((constants, "HF_HUB_DISABLE_XET", False), (file_download, "is_xet_available", lambda: True),
                                   (file_download, "xet_get", get_without_xet)):
            patch = mock.patch.object(place, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        warnings.simplefilter("ignore")

    def by_xet_hash(self, xet_hash):
        for repository in self.hub.repositories.values():
            for file in repository.head("main").files.values():
                if file.lfs and file.xet_hash == xet_hash:
                    return file.content.read()
        raise KeyError(xet_hash)

    def download(self, repo="o/n"):
        # One file at a time: of two threads of client 2.4.0 that make the store, one may remove the other's marker, and
        # then its file is not shared (_cleanup_abandoned_marker_temps).
        snapshot = Path(self.client(TOKEN).snapshot_download(repo, cache_dir=self.cache, max_workers=1))
        for name in SHARDS:
            blob = self.cache / ("models--" + repo.replace("/", "--")) / "blobs" / (snapshot / name).readlink().name
            self.assertTrue(blob.is_symlink(), "the client did not share it: this test is about what is not there")
            self.assertEqual(blob.resolve().parent.parent, (self.cache / "blobs").resolve())
        return snapshot

    def pack(self, place="o/n", *arguments, **env):
        return self.repack(place, self.out, *arguments, env={"HF_ENDPOINT": self.hub.url, "HF_TOKEN": TOKEN, **env})

    def weights_asked(self):
        return [entry.path for entry in self.hub.requests() if entry.host == "storage" or any(
            entry.path.endswith(name) for name in SHARDS)]

    def test_it_is_the_layout_that_this_program_knows(self):
        self.download()
        self.assertEqual((self.cache / "blobs" / _shared_blobs.SHARED_BLOBS_MARKER_NAME).read_text(), "1\n")
        self.assertEqual(hub_client.CLIENT_VERSION, "2.4.0")

    def test_weights_are_read_from_there(self):
        snapshot = self.download()
        before = len(self.weights_asked())
        result = self.assert_ok(self.pack())
        self.assertIn("read from the local snapshot %s\n" % snapshot, result.stderr)
        self.assertEqual(self.weights_asked()[before:], [])
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))
        shutil.rmtree(self.cache)
        other = self.scratch / "from-network"
        self.assert_ok(self.repack("o/n", other, env={"HF_ENDPOINT": self.hub.url, "HF_TOKEN": TOKEN}))
        self.assert_same_tree(self.out, other)

    def test_offline(self):
        self.download()
        before = len(self.hub.requests())
        self.assert_ok(self.pack(HF_HUB_OFFLINE="1"))
        self.assertEqual(len(self.hub.requests()), before)
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))

    def test_two_repositories_share(self):
        self.download()
        self.download("p/copy")
        self.assertEqual(len(list(self.cache.glob("blobs/??/" + "[0-9a-f]" * 64))), len(SHARDS))
        self.assert_ok(self.pack("p/copy", HF_HUB_OFFLINE="1"))

    def test_damage_is_found_by_the_name_of_the_link(self):
        snapshot = self.download()
        blob = (snapshot / SHARDS[0]).resolve()
        blob.chmod(0o600)
        flip_bit(blob, -1)
        for env in ({"HF_HUB_OFFLINE": "1"}, {}):
            result = self.pack("o/n", "--jobs", "1", **env)
            self.assertEqual(result.code, 1, str(result))
            for needle in (str(blob), "SHA-256", "declares", "remove it"):
                self.assertIn(needle, result.stderr)
            shutil.rmtree(self.out)

    def test_dsrun_takes_it_as_the_folder_that_it_is(self):
        packed = self.scratch / "ds"
        self.assert_ok(self.repack(self.data(), packed))
        self.hub.add("o/ds", packed)
        self.client(TOKEN).snapshot_download("o/ds", cache_dir=self.cache)
        before = len(self.hub.requests())
        result = self.run_program("hf://o/ds", "-p", "3 plus 5", "--raw", "-n", 4, "--temp", 0, program="DSPACK_DSRUN",
                                  env={"HF_ENDPOINT": self.hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"})
        self.assert_ok(result)
        self.assertEqual(len(self.hub.requests()), before)


if __name__ == "__main__":
    main()
