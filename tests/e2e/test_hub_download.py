"""What the Hub's official client downloads, our programs read: its cache is laid out as we take it to be."""

import hub_client  # first: it restarts the test under the Python that has the client

import json

from checkpoints import SHARDS, write_small
from common import INDEX, main
from huggingface_hub import hf_hub_download, snapshot_download

OFFLINE = {"HF_HUB_OFFLINE": "1"}


class Download(hub_client.Client):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "files")
        (self.source / "figures").mkdir()
        (self.source / "figures" / "a b.txt").write_text("x\n")
        self.hub.add("o/n", self.source, private=True)
        self.commit = self.hub.repositories["o/n"].head().id
        self.cache = self.scratch / "hub"  # $HF_HOME/hub of the programs
        self.out = self.scratch / "packed"

    def download(self, **options):
        return snapshot_download("o/n", cache_dir=self.cache, endpoint=self.hub.url, token=hub_client.TOKEN, **options)

    def pack(self, place, out=None, **env):
        return self.repack(place, out or self.out, env={"HF_ENDPOINT": self.hub.url, **env})

    def test_a_whole_download_is_packed_without_the_hub(self):
        folder = self.download()
        since = len(self.hub.requests())
        result = self.assert_ok(self.pack("o/n", **OFFLINE))
        self.assertIn("read from the local snapshot %s\n" % folder, result.stderr)
        self.assertEqual(len(self.hub.requests()), since)
        self.assertEqual(json.loads((self.out / "manifest.json").read_text())["origin"]["revision"], self.commit)
        self.assertEqual((self.out / "figures" / "a b.txt").read_text(), "x\n")
        online = self.scratch / "online"
        (self.cache).rename(self.scratch / "away")
        self.assert_ok(self.pack("o/n", online, HF_TOKEN=hub_client.TOKEN))
        self.assert_same_tree(self.out, online)

    def test_a_download_of_some_files_is_completed(self):
        self.download(allow_patterns=[SHARDS[0], INDEX, "config.json"])
        result = self.assert_ok(self.pack("o/n", HF_TOKEN=hub_client.TOKEN))
        self.assertIn("as far as it goes (1 of 2 weight files)", result.stderr)
        self.assert_ok(self.run_program("verify", self.out, "--source", self.source))
        self.hub.assert_token_stayed_home()
        self.assert_refused(self.pack("o/n", self.scratch / "x", **OFFLINE), SHARDS[1], "hf download o/n",
                            notes=["o/n@main is commit"])

    def test_a_branch_with_a_slash(self):
        self.hub.repositories["o/n"].branches["feature/x"] = self.commit
        for path in self.hub.files("o/n", "feature/x"):
            hf_hub_download("o/n", path, revision="feature/x", cache_dir=self.cache, endpoint=self.hub.url,
                            token=hub_client.TOKEN)
        self.assert_ok(self.pack("o/n@feature/x", **OFFLINE))
        self.assert_refused(self.pack("o/n", self.scratch / "x", **OFFLINE), "o/n@main", "no cache here knows")


if __name__ == "__main__":
    main()
