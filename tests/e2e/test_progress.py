"""What a person sees of long work, on a terminal of a given width and where there is none: a server that is slow, one
that stalls, and one that is gone."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time

from common import EndToEnd, clean_environment, main, path_from_environment

ERASE = re.compile(r"\r\x1b\[J")


class Progress(EndToEnd):
    def watch(self, seconds, *arguments, columns=100, then=None):
        """Runs reshard on a terminal for so long at most; `then` is called with the terminal after half of the time.
        Returns the exit status (None: it was still running), and what was shown with its times."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        self.resize(ours, columns)
        process = subprocess.Popen([path_from_environment("DSPACK_RESHARD"), *map(str, arguments)], stdin=theirs,
                                   stdout=subprocess.DEVNULL, stderr=theirs,
                                   env=clean_environment(self.scratch, {"TERM": "xterm"}))
        os.close(theirs)
        shown, begin = [], time.monotonic()

        def read():
            while True:
                try:
                    text = os.read(ours, 65536).decode()
                    shown.append((time.monotonic() - begin, text))
                except OSError:
                    return
        reader = threading.Thread(target=read)
        reader.start()
        while process.poll() is None and time.monotonic() - begin < seconds:
            time.sleep(0.05)
            if then and time.monotonic() - begin > seconds / 2:
                then(ours)
                then = None
        code = process.poll()
        if code is None:
            process.kill()
            process.wait()
        reader.join()
        return code, shown

    @staticmethod
    def resize(terminal, columns):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    @staticmethod
    def lines(shown):
        lines = [line.strip("\r") for line in ERASE.split("".join(text for _, text in shown))]
        return [line for line in lines if line]

    def test_a_slow_server_has_rate_and_time_left(self):
        server = self.serve(self.data())
        _, shown = self.watch(5, server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "1MB")
        self.assertGreater(shown[0][0], 1.5, "what is over in two seconds needs no line")
        lines = self.lines(shown)
        self.assertGreater(len(lines), 5)
        self.assertRegex(lines[-1], r"^packing: [\d.]+ MB of 15\.2 MB, \d+ of \d+ files, .*B/s, \d+ s left$")

    def test_a_server_that_stalls_is_said_by_a_clock(self):
        server = self.serve(self.data())
        server.add_fault("*.safetensors", "stall", min_bytes=100_000)
        _, shown = self.watch(9, server.url, "--by", "expert", "--out", self.scratch / "out")
        lines = self.lines(shown)
        silent = [int(number) for number in re.findall(r", no byte for (\d+) s", "\n".join(lines))]
        self.assertEqual(sorted(set(silent)), list(range(3, max(silent) + 1)), lines)  # each second, from the third on
        self.assertGreaterEqual(max(silent), 6)
        self.assertNotIn(" left", lines[-1])

    def test_a_line_is_as_wide_as_the_terminal_is_now(self):
        server = self.serve(self.data())
        _, shown = self.watch(8, server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "1MB",
                              columns=40, then=lambda terminal: self.resize(terminal, 24))
        lines = self.lines(shown)
        self.assertTrue(all(len(line) < 40 for line in lines), lines)
        self.assertTrue(any(len(line) == 39 and line.endswith("...") for line in lines), lines)
        self.assertTrue(len(lines[-1]) == 23 and lines[-1].endswith("..."), lines)

    def test_the_line_is_gone_before_anything_else_is_printed(self):
        server = self.serve(self.data())
        code, shown = self.watch(8, server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "4MB")
        self.assertEqual(code, 0)
        self.assertRegex("".join(text for _, text in shown), "(s left|B/s)\r\r\x1b\\[Jnote: nothing vouched for .*\r\n$")

    def test_a_server_that_does_not_answer_is_being_opened(self):
        server = self.serve(self.data())
        server.add_fault("*", "stall")
        _, shown = self.watch(5, "inspect", server.url)
        self.assertRegex(self.lines(shown)[-1], r"^opening http://127\.0\.0\.1:\d+: [45] s, no byte for [345] s$")

    def test_quiet_is_quiet(self):
        server = self.serve(self.data())
        code, shown = self.watch(8, server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "4MB",
                                 "--quiet")
        self.assertEqual((code, shown), (0, []))


if __name__ == "__main__":
    main()
