"""What a person sees each second while a server is slow, stalls or is dead: in packing, verifying, publishing and
answering; below an answer, which stays whole; and what there is where nobody looks.

Nothing is drawn in the first two seconds, and silence is told from its third second on: all cases wait for that at the
same time."""

import re
import subprocess
import sys
from pathlib import Path

from checkpoints import packed_tiny, write_big
from common import QUICK, EndToEnd, clean_environment, main, path_from_environment
from screen import Terminal, cells

QUESTION = "What is the capital of France?"
PARIS = "The capital of France is Paris."
SHORT_SILENCE = {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # and the seconds over which libcurl averages a rate: seven in all
SLOW = 60_000  # bytes per second and connection
PIECES = re.compile(r"[\r\n]+|\x1b(?:\[[0-9;?]*[@-~]|[78D])")
SERVER = Path(__file__).resolve().parent.parent / "support" / "range_server.py"


class Waiting(EndToEnd):
    def open(self, program, *arguments, columns=100, rows=24, env=None):
        command = [path_from_environment(program), *map(str, arguments)]
        return self.open_command(command, columns, rows, env)

    def open_command(self, command, columns=100, rows=24, env=None):
        try:
            terminal = Terminal(command, clean_environment(self.scratch, env), columns, rows)
        except OSError as error:
            self.skipTest("this machine has no pseudo-terminals: %s" % error)
        self.addCleanup(terminal.close)
        return terminal

    @staticmethod
    def record(terminal, until=lambda: False, seconds=120):
        """Prints the last row of each second, as docs/chat.md shows it. Returns all rows and lines that were drawn,
        in order: what is seen for a moment only counts as well."""
        shown = terminal.record(until, "the end", seconds)
        print("".join("  %3d  %s\n" % (second, rows[-1]) for second, rows in enumerate(shown, 1)), flush=True)
        return [piece for piece in PIECES.split(terminal.bytes) if piece]

    def serve_apart(self, folder, *arguments):
        """A server that can be killed: its process and its address."""
        process = subprocess.Popen([sys.executable, "-u", str(SERVER), str(folder), *arguments], text=True,
                                   stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, process.stdout.readline().strip()

    def assert_in_order(self, rows, *patterns):
        """Each pattern matches a row, in this order; what is between does not matter."""
        rest = iter(rows)
        for pattern in patterns:
            self.assertTrue(any(re.search(pattern, row) for row in rest), "%r, in this order, in %s" % (patterns, rows))


class Packing(Waiting):
    def setUp(self):
        super().setUp()
        self.source = write_big(self.scratch / "source")

    def a_slow_server(self):
        server = self.serve(self.source, rate=SLOW)
        terminal = self.open("DSPACK_RESHARD", server.url, "--by", "expert", "--out", self.scratch / "out")
        wanted = r"packing: [\d.]+ kB of 600\.2 kB, \d of 2 files, [\d.]+ kB/s, \d+ s left$"

        def faster():
            if re.search(wanted, terminal.screen.text()):
                server.rate = None
            return False
        rows = self.record(terminal, faster)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, "^" + wanted)

    def a_server_that_stalls_once(self):
        server = self.serve(self.source)
        server.add_fault("*.safetensors", "stall", min_bytes=200_000, times=2)
        terminal = self.open("DSPACK_RESHARD", server.url, "--by", "expert", "--out", self.scratch / "out", "--jobs", 2,
                             env=SHORT_SILENCE)
        rows = self.record(terminal)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, r"^packing: .*, no byte for [345] s$", r"^packing: .*, no byte for [678] s$")
        self.assertIn("sealed", terminal.screen.text())

    def a_dead_server(self):
        process, url = self.serve_apart(self.source, "--rate", str(SLOW))
        # With shorter seconds the fourth pause would be over before silence is told.
        terminal = self.open("DSPACK_RESHARD", url, "--by", "expert", "--out", self.scratch / "out", "--dev", "retries=4",
                             "--jobs", 2, "--dev", "pause=0.75")

        def kill():
            if re.search("packing: [1-9]", terminal.screen.text()):
                process.kill()
            return False
        rows = self.record(terminal, kill)
        self.assertEqual(terminal.process.wait(), 1)
        self.assert_in_order(rows, r"^packing: .*, no byte for \d+ s, retry [34] of 4",
                             r"^packing: .*, no byte for \d+ s, retry 4 of 4 in \d s$")
        self.assertRegex(terminal.screen.text().replace("\n", ""), "reshard: .*gave up after 5 attempts$")
        self.assertNotIn("packing", terminal.screen.text(), "the line is gone")

    def headers_and_a_long_pause(self):
        server = self.serve(self.source)
        server.add_fault("*.safetensors", "503", times=1, retry_after=6)
        terminal = self.open("DSPACK_RESHARD", "inspect", server.url)
        rows = self.record(terminal)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, "^reading headers: 1 of 2 files$",
                             r"^reading headers: 1 of 2 files, no answer for \d s, retry 1 of 11 in \d s$")
        self.assertRegex(terminal.screen.text().replace("\n", ""), "503.*; trying again in 6 s")

    def without_a_terminal_many_pauses_are_one_line(self):
        server = self.serve(self.source)
        server.add_fault("*.safetensors", "503", skip=2)
        result = self.run_program(server.url, "--by", "expert", "--out", self.scratch / "out", "--dev", "retries=6",
                                  *QUICK)
        lines = result.stderr.splitlines()
        self.assertEqual(len([line for line in lines if "trying again" in line]), 1, result)
        self.assertIn("gave up", lines[-1])
        self.assertEqual(len(lines), 2, result)

    def a_line_of_wide_characters_climbs_over_nothing(self):
        name = "\u6a21\u578b" * 10
        write_big(self.scratch / "served" / name)
        server = self.serve(self.scratch / "served")
        server.add_fault("*.json", "stall")
        place = server.url + "/" + name
        shell = 'echo above; "$0" inspect "$1"'
        terminal = self.open_command(["/bin/sh", "-c", shell, path_from_environment("DSPACK_RESHARD"), place],
                                     columns=50)
        rows = terminal.record(lambda: terminal.bytes.count("\x1b[J") > 3, "a line", 30)
        self.assertEqual([row[:7] for row in rows[-1]], ["above", "opening"], rows[-1])
        self.assertLessEqual(sum(map(cells, rows[-1][1])), 49)
        self.assertTrue(rows[-1][1].endswith("..."), rows[-1])


