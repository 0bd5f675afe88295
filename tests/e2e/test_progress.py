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
    def test_what_is_seen(self):
        self.together(*map(Progress, (
            "a_slow_server_has_rate_and_time_left", "a_server_that_stalls_is_said_by_a_clock",
            "a_line_is_as_wide_as_the_terminal_is_now", "the_line_is_gone_before_anything_else_is_printed",
            "a_server_that_does_not_answer_is_being_opened", "quiet_is_quiet")))

    def watch(self, *arguments, columns=100, until=lambda shown, terminal: False):
        """Runs reshard on a terminal until it has ended, or enough was seen: `until` is asked again and again, with
        what was shown so far and the terminal. Returns the exit status (None: it was still running), and what was shown
        with its times."""
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
        while process.poll() is None and time.monotonic() - begin < 60 and not until(shown, ours):
            time.sleep(0.05)
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

    def a_slow_server_has_rate_and_time_left(self):
        server = self.serve(self.data())
        _, shown = self.watch(server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "1MB",
                              until=lambda shown, _: len(self.lines(list(shown))) > 6)
        self.assertGreater(shown[0][0], 1.5, "what is over in two seconds needs no line")
        lines = self.lines(shown)
        self.assertGreater(len(lines), 5)
        self.assertRegex(lines[-1], r"^packing: [\d.]+ MB of 15\.2 MB, \d+ of \d+ files, .*B/s, \d+ s left$")

    def a_server_that_stalls_is_said_by_a_clock(self):
        server = self.serve(self.data())
        server.add_fault("*.safetensors", "stall", min_bytes=100_000)
        _, shown = self.watch(server.url, "--by", "expert", "--out", self.scratch / "out",
                              until=lambda shown, _: any("no byte for 6 s" in text for _, text in list(shown)))
        lines = self.lines(shown)
        silent = [int(number) for number in re.findall(r", no byte for (\d+) s", "\n".join(lines))]
        self.assertEqual(sorted(set(silent)), list(range(3, max(silent) + 1)), lines)  # each second, from the third on
        self.assertGreaterEqual(max(silent), 6)
        self.assertNotIn(" left", lines[-1])

    def a_line_is_as_wide_as_the_terminal_is_now(self):
        server = self.serve(self.data())

        def until(shown, terminal):
            last = ["", *self.lines(list(shown))][-1]
            if len(last) == 39:
                self.resize(terminal, 24)
            return len(last) == 23
        _, shown = self.watch(server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "1MB",
                              columns=40, until=until)
        lines = self.lines(shown)
        self.assertTrue(all(len(line) < 40 for line in lines), lines)
        self.assertTrue(any(len(line) == 39 and line.endswith("...") for line in lines), lines)
        self.assertTrue(len(lines[-1]) == 23 and lines[-1].endswith("..."), lines)

    def the_line_is_gone_before_anything_else_is_printed(self):
        server = self.serve(self.data())
        code, shown = self.watch(server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "5MB")
        self.assertEqual(code, 0)
        self.assertRegex("".join(text for _, text in shown), "(s left|B/s)\r\r\x1b\\[Jnote: nothing vouched for .*\r\n$")

    def a_server_that_does_not_answer_is_being_opened(self):
        server = self.serve(self.data())
        server.add_fault("*", "stall")
        _, shown = self.watch("inspect", server.url,
                              until=lambda shown, _: any("4 s, " in text for _, text in list(shown)))
        self.assertRegex(self.lines(shown)[-1], r"^opening http://127\.0\.0\.1:\d+: [45] s, no byte for [345] s$")

    def quiet_is_quiet(self):
        server = self.serve(self.data())
        code, shown = self.watch(server.url, "--by", "expert", "--out", self.scratch / "out", "--limit-rate", "5MB",
                                 "--quiet")
        self.assertEqual((code, shown), (0, []))


if __name__ == "__main__":
    main()
