"""Bytes that come wrong or change midway. What shows, by its version, size or form, is refused. Plain HTTP carries no
digest, so that the rest does not show: then the result holds what came, and `verify --source` finds it."""

import hashlib
import os
import shutil
import time

import faults
import safetensors_io
from checkpoints import SHARDS
from common import main

CORRUPTIONS = 100 if faults.LONG else 9
CHANGES = 20 if faults.LONG else 3


class Changes(faults.ServerCase):
    def assert_found_by_verify(self, out, source):
        self.assert_ok(self.run_program("verify", out))  # it holds what came
        found = self.run_program("verify", out, "--source", source)
        self.assertEqual(found.code, 1, str(found))
        self.assertIn("model.layers.", found.stdout, str(found))

    def test_a_byte_that_comes_wrong(self):
        header = {name: safetensors_io.parse((self.source / name).read_bytes())[1] for name in SHARDS}

        def start(number):
            shard = self.random.choice(SHARDS)
            size = (self.source / shard).stat().st_size
            in_header = number % 5 == 0
            at = self.random.randrange(0, header[shard]) if in_header else self.random.randrange(header[shard], size)
            return self.begin("corrupt", number, [(shard, "corrupt", dict(at=at))])

        with self.tally("one bit flipped on the way: refused, or found by verify --source") as tally:
            for what, server, armed, out, process in self.side_by_side(CORRUPTIONS, start):
                with tally.repetition(what):
                    result = self.finish(process)
                    self.assertGreater(armed[0].struck, 0, "did not strike")
                    if result.code == 0:
                        self.assert_found_by_verify(out, self.source)
                    else:
                        self.assertIn(server.url, self.assert_stopped_clearly(result))
                        self.assert_absent(out / "manifest.json")

    def test_bytes_that_change_under_the_same_version(self):
        with self.tally("bytes changed midway, same ETag: refused, or found by verify --source") as tally:
            for number in range(CHANGES):
                at = self.random.randrange(250_000, 299_000)
                with tally.repetition("byte %d" % at):
                    source = self.scratch / ("changing-%d" % number)
                    shutil.copytree(self.source, source)
                    server = self.serve(source)
                    slow = server.add_fault(SHARDS[1], "slow", min_bytes=100_000, rate=400_000)
                    out = self.scratch / ("changed-%d" % number)
                    process = self.start(server.url, "--by", "expert", "--out", out, "--jobs", 1)
                    self.wait_until(lambda: slow.struck, "the transfer")
                    times = (source / SHARDS[1]).stat()
                    with open(source / SHARDS[1], "r+b") as file:
                        file.seek(at)
                        file.write(b"\xff\xfe\xfd")
                    os.utime(source / SHARDS[1], ns=(times.st_atime_ns, times.st_mtime_ns))
                    result = self.finish(process)
                    if result.code == 0:
                        # The whole file was one or the other version, or a mixture: told apart from the first one.
                        self.assert_found_by_verify(out, self.source)
                    else:
                        self.assert_stopped_clearly(result)
                        self.assert_absent(out / "manifest.json")

    def test_a_bit_flipped_on_the_way_with_a_list(self):
        sums = self.scratch / "sums"
        sums.write_text("".join("%s  %s\n" % (hashlib.sha256((self.source / name).read_bytes()).hexdigest(), name)
                                for name in SHARDS))
        with self.tally("one bit flipped on the way, digests known by --sha256: refused, then the same bytes") as tally:
            for number in range(CHANGES):
                with tally.repetition("change %d" % number):
                    server = self.serve(self.source)
                    fault = server.add_fault(self.random.choice(SHARDS), "corrupt", min_bytes=100_000, times=1,
                                             at=self.random.randrange(70_000, 299_000))
                    out = self.scratch / ("listed-%d" % number)
                    command = [server.url, out, "--sha256", sums, "--jobs", self.random.choice((1, 4))]
                    result = self.repack(*command)
                    self.assertEqual(fault.struck, 1, "did not strike")
                    self.assertRegex(self.assert_stopped_clearly(result), "SHA-256")
                    self.assert_nothing_wrong_sealed(out, self.whole)
                    self.assert_ok(self.repack(*command))
                    self.assert_same_tree(out, self.whole)

    def test_a_file_that_is_replaced_midway(self):
        """After half of a shard another file has its name, with other bytes: nothing may be taken from that one."""
        def other_bytes(content):
            return content[:-5] + bytes(5)

        kinds = {"new ETag, same size": (other_bytes, False), "new ETag, larger": (lambda content: other_bytes(content) + b"\0", False),
                 "new ETag, smaller": (lambda content: content[:-5], False),
                 "same ETag, larger": (lambda content: other_bytes(content) + b"\0", True),
                 "same ETag, smaller": (lambda content: content[:-5], True)}
        with self.tally("a file replaced midway, new ETag or size or both: refused") as tally:
            for number in range(max(CHANGES, len(kinds))):
                what, (change, same_etag) = list(kinds.items())[number % len(kinds)]
                with tally.repetition(what):
                    self.replace_midway("%d" % number, change, same_etag)

    def replace_midway(self, name, change, same_etag):
        source = self.scratch / ("replaced-" + name)
        shutil.copytree(self.source, source)
        server = self.serve(source)
        shard = source / SHARDS[0]
        info = shard.stat()

        def replace():
            (source / "new").write_bytes(change(shard.read_bytes()))
            os.replace(source / "new", shard)
            if same_etag:
                server.add_fault(SHARDS[0], "change_etag", etag="%x-%x" % (info.st_mtime_ns, info.st_size))

        cut = server.add_fault(SHARDS[0], "truncate", min_bytes=100_000, times=1, then=replace)
        out = self.scratch / ("replaced-out-" + name)
        result = self.repack(server.url, out, "--jobs", self.random.choice((1, 4)))
        self.assertEqual(cut.struck, 1, "did not strike")
        self.assertRegex(self.assert_stopped_clearly(result), "changed|replaced")
        self.assert_nothing_wrong_sealed(out, self.whole)
        again = self.assert_stopped_clearly(self.repack(server.url, out))
        self.assertRegex(again, "source has changed|trailing bytes|truncated")


if __name__ == "__main__":
    main()