class Elsewhere(Waiting):
    def verifying_off_a_server_that_stalls(self):
        server = self.serve(packed_tiny())
        server.add_fault("*.safetensors", "stall", min_bytes=200_000, times=1)
        terminal = self.open("DSPACK_RESHARD", "verify", server.url, env=SHORT_SILENCE)
        rows = self.record(terminal)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, r"^verifying: .*, no byte for [345] s")

    def publishing_to_a_storage_that_is_busy(self):
        hub = self.serve_hub()
        hub.add_fault("PUT", "uploads/*", "503", times=1, retry_after=6)
        terminal = self.open("DSPACK_RESHARD", "publish", packed_tiny("layer"), "--repo", "org/packed",
                             env={"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token})
        rows = self.record(terminal)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, r"^sending: .*, no byte for \d s, retry 1 of 11 in \d s$")


class Answering(Waiting):
    """The experts come slowly over the network; the answer is that of the local model."""

    RATE = 150_000  # the prompt takes four seconds
    TOKEN_RATE = 40_000  # a token takes longer than the second after which it is told what it waits for

    def ask(self, *question, rate=RATE, **options):
        server = self.serve(packed_tiny())
        self.slow = server.add_fault("*experts*", "slow", rate=rate)
        self.server = server
        return self.open("DSPACK_DSRUN", server.url, "--cache", self.scratch / "cache", "--temp", "0", *question, **options)

    def seen(self, terminal, after):
        """Slower once the answer has begun, and fast once enough was seen."""
        if re.search(after, terminal.screen.text()):
            self.slow.options["rate"] = 50_000_000
        elif re.search("^1 token", terminal.screen.text(), re.M):
            self.slow.options["rate"] = self.TOKEN_RATE
        return False

    def a_prompt_and_its_answer(self):
        terminal = self.ask(QUESTION)
        rows = self.record(terminal, lambda: self.seen(terminal, "tokens/s, experts from the network"))
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, r"^prompt: layer \d of 5, \d+ experts?, [\d.]+ [kM]B, [\d.]+ [kM]B/s, \d+ s left$",
                             r"^\d+ tokens?(, [\d.]+ tokens/s)?, experts from the network: [\d.]+ kB$")
        self.assertIn("\n%s\n" % PARIS, terminal.screen.text())
        for word in ("prompt: ", "experts from"):
            self.assertNotIn(word, terminal.screen.text(), "the line is gone")

    def at_the_bottom_of_a_narrow_terminal(self):
        terminal = self.ask("Tell me a tale.", columns=40, rows=4, env={"NO_COLOR": "1"})
        drawn = self.record(terminal, lambda: self.seen(terminal, r"Once upon[^\n]*\n+\d+ tokens, .*experts"))
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(drawn, r"^prompt: layer .{22}\.\.\.$", r"^\d+ tokens, .*experts.*\.\.\.$")
        self.assertTrue(all(len(piece) < 40 for piece in drawn if re.match("prompt: |\\d+ tokens", piece)), drawn)
        self.assertNotIn("\x1b[2m", terminal.bytes)
        told = self.run_program(packed_tiny(), "--temp", "0", "Tell me a tale.", program="DSPACK_DSRUN").stdout
        answer = "".join(row.ljust(40) for row in terminal.screen.text().split("\n"))
        self.assertIn(told.split("\n")[0], re.sub(r"(?<=\S) +$", "", answer), "the answer's rows, joined, are its text")

    def a_chat(self):
        terminal = self.ask()
        terminal.wait_for_bytes("\r\n> ")
        before = len(terminal.screen.text())
        terminal.mark()
        terminal.type(QUESTION + "\r")
        terminal.wait_for_bytes("1 token")
        self.slow.options["rate"] = self.TOKEN_RATE
        terminal.wait_for_bytes("tokens/s, experts from the network")
        self.slow.options["rate"] = 50_000_000
        terminal.wait_for("\n>")
        self.assertEqual(terminal.screen.text()[before - 1:], "> %s\n%s\n>" % (QUESTION, PARIS))
        self.assertIn("prompt: layer", terminal.bytes)
        terminal.type("\x04")
        self.assertEqual(terminal.process.wait(timeout=60), 0)

    def experts_that_stall(self):
        terminal = self.ask(QUESTION, rate=50_000_000, env=SHORT_SILENCE)
        self.server.clear_faults()
        self.server.add_fault("*experts*", "stall", times=1, skip=3)
        rows = self.record(terminal)
        self.assertEqual(terminal.process.wait(), 0)
        self.assert_in_order(rows, r"^prompt: layer \d of 5, .*, no byte for [345] s")
        self.assertIn("\n%s\n" % PARIS, terminal.screen.text())

    def two_words(self):
        server = self.serve(packed_tiny())
        self.slow = server.add_fault("*experts*", "slow", rate=self.RATE)
        return [server.url, "--temp", "0", QUESTION, "-n", "2", "--cache", self.scratch / "cache"]

    def pipes_get_none_of_it(self):
        piped = self.run_program(*self.two_words(), program="DSPACK_DSRUN")
        self.assertEqual((self.assert_ok(piped).stdout, piped.stderr), ("The capital\n", ""))

    def quiet_programs_get_none_of_it(self):
        terminal = self.open("DSPACK_DSRUN", *self.two_words(), "--quiet")
        terminal.record(lambda: False, "the end", 120)
        self.assertEqual((terminal.process.wait(), terminal.bytes), (0, "The capital\r\n"))

    def an_answer_into_a_file_has_the_line_alone(self):
        answer = self.scratch / "answer"
        shell = '"$0" "$@" > "%s"' % answer
        terminal = self.open_command(["/bin/sh", "-c", shell, path_from_environment("DSPACK_DSRUN"),
                                      *map(str, self.two_words())])
        rows = self.record(terminal, lambda: self.seen(terminal, "1 token, experts"))
        self.assertEqual(terminal.process.wait(), 0)
        self.assertEqual(answer.read_text(), "The capital\n")
        self.assert_in_order(rows, "^prompt: layer", r"^1 token, experts from")
        self.assertNotIn("\x1bD", terminal.bytes)


class Seen(EndToEnd):
    def test_each_second(self):
        packed_tiny(), packed_tiny("layer")  # before threads want them
        self.together(
            *map(Packing, ("a_slow_server", "a_server_that_stalls_once", "a_dead_server", "headers_and_a_long_pause",
                           "without_a_terminal_many_pauses_are_one_line",
                           "a_line_of_wide_characters_climbs_over_nothing")),
            *map(Elsewhere, ("verifying_off_a_server_that_stalls", "publishing_to_a_storage_that_is_busy")),
            *map(Answering, ("a_prompt_and_its_answer", "at_the_bottom_of_a_narrow_terminal", "a_chat",
                             "experts_that_stall", "pipes_get_none_of_it", "quiet_programs_get_none_of_it",
                             "an_answer_into_a_file_has_the_line_alone")))


if __name__ == "__main__":
    main()
