"""Servers that are wrong, rude or gone. What may pass is repeated and succeeds; what will not is refused with one line
that names the address and the reason."""

import time

import safetensors_io
from checkpoints import SHARDS, write_big
from common import INDEX, QUICK, EndToEnd, free_port, main, seeded_random


class Network(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_big(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.out = self.scratch / "packed"


class Passing(Network):
    """Faults that pass."""

    def test_faults_that_pass_are_overcome(self):
        cases = {"503 twice": [("*.safetensors", "503", dict(times=2))],
                 "500, 502, 408": [(SHARDS[0], status, dict(times=1)) for status in ("500", "502", "408")],
                 "429 with a wait": [(SHARDS[1], "429", dict(times=1, retry_after=2))],
                 "503 for companions and index": [("config.json", "503", dict(times=1)), (INDEX, "503", dict(times=2))],
                 "body cut": [("*.safetensors", "truncate", dict(times=3))],
                 "long body cut": [(SHARDS[0], "truncate", dict(times=2, min_bytes=100_000))],
                 "connection reset": [("*.safetensors", "reset", dict(times=3))],
                 "index cut": [(INDEX, "truncate", dict(times=1)), ("README.md", "reset", dict(times=1))],
                 "short answer": [(SHARDS[0], "wrong_length", dict(times=1, delta=-7))]}
        runs = {}
        for name, faults in cases.items():
            server = self.serve(self.source)
            armed = [server.add_fault(pattern, kind, **options) for pattern, kind, options in faults]
            out = self.scratch / name
            runs[name] = server, armed, out, self.start(server.url, "--by", "expert", "--out", out, "--jobs", 2, *QUICK)
        for name, (server, armed, out, process) in runs.items():
            with self.subTest(name):
                self.assert_ok(self.finish(process))
                self.assertEqual([fault.struck for fault in armed], [fault.times for fault in armed], "did not strike")
                self.assert_same_tree(out, self.whole)

    def test_a_cut_transfer_goes_on_where_it_was_cut(self):
        server = self.serve(self.source)
        server.add_fault(SHARDS[0], "truncate", times=1, min_bytes=100_000)
        self.assert_ok(self.repack(server.url, self.out, *QUICK))
        size = (self.source / SHARDS[0]).stat().st_size
        cut, rest = [r for r in server.requests(SHARDS[0]) if r.range[0] > 0]
        self.assertEqual(rest.range, (cut.range[0] + cut.sent, size))
        self.assert_same_tree(self.out, self.whole)

    def test_pauses_are_held_against_the_clock(self):
        """What a server asks for, and what it does not ask for: half a second, then twice as long."""
        asking, silent = self.serve(self.source), self.serve(self.source)
        asking.add_fault(SHARDS[1], "429", times=1, retry_after=2)
        silent.add_fault(SHARDS[1], "503", times=2)
        runs = [self.start(server.url, "--by", "expert", "--out", self.scratch / str(number))
                for number, server in enumerate((asking, silent))]
        for process in runs:
            self.assert_ok(self.finish(process))
        first, second = asking.requests(SHARDS[1])[:2]
        self.assertEqual((first.status, second.status), (429, 206))
        self.assertGreaterEqual(second.time - first.time, 2)
        first, second, third = silent.requests(SHARDS[1])[:3]
        self.assertEqual((first.status, second.status, third.status), (503, 503, 206))
        self.assertGreaterEqual(second.time - first.time, 0.5)
        self.assertGreaterEqual(third.time - second.time, 1)

    def test_a_thoroughly_bad_line(self):
        random = seeded_random()
        server = self.serve(self.source, random_seed=random.random())
        # Twice each: five failures in a row, after which the program rightly gives up, must not come about by chance.
        for kind in ("truncate", "reset"):
            server.add_fault("*.safetensors", kind, times=2, chance=0.5, min_bytes=3000)
        self.assert_ok(self.repack(server.url, self.out, *QUICK))
        self.assert_same_tree(self.out, self.whole)


class Lasting(Network):
    """Faults that last."""

    def start_before(self):
        cases = {"no ranges": (SHARDS[1], "ignore_range", {}, ["byte ranges", "gave up after 3 such answers"]),
                 "404 of a shard": (SHARDS[1], "404", {}, ["missing", "404"]),
                 "410 of a shard": (SHARDS[1], "410", {}, ["410"]),
                 "403 of a shard": (SHARDS[1], "403", {}, ["access denied", "403"]),
                 "401 of the index": (INDEX, "401", {}, ["401"]),
                 "403 with a page": (SHARDS[1], "403", dict(body="<html>\n<b>no</b>\n</html>"), ["403"]),
                 "403 with lines": (SHARDS[1], "403", dict(body="denied\n\tby policy\nreshard: all is well"), ["denied"]),
                 "400": (SHARDS[1], "400", {}, ["400"]), "418": (SHARDS[1], "418", {}, ["418"]),
                 "204": (SHARDS[1], "204", dict(body=""), ["204"]),
                 "wrong range": (SHARDS[1], "wrong_content_range", {}, ["asked for bytes", "gave up after 3 such answers"]),
                 "too long an answer": (SHARDS[0], "wrong_length", dict(delta=7), ["bytes for them", "gave up after 3 such answers"]),
                 "no end of redirects": (SHARDS[1], "redirect", dict(to=""), ["redirect"]),
                 "redirect to a file": (SHARDS[1], "redirect", dict(to="file:///etc"), []),
                 "404 of the index": (INDEX, "404", {}, ["not a checkpoint"]),
                 "503 for ever": (SHARDS[1], "503", {}, ["503", "gave up after 5 attempts"]),
                 "429 for ever": (SHARDS[1], "429", {}, ["429", "gave up"]),
                 "reset for ever": (SHARDS[1], "reset", {}, ["gave up"]),
                 "cut for ever": (SHARDS[1], "truncate", {}, ["gave up"])}
        for name, (pattern, kind, options, needles) in cases.items():
            server = self.serve(self.source)
            server.add_fault(pattern, kind, **options)
            out = self.scratch / name
            wanted = [server.url if pattern == INDEX else "%s/%s" % (server.url, pattern), *needles]
            yield name, wanted, out, self.start(server.url, "--by", "expert", "--out", out, "--dev", "retries=4",
                                                *QUICK)

    def start_during(self):
        cases = {"403": ("403", {}, ["403"]), "404": ("404", {}, ["404"]), "no ranges": ("ignore_range", {}, ["ranges", "3 such answers"]),
                 "wrong range": ("wrong_content_range", {}, ["asked for bytes"]),
                 "changed": ("change_etag", {}, ["changed"]), "503": ("503", {}, ["503", "gave up"]),
                 "reset": ("reset", {}, ["gave up"]), "too long": ("wrong_length", dict(delta=70), ["3 such answers"])}
        for name, (kind, options, needles) in cases.items():
            server = self.serve(self.source)
            server.add_fault(SHARDS[1], kind, skip=2, **options)  # two probes pass: catalogue and opening
            out = self.scratch / ("during " + name)
            wanted = ["%s/%s" % (server.url, SHARDS[1]), *needles]
            process = self.start(server.url, "--by", "expert", "--out", out, "--jobs", 1, "--dev", "retries=3", *QUICK)
            yield name, server, wanted, out, process

    def start_absent(self):
        closed = "http://127.0.0.1:%d" % free_port()
        unresolvable = "http://no-such-host.invalid"
        cases = {"unreachable port": (closed, "", [closed, "cannot reach the server"]),
                 "unresolvable host": ("org/name", unresolvable, [unresolvable + "/org/name/resolve/main/"]),
                 "no such scheme": ("org/name", "gopher://x", ["gopher://x"]), "no URL": ("http://", "", [])}
        for name, (source, endpoint, wanted) in cases.items():
            out = self.scratch / name
            process = self.start(source, "--by", "expert", "--out", out, *QUICK, env={"HF_ENDPOINT": endpoint})
            yield name, wanted, out, process

    def test_faults_that_last_are_refused_with_their_reason(self):
        before, during = [*self.start_before(), *self.start_absent()], list(self.start_during())
        for name, wanted, out, process in before:
            with self.subTest(name):
                self.assert_refused(self.finish(process), *wanted)
                self.assert_absent(out)
        for name, server, wanted, out, process in during:
            with self.subTest("during the transfer: " + name):
                self.assert_refused(self.finish(process), *wanted)
                self.assert_unfinished(out)
                server.clear_faults()
                self.assert_ok(self.repack(server.url, out))
                self.assert_same_tree(out, self.whole)

    def test_a_file_that_becomes_shorter_where_no_version_tells_of_it(self):
        server = self.serve(self.source)
        server.add_fault(SHARDS[1], "no_version", times=2)  # two probes: catalogue and opening
        server.add_fault(SHARDS[1], "shrink")
        self.assert_refused(self.repack(server.url, self.out, "--jobs", 1), server.url, SHARDS[1], "it was replaced")
        self.assert_unfinished(self.out)
        server.clear_faults()
        server.add_fault(SHARDS[1], "no_version")
        self.assert_ok(self.repack(server.url, self.out))
        self.assert_same_tree(self.out, self.whole)

    def test_a_server_that_claims_sizes_without_end(self):
        server = self.serve(self.source)
        part = 2**60  # sixteen of them overflow 64 bits
        names = ["%02d.safetensors" % number for number in range(16)]
        for number, name in enumerate(names):
            header = {"model.layers.0.t%d" % number: {"dtype": "U8", "shape": [part], "data_offsets": [0, part]}}
            head = safetensors_io.with_length(header)
            server.virtual[name] = head, len(head) + part
        safetensors_io.write_index(self.source, {"model.layers.0.t%d" % i: name for i, name in enumerate(names)})
        for shards in (1, 16):
            with self.subTest(shards=shards):
                safetensors_io.write_index(self.source, {"model.layers.0.t%d" % i: names[i] for i in range(shards)})
                process = self.start(server.url, "--by", "expert", "--out", self.out)
                started = time.monotonic()
                while process.poll() is None and time.monotonic() - started < 5:
                    time.sleep(0.05)
                process.kill()
                self.assert_refused(self.finish(process))
                self.assert_absent(self.out)


if __name__ == "__main__":
    main()
