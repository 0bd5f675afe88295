"""The chat of dsrun, by a person at a (pseudo-)terminal."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment

SLOW = ["--dev", "cpu=scalar", "--threads", "1"]  # an answer of many words takes more than a second
CTRL_C, CTRL_D = "\x03", "\x04"


def whole_tale():
    """The answer that Ctrl-C cuts short."""
    return subprocess.run([path_from_environment("DSPACK_DSRUN"), str(packed_tiny()), "-p", "Tell me a tale."],
                          stdout=subprocess.PIPE, check=True).stdout.decode().rstrip()


class Chat(EndToEnd):
    def open(self, *arguments):
        try:
            self.terminal, inside = pty.openpty()
        except OSError as error:
            self.skipTest("this machine has no pseudo-terminals: %s" % error)
        self.addCleanup(os.close, self.terminal)
        self.settings = termios.tcgetattr(inside)

        def own_terminal():  # Ctrl-C is a signal to whoever the terminal belongs to
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen([path_from_environment("DSPACK_DSRUN"), str(packed_tiny()), *arguments],
                                        stdin=inside, stdout=inside, stderr=inside, preexec_fn=own_terminal,
                                        env=clean_environment(self.scratch))
        self.inside = inside
        self.addCleanup(os.close, inside)
        self.addCleanup(self.stop, self.process)
        self.seen = ""
        self.expect("> ")

    def expect(self, text, seconds=60):
        """Reads until the text has come; returns all before it, and leaves what is behind it for the next call."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.fail("waited %d s in vain for %r; the terminal shows %r" % (seconds, text, self.seen))
            self.seen += os.read(self.terminal, 4096).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text):
        os.write(self.terminal, text.encode())

    def ask(self, question):
        self.type(question + "\n")
        self.expect(question)
        return self.expect("\n> ")

    def assert_leaves(self, status=0):
        self.assertEqual(self.process.wait(timeout=30), status)
        self.assertEqual(termios.tcgetattr(self.inside), self.settings, "the terminal's settings were not restored")

    def test_it_answers_and_remembers(self):
        self.open()
        self.assertIn("The capital of France is Paris.", self.ask("What is the capital of France?"))
        self.ask("My name is Anna.")
        self.assertIn("Anna", self.ask("What is my name?"))
        self.type("/exit\n")
        self.assert_leaves()

    def test_clear_forgets(self):
        self.open()
        alone = self.ask("What is my name?")
        self.ask("/clear")
        self.ask("My name is Anna.")
        self.assertIn("forgotten", self.ask("/clear"))
        self.assertEqual(self.ask("What is my name?"), alone)
        self.type(CTRL_D)
        self.assert_leaves()

    def test_ctrl_c_stops_the_answer_only(self):
        self.open(*SLOW)
        self.type("Tell me a tale.\n")
        self.expect("Once upon")
        asked = time.monotonic()
        self.type(CTRL_C)
        rest = self.expect("(stopped)")
        self.assertLess(time.monotonic() - asked, 5)
        self.assertNotIn(whole_tale()[-20:], rest, "the tale had ended before Ctrl-C came: this case proves nothing")
        self.expect("> ")
        self.assertIsNone(self.process.poll())
        self.ask("/clear")
        self.assertIn("Paris", self.ask("What is the capital of France?"))
        self.type("/exit\n")
        self.assert_leaves()

    def test_ctrl_c_at_the_prompt_warns_and_then_leaves(self):
        self.open()
        self.type(CTRL_C)
        self.expect("Ctrl-C again")
        self.expect("> ")
        self.assertIn("Paris", self.ask("What is the capital of France?"))
        self.type(CTRL_C)
        self.expect("Ctrl-C again")
        self.type(CTRL_C)
        self.assert_leaves(130)

    def test_mistakes_do_not_end_it(self):
        self.open()
        self.assertIn("/help", self.ask("/nonsense"))
        self.assertIn("/clear", self.ask("/help"))
        self.type("\n")  # nothing said, nothing answered
        self.expect("> ")
        self.type("word " * 600 + "\\\n")  # a terminal's line holds 4095 bytes
        self.expect("... ")
        self.assertIn("context", self.ask("word " * 600 + "end"))
        self.assertIn("Paris", self.ask("What is the capital of France?"))
        self.type("/exit\n")
        self.assert_leaves()

    def test_without_a_terminal_it_answers_line_by_line(self):
        process = subprocess.run([path_from_environment("DSPACK_DSRUN"), str(packed_tiny())],
                                 input=b"What is the capital of France?\nMy name is Anna.\nWhat is my name?\n",
                                 capture_output=True, env=clean_environment(self.scratch), timeout=60)
        self.assertEqual((process.returncode, process.stderr), (0, b""))
        lines = process.stdout.decode().splitlines()
        self.assertEqual(lines[0], "The capital of France is Paris.")
        self.assertIn("Anna", lines[-1])

    def test_a_prompt_on_the_command_line_ends_with_ctrl_c(self):
        process = self.start(packed_tiny(), "-p", "Tell me a tale.", *SLOW, program="DSPACK_DSRUN")
        self.assertIn(b"Once", process.stdout.read(6))
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, str(result))
        self.assertNotIn(whole_tale()[-20:], result.stdout)


if __name__ == "__main__":
    main()
