"""What the tests that use the Hub's official client share: the Python that has it, and a hub to speak to.

Importing this file restarts the test under DSPACK_TEST_PYTHON, the virtual environment that scripts/test makes, or ends
it as one that did not run. Import it before huggingface_hub.
"""

import hashlib
import os
from pathlib import Path

from official_clients import restart_under  # before the client

CLIENT_VERSION = "2.4.0"
TOKEN = "hf_secret_of_the_test"


restart_under(["huggingface_hub"], {
    "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HOME": "/nonexistent"})

from common import EndToEnd  # noqa: E402
from huggingface_hub import HfApi  # noqa: E402
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
        """Exactly these files (and the Hub's .gitattributes): on the server, and as the client lists and downloads."""
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
