"""What the tests of publishing share: a Hub of one's own, runs that are searched for secrets, and the judgement over what
lies there afterwards."""

import hashlib
import json

from checkpoints import packed_tiny
from common import QUICK, EndToEnd, tree
from hub_server import HubServer

TOKEN = "hf_" + "s3cretOfTheTest" * 2
REPO = "me/ds-packed"
COMPLETE = "every path, size and digest is that of the manifest"
SEALING = {"manifest.json", "model.safetensors.index.json", "README.md"}
NEVER_SHOWN = (TOKEN, "Signature=", "signature=", "?Expires")


class PublishCase(EndToEnd):
    def setUp(self):
        super().setUp()
        self.folder = packed_tiny()

    def new_hub(self, **options):
        hub = HubServer(token=TOKEN, **options)
        hub.__enter__()
        self.addCleanup(hub.__exit__, None, None, None)
        self.addCleanup(hub.assert_token_stayed_home)
        return hub

    def environment(self, hub, token=TOKEN):
        return {"HF_ENDPOINT": hub.url, **({"HF_TOKEN": token} if token else {})}

    def start_publishing(self, hub, folder, *arguments, repo=REPO, token=TOKEN, **options):
        env = self.environment(hub, token)
        return self.start("publish", folder, "--repo", repo, *QUICK, *arguments, env=env, **options)

    def finish(self, process, *arguments, **options):
        result = super().finish(process, *arguments, **options)
        for secret in NEVER_SHOWN:
            self.assertNotIn(secret, result.stdout + result.stderr, "a secret is shown: " + str(result))
        return result

    def publish(self, hub, folder=None, *arguments, **options):
        return self.finish(self.start_publishing(hub, folder or self.folder, *arguments, **options))

    # Judging ----------------------------------------------------------------------------------------------------

    def assert_published(self, hub, folder=None, revision="main", repo=REPO):
        """The repository has exactly the folder's files, beside the Hub's own .gitattributes."""
        wanted = {path: digest for path, digest in tree(folder or self.folder).items() if digest != "folder"}
        found = hub.files(repo, revision)
        found.pop(".gitattributes", None)
        self.assertEqual(sorted(set(found) ^ set(wanted)), [], "only on one side")
        self.assertEqual([path for path in wanted if found[path] != wanted[path]], [], "different")

    def assert_commits_in_order(self, hub, revision="main", repo=REPO, limit=100):
        """At no commit did anything lie there that looks sealed and is not; none is too large, none was made twice."""
        commits = [commit for commit in reversed(hub.commits(repo, revision))]
        for before, commit in zip(commits, commits[1:]):
            changed = {path for path in {*before.files, *commit.files} - {".gitattributes"}
                       if path not in before.files or path not in commit.files
                       or before.files[path].oid != commit.files[path].oid}
            if commit.title.startswith("Packed repository") and "(#" not in commit.title:
                self.assertLessEqual(len(changed), limit, commit.title)
                self.assertTrue(changed, "%s changes nothing" % commit.title)
            self.assert_honest(commit)
        titles = [commit.title for commit in commits]
        self.assertEqual(len(titles), len(set(titles)), titles)

    def assert_honest(self, commit):
        """If there is a manifest, all that it names is there."""
        if "manifest.json" not in commit.files:
            return
        manifest = json.loads(commit.files["manifest.json"].content.read())
        wanted = {entry["path"]: entry["sha256"] for entry in manifest["files"] + manifest["companions"]}
        found = {path: file.content.sha256 for path, file in commit.files.items()}
        self.assertEqual([path for path in wanted if found.get(path) != wanted[path]], [], commit.title)

    def assert_refused_unchanged(self, hub, result, *needles, notes=()):
        """Refused, and nothing was asked of the server that changes anything."""
        self.assert_refused(result, *needles, notes=notes)
        self.assertEqual([request.raw_path for request in hub.requests() if request.method not in ("GET", "HEAD")], [])


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
