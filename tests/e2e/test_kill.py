"""Runs that end before their time, by kill -9 among the companions, by Ctrl-C, by a failing write: the same command
goes on, and the result is that of an undisturbed run. Kills at all other moments are in tests/faults."""

import resource
import signal
import time

from checkpoints import SHARDS, write_small
from common import INDEX, EndToEnd, limit, main


class KilledWhileSealing(EndToEnd):
    """The end of a run is short; slow companions hold it open, so that kills hit it."""

    def test_kill_among_the_companions(self):
        source = write_small(self.scratch / "source")
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(source, whole))
        for name in ("LICENSE", "README.md", "config.json", INDEX):
            server = self.serve(source)
            # Looked for once before the start, and two of them read then; what comes after that is the copy.
            server.add_fault(name, "slow", skip=2 if name in ("config.json", INDEX) else 1, rate=1)
            (source / "LICENSE").write_text("x" * 70000)
            out = self.scratch / name
            process = self.start(server.url, "--by", "expert", "--out", out)
            self.wait_until(lambda: any(r.fault == "slow" for r in server.requests()), "the copy of " + name)
            process.kill()
            self.finish(process)
            self.assert_unfinished(out)
            server.clear_faults()
            self.assert_ok(self.repack(server.url, out))
            (source / "LICENSE").unlink()
            self.assertTrue((out / "LICENSE").exists())
            self.assertEqual((out / "model/embed.safetensors").read_bytes(),
                             (whole / "model/embed.safetensors").read_bytes())
            self.assert_ok(self.run_program("verify", out))


class Interrupted(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.whole = self.scratch / "whole"
        self.assert_ok(self.repack(self.source, self.whole))
        self.out = self.scratch / "packed"

    def assert_stopped(self, process, code=130):
        asked = time.monotonic()
        result = self.finish(process)
        self.assertEqual(result.code, code, str(result))
        self.assertLess(time.monotonic() - asked, 5, "it took its time to stop")
        return result

    def test_ctrl_c_and_sigterm_leave_a_state_to_go_on_from(self):
        for name in ("SIGINT", "SIGTERM"):
            server = self.serve(self.source)
            slow = server.add_fault(SHARDS[0], "slow", skip=1, rate=100)  # the catalogue's probe passes
            out = self.scratch / name
            process = self.start(server.url, "--by", "expert", "--out", out, "--jobs", 2)
            self.wait_until(lambda: slow.struck, "streaming")
            process.send_signal(getattr(signal, name))
            result = self.assert_stopped(process)
            self.assertIn("run the same command again", result.stderr)
            self.assert_unfinished(out)
            server.clear_faults()
            self.assert_ok(self.repack(server.url, out))
            self.assert_same_tree(out, self.whole)

    def test_ctrl_c_while_headers_are_read_leaves_nothing(self):
        server = self.serve(self.source)
        server.add_fault(SHARDS[1], "slow", rate=50)
        process = self.start(server.url, "--by", "expert", "--out", self.out)
        self.wait_until(lambda: server.requests(SHARDS[1]), "the catalogue")
        process.send_signal(signal.SIGINT)
        self.assert_stopped(process)
        self.assert_absent(self.out)

    def test_ctrl_c_ends_a_pause_between_attempts(self):
        server = self.serve(self.source)
        server.add_fault(SHARDS[1], "503", retry_after=60)
        process = self.start(server.url, "--by", "expert", "--out", self.out)
        self.wait_until(lambda: server.requests(SHARDS[1]), "the first refusal")
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        self.assert_stopped(process)

    def test_a_write_that_fails_ends_with_its_reason_and_can_be_repeated(self):
        for bytes_allowed in (0, 100, 4096, 6000, 9000, 16000):
            out = self.scratch / str(bytes_allowed)
            result = self.repack(self.source, out, before=limit(resource.RLIMIT_FSIZE, bytes_allowed))
            self.assert_refused(result, out, "File too large")
            self.assert_absent(out / "manifest.json")
            self.assert_ok(self.repack(self.source, out))
            self.assert_same_tree(out, self.whole)


class TwoAtOnce(EndToEnd):
    def test_the_second_run_on_a_folder_is_refused_and_the_first_is_not_harmed(self):
        source = write_small(self.scratch / "source")
        server = self.serve(source)
        slow = server.add_fault(SHARDS[0], "slow", skip=1, times=1, rate=100)
        out = self.scratch / "packed"
        first = self.start(server.url, "--by", "expert", "--out", out)
        self.wait_until(lambda: slow.struck, "the first run to stream")
        self.wait_until(lambda: (out / ".reshard" / "lock").exists(), "the lock")
        self.assert_refused(self.repack(server.url, out), out, "another reshard is working on this folder")
        self.assert_refused(self.run_program("verify", out), out, "unfinished")
        slow.options["rate"] = 1e9
        self.assert_ok(self.finish(first))
        self.assert_ok(self.repack(source, self.scratch / "whole"))
        self.assert_same_tree(out, self.scratch / "whole")


if __name__ == "__main__":
    main()
