"""Publishing and the Hub's official client, one beside the other: what either puts there, the other knows."""

import json
import shutil

from hub_client import TOKEN, Client  # first: it restarts this file where the client is
from checkpoints import packed_tiny, write_small
from common import main, tree
from huggingface_hub import ModelCard
from publishing import REPO, PublishCase

COMPLETE = "every path, size and digest is that of the manifest"


class Both(Client, PublishCase):
    def environment(self, hub, token=TOKEN):
        return super().environment(hub, TOKEN)

    def files_of(self, folder):
        return {path: (folder / path).read_bytes() for path, digest in tree(folder).items() if digest != "folder"}

    def test_the_client_reads_what_was_published(self):
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(self.hub, layered))
        files = self.files_of(layered)
        self.assert_holds(REPO, files)
        verified = self.api.verify_repo_checksums(REPO, local_dir=layered)
        self.assertEqual((verified.checked_count, verified.mismatches, verified.missing_paths),
                         (len(files), [], [".gitattributes"]))
        self.assertEqual([commit.title for commit in self.api.list_repo_commits(REPO)][-1], "initial commit")

    def test_what_the_client_has_uploaded_is_checked(self):
        self.api.create_repo(REPO)
        self.api.upload_folder(repo_id=REPO, folder_path=self.folder)
        self.assertIn(COMPLETE, self.assert_ok(self.publish(self.hub, None, "--check")).stdout)
        commits = len(self.hub.commits(REPO))
        self.assertIn("all of it", self.assert_ok(self.publish(self.hub)).stdout)
        self.assertEqual(len(self.hub.commits(REPO)), commits)
        self.api.delete_file("model/embed.safetensors", REPO)
        result = self.publish(self.hub, None, "--check")
        self.assertEqual((result.code, result.stdout), (1, "model/embed.safetensors: is missing there\n"), str(result))

    def test_what_the_client_has_begun_is_completed(self):
        self.api.create_repo(REPO)
        self.api.upload_folder(repo_id=REPO, folder_path=self.folder, allow_patterns=["model/layers/00[0-3]/*"])
        sent = len(self.hub.requests("PUT"))
        result = self.assert_ok(self.publish(self.hub))
        self.assertNotIn("to send  338 of 338", result.stdout)
        self.assert_published(self.hub)
        self.assertEqual(len(self.hub.requests("PUT")), len(self.hub.objects(REPO)))
        self.assertGreater(sent, 100)

    def test_the_client_merges_the_pull_request(self):
        self.hub.add(REPO, self.folder)
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(self.hub, layered, "--create-pr"))
        pull, = self.api.get_repo_discussions(REPO)
        self.assertEqual((pull.num, pull.status, pull.is_pull_request), (1, "open", True))
        self.assertEqual(self.api.get_discussion_details(REPO, 1).conflicting_files, [])
        self.api.merge_pull_request(REPO, 1)
        self.assertIn("all of it", self.assert_ok(self.publish(self.hub, layered, "--create-pr")).stdout)
        self.assert_published(self.hub, layered)

    def test_a_pull_request_that_the_client_closes_is_not_used_again(self):
        self.hub.add(REPO, self.folder)
        layered = packed_tiny("layer")
        self.assert_ok(self.publish(self.hub, layered, "--create-pr"))
        self.api.change_discussion_status(REPO, 1, "closed")
        self.assertIn("discussions/2", self.assert_ok(self.publish(self.hub, layered, "--create-pr")).stdout)
        self.assertEqual([pull.status for pull in self.hub.pull_requests(REPO)], ["closed", "open"])


class Card(Client, PublishCase):
    def packed_from_the_hub(self, card):
        source = write_small(self.scratch / "source")
        (source / "README.md").write_text(card)
        self.hub.add("some-org/Model-1.0", source)
        folder = self.scratch / "packed"
        self.assert_ok(self.repack("some-org/Model-1.0", folder, env={"HF_ENDPOINT": self.hub.url}))
        return folder

    def test_its_fields_are_what_the_client_reads(self):
        folder = self.packed_from_the_hub("---\nlicense: other\nlicense_name: 'model-1'\nlicense_link: LICENSE\n"
                                          "library_name: transformers\ntags:\n- x\n---\n# Model\n")
        card = ModelCard.load(folder / "README.md")
        self.assertEqual(card.data.to_dict(), {
            "base_model": "some-org/Model-1.0", "license": "other", "license_name": "model-1",
            "license_link": "LICENSE", "library_name": "transformers", "tags": ["dspack", "mixture-of-experts"]})
        self.assertIn("# Model-1.0, packed", card.text)
        self.assertIn("dsrun hf://ORG/Model-1.0", card.text)
        origin = json.loads((folder / "manifest.json").read_text())["origin"]
        self.assertIn("revision `%s`" % origin["revision"], card.text)

    def test_the_client_accepts_it(self):
        for card in ("# none\n", "---\nlicense: no\ntext: |\n  a: b\nlist: [a, b]\n---\n", "---\nlicense: \"mit\n"):
            folder = self.packed_from_the_hub(card)
            self.api.upload_file(path_or_fileobj=folder / "README.md", path_in_repo="README.md",
                                 repo_id=self.api.create_repo("me/card", exist_ok=True).repo_id)
            shutil.rmtree(folder)
            shutil.rmtree(self.scratch / "source")


if __name__ == "__main__":
    main()
