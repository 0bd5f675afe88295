"""The Hub's local cache: a snapshot of the very commit is read instead of the network, file by file."""

import os
import shutil

from checkpoints import SHARDS, write_small
from common import INDEX, flip_bit, main
from hub_case import HubCase

OFFLINE = {"HF_HUB_OFFLINE": "1"}


class Cache(HubCase):
    def assert_said(self, result, *needles):
        """One of the notes on stderr holds all of them."""
        lines = [line for line in result.stderr.split("\n") if all(str(needle) in line for needle in needles)]
        self.assertEqual(len(lines), 1, str(result))

    def fetched(self):
        return [path for method, path in self.asked("GET", host="hub") if "/resolve/" in path]


class Snapshots(Cache):
    def test_a_whole_one_is_read_instead_of_the_network(self):
        snapshot = self.fill_cache()
        result = self.assert_ok(self.pack())
        self.assert_said(result, "o/n@main is commit " + self.commit_of(), "read from the local snapshot", snapshot)
        self.assert_same_weights()
        self.assertEqual(self.origin(), {"kind": "hub", "repository": "o/n", "revision": self.commit_of()})
        commit = self.commit_of()
        self.assertEqual(self.asked(), [("HEAD", "o/n/resolve/main/config.json"),
                                        ("GET", "o/n/resolve/%s/manifest.json" % commit),  # there is none
                                        ("GET", "api/models/o/n/tree/" + commit)])
        shutil.rmtree(self.scratch / "hub")
        other = self.scratch / "from-network"
        self.assert_ok(self.pack(out=other))
        self.assert_same_tree(self.out, other)

    def test_where_the_cache_is(self):
        for number, (folder, env) in enumerate((("hub", {}), ("a", {"HF_HUB_CACHE": "a"}), ("b", {"HUGGINGFACE_HUB_CACHE": "b"}),
                                                ("c", {"HF_HUB_CACHE": "c", "HUGGINGFACE_HUB_CACHE": "none"}),
                                                ("d/hub", {"HF_HOME": "d"}),
                                                ("e/huggingface/hub", {"HF_HOME": "", "XDG_CACHE_HOME": "e"}),
                                                (".cache/huggingface/hub", {"HF_HOME": ""}))):
            with self.subTest(env):
                self.fill_cache(cache=self.scratch / folder)
                env = {name: str(self.scratch / value) if value else "" for name, value in env.items()}
                self.assert_ok(self.pack(out=self.scratch / str(number), env={**env, **OFFLINE}))
                shutil.rmtree(self.scratch / folder)
        self.assertEqual(self.asked(), [])

    def test_offline(self):
        snapshot = self.fill_cache()
        for number, place in enumerate(("o/n", "hf://o/n@" + self.commit_of())):
            out = self.scratch / str(number)
            self.assert_said(self.assert_ok(self.pack(place, out=out, env=OFFLINE)), "read from the local snapshot", snapshot)
            self.assert_same_weights(out)
            self.assertEqual(self.origin(out)["revision"], self.commit_of())
            self.assertEqual((out / "README.source.md").read_text(), "# small\n")
        self.assertEqual(self.asked(), [])
        online = self.scratch / "online"
        self.assert_ok(self.pack(out=online))
        self.assert_same_tree(self.scratch / "0", online)

    def test_a_stale_name_is_asked_for_and_offline_believed(self):
        self.fill_cache()
        before = self.commit_of()
        self.hub.commit("o/n", {"notes.txt": b"new\n"})
        self.assert_ok(self.pack(env=OFFLINE))
        self.assertEqual(self.origin()["revision"], before)
        online = self.scratch / "online"
        result = self.assert_ok(self.pack(out=online))
        self.assertNotIn("snapshot", result.stderr)
        self.assertEqual(self.origin(online)["revision"], self.commit_of())
        self.assertTrue((online / "notes.txt").exists())

    def test_a_partial_one_is_completed_by_the_network(self):
        self.fill_cache(leave_out=[SHARDS[1], "README.md"])
        result = self.assert_ok(self.pack())
        self.assert_said(result, "read from the local snapshot as far as it goes (1 of 2 weight files)")
        self.assert_same_weights()
        self.assertEqual({path.rpartition("/")[2] for path in self.fetched()}, {SHARDS[1], "README.md", "manifest.json"})
        self.assertEqual((self.out / "README.source.md").read_text(), "# small\n")

    def test_a_partial_one_offline_names_what_is_missing(self):
        snapshot = self.fill_cache(leave_out=[SHARDS[1]])
        result = self.pack(env=OFFLINE)
        self.assert_refused(result, snapshot, SHARDS[1], "HF_HUB_OFFLINE is set",
                            "hf download o/n --revision " + self.commit_of(), notes=["o/n@main is commit"])
        self.fill_cache(repo="o/n", cache=self.scratch / "other", leave_out=[INDEX])
        self.assert_refused(self.pack(env={**OFFLINE, "HF_HUB_CACHE": str(self.scratch / "other")}), "HF_HUB_OFFLINE is set",
                            "hf download", notes=["o/n@main is commit"])
        self.assert_absent(self.out)
        self.assertEqual(self.asked(), [])

    def test_without_a_network_the_name_means_what_it_meant_last(self):
        snapshot = self.fill_cache()
        env = {"HF_ENDPOINT": "http://no-such-host.invalid"}
        result = self.assert_ok(self.pack(env=env))
        self.assert_said(result, "cannot reach", "continuing with the local copy of commit " + self.commit_of())
        self.assert_said(result, "read from the local snapshot", snapshot)
        self.assert_same_weights()
        other = self.scratch / "by-commit"
        self.assert_refused(self.pack("o/n@" + self.commit_of(), out=other, env=env), "HF_HUB_OFFLINE=1 uses the local cache",
                            notes=["o/n@"])

    def test_damage_in_the_cache_is_found(self):
        snapshot = self.fill_cache()
        blob = (snapshot / SHARDS[0]).resolve()
        flip_bit(blob, -1)
        for env in ({}, OFFLINE):
            result = self.pack("o/n", "--jobs", 1, env=env)
            # The other shard, which is read first, is good.
            notes = ["o/n@main", "%s: unf" % self.out, "resuming: 1 of 2"] if env else ["o/n@main"]
            self.assert_refused(result, blob, "SHA-256", "declares", "remove it", notes=notes)
            self.assert_absent(self.out / "manifest.json")
        with open(blob, "r+b") as file:
            file.truncate(blob.stat().st_size - 5)
        self.assert_refused(self.pack(), blob, notes=["o/n@main", "%s: unf" % self.out])
        blob.unlink()  # its link dangles: the network has it
        self.assert_ok(self.pack())
        self.assert_same_weights()

    def test_a_blob_that_is_not_what_is_declared(self):
        snapshot = self.fill_cache()
        blob = (snapshot / SHARDS[0]).resolve()
        blob.rename(blob.with_name("0" * 64))
        (snapshot / SHARDS[0]).unlink()
        (snapshot / SHARDS[0]).symlink_to("../../blobs/" + "0" * 64)
        self.assert_refused(self.pack("o/n", "--jobs", 1), "0" * 64, notes=["o/n@main"])

    def test_links_that_lead_out_are_not_followed(self):
        secret = self.scratch / "secret.txt"
        secret.write_text("secret")
        snapshot = self.fill_cache()
        for name, target in (("stolen.txt", secret), ("up.txt", "../../../../secret.txt"), ("folder", "/etc")):
            (snapshot / name).symlink_to(target)
        (snapshot / "README.md").unlink()
        (snapshot / "README.md").symlink_to(secret)
        os.mkfifo(snapshot / "pipe.txt")
        self.assert_ok(self.pack(env=OFFLINE))
        self.assertFalse((self.out / "stolen.txt").exists() or (self.out / "up.txt").exists() or (self.out / "folder").exists())
        self.assertFalse((self.out / "README.source.md").exists())
        online = self.scratch / "online"
        self.assert_ok(self.pack(out=online))
        self.assertEqual((online / "README.source.md").read_text(), "# small\n")

    def test_a_run_goes_on_where_its_files_are_by_now(self):
        self.hub.add_fault("GET", "*" + SHARDS[0], "404", skip=1)
        self.assert_refused(self.pack("o/n", "--jobs", 1), SHARDS[0])
        self.hub.clear_faults()
        self.fill_cache()
        result = self.assert_ok(self.pack())
        self.assert_said(result, "resuming: 1 of 2")
        self.assert_same_weights()

    def test_a_local_copy_of_another_kind_is_left_alone(self):
        self.fill_cache()
        before = sorted(self.scratch.glob("hub/**/*"))
        self.assert_ok(self.pack())
        self.assertEqual(sorted(self.scratch.glob("hub/**/*")), before, "nothing is written there")
        write_small(self.scratch / "hub" / "models--o--m")
        self.assert_refused(self.pack("o/m", out=self.scratch / "m", env=OFFLINE), "no cache here knows")


if __name__ == "__main__":
    main()
