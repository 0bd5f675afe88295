"""What the tests of the Hub as source share: a Hub with one small checkpoint, and the words to judge what came of it."""

import json
import os

from checkpoints import write_small
from common import QUICK, EndToEnd


class HubCase(EndToEnd):
    """`self.hub` has `o/n`, made of the folder `self.source`; `self.whole` is what that folder packs to."""
    options = {}  # of the server

    def setUp(self):
        super().setUp()
        self.source = self.write_source()
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.out = self.scratch / "packed"
        self.hub = self.serve_hub(**self.options)
        self.hub.add("o/n", self.source)

    def write_source(self):
        return write_small(self.scratch / "files")

    def env(self, token="", **more):
        """`token` None: the one that may read everything."""
        token = self.hub.token if token is None else token
        return {"HF_ENDPOINT": self.hub.url, **({"HF_TOKEN": token} if token else {}), **more}

    def pack(self, place="o/n", *arguments, out=None, token="", env=None, **options):
        env = {**self.env(token), **(env or {})}
        return self.repack(place, out or self.out, *QUICK, *arguments, env=env, **options)

    def commit_of(self, revision="main", repo="o/n"):
        return self.hub.repositories[repo].head(revision).id

    def origin(self, out=None):
        return json.loads(((out or self.out) / "manifest.json").read_text())["origin"]

    def assert_same_weights(self, out=None):
        """A repository on the Hub is named in manifest and card; all else is as from a folder."""
        self.assert_same_weight_files(out)
        self.assert_ok(self.run_program("verify", out or self.out, "--source", self.source))

    def assert_same_weight_files(self, out=None):
        out = out or self.out
        paths = [path.relative_to(self.whole) for path in (self.whole / "model").rglob("*.safetensors")]
        self.assertGreater(len(paths), 0)
        for path in paths:
            self.assertEqual((out / path).read_bytes(), (self.whole / path).read_bytes(), path)

    def fill_cache(self, repo="o/n", revision="main", leave_out=(), cache=None):
        """A snapshot as huggingface_hub leaves it. Returns its folder."""
        root = (cache or self.scratch / "hub") / ("models--" + repo.replace("/", "--"))
        commit = self.hub.repositories[repo].head(revision)
        snapshot = root / "snapshots" / commit.id
        for path, file in commit.files.items():
            if path in leave_out:
                continue
            blob, link = root / "blobs" / file.etag, snapshot / path
            for folder in (blob.parent, link.parent):
                folder.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(file.content.read())
            link.symlink_to(os.path.relpath(blob, link.parent))
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / revision).write_text(commit.id)
        return snapshot

    def asked(self, method="*", path="*", host="*"):
        return [(entry.method, entry.path) for entry in self.hub.requests(method, path, host)]
