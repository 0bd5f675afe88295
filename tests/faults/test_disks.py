"""Disks that fill up, are too small or must not be written, as real mounts where the system lets us make them. Folders
without permission are in tests/e2e/test_bad_checkpoint.py."""

import errno
import os
import subprocess
import time
import unittest

import faults
from checkpoints import SHARDS, write_big, write_small
from common import main, seeded_random

PAYLOAD = 3_000_000  # of each of two shards
DISK_BYTES = 24 << 20
FILLINGS = 60 if faults.LONG else 6


class OnDisk(faults.FaultCase):
    def mount(self, size):
        """A file system of its own, in memory. Skips, loudly, where we may not mount."""
        folder = self.scratch / "disk"
        folder.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "tmpfs", folder], capture_output=True)
        if made.returncode != 0:
            raise unittest.SkipTest("a small disk cannot be mounted here: " + made.stderr.decode().strip())
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        return folder

    @staticmethod
    def remount(disk, options):
        subprocess.run(["mount", "-o", "remount," + options, disk], check=True)


def fill(path, leave):
    """Takes the disk's free space away but for `leave` bytes."""
    taken = 0
    with open(path, "wb") as file:
        while True:
            space = os.statvfs(path.parent)
            free = space.f_bavail * space.f_frsize - leave
            if free <= 0:
                return
            try:
                os.posix_fallocate(file.fileno(), taken, free)
                taken += free
            except OSError as refused:  # the program was faster with the last of it: less is left now
                if refused.errno != errno.ENOSPC:
                    raise


class Full(OnDisk):
    def setUp(self):
        super().setUp()
        self.source = write_big(self.scratch / "source", PAYLOAD)
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))

    def test_a_disk_that_fills_up_at_random_moments(self):
        disk = self.mount(DISK_BYTES)
        random = seeded_random()
        server = self.serve(self.source, rate=6e6)  # half a second for a shard
        ballast = disk / "ballast"
        out = disk / "packed"
        stopped = 0
        with self.tally("another program fills the disk at random moments") as tally:
            for number in range(FILLINGS):
                leave, jobs = random.choice((0, 4096, 100_000, 1_000_000)), random.choice((1, 4))
                with tally.repetition("filling %d, %d bytes left, --jobs %d" % (number, leave, jobs)):
                    process = self.start(server.url, "--by", "expert", "--out", out, "--jobs", jobs)
                    self.wait_until(lambda: (out / ".reshard/journal").exists() or process.poll() is not None, "a start")
                    time.sleep(random.uniform(0, 0.5))
                    fill(ballast, leave)
                    result = self.finish(process)
                    if result.code != 0:
                        line = self.assert_stopped_clearly(result)
                        self.assertIn(str(out), line)
                        self.assertRegex(line, "No space left on device|too little disk")
                        stopped += 1
                    self.assert_nothing_wrong_sealed(out, self.whole)
                    ballast.unlink()
                    self.assert_ok(self.repack(server.url, out))
                    self.assert_same_tree(out, self.whole)
                    subprocess.run(["rm", "-rf", out], check=True)
        self.assertGreater(stopped, 0, "the disk was never full in time")

    def test_a_disk_that_is_too_small_is_refused_before_the_start(self):
        disk = self.mount(2 * PAYLOAD)
        with self.tally("a disk that is too small from the start") as tally:
            with tally.repetition("two shards on a disk of their size"):
                self.assert_refused(self.repack(self.source, disk / "packed"), disk / "packed", "too little disk")
                self.assert_absent(disk / "packed")


class ReadOnly(OnDisk):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))

    def test_a_read_only_disk(self):
        disk = self.mount(DISK_BYTES)
        out = disk / "packed"
        server = self.serve(self.source)
        with self.tally("a target on a read-only disk: new, unfinished, complete") as tally:
            with tally.repetition("a new output"):
                self.remount(disk, "ro")
                self.assert_refused(self.repack(self.source, out), out, "Read-only file system")
                self.assert_absent(out)
            self.remount(disk, "rw")
            server.add_fault(SHARDS[1], "403", skip=1)
            self.assert_stopped_clearly(self.repack(server.url, out, "--jobs", 1))
            server.clear_faults()
            with tally.repetition("an unfinished output"):
                self.remount(disk, "ro")
                line = self.assert_stopped_clearly(self.repack(server.url, out))
                self.assertIn(str(out), line)
                self.assertIn("Read-only file system", line)
                self.remount(disk, "rw")
                self.assert_ok(self.repack(server.url, out))
                self.assert_same_tree(out, self.whole)
            with tally.repetition("a complete output"):
                self.remount(disk, "ro")
                self.assert_ok(self.repack(server.url, out))
                self.assert_ok(self.run_program("verify", out))


if __name__ == "__main__":
    main()
