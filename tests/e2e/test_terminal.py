"""Typing in a chat: keys, history, pastes, wide characters, resizing, Ctrl-C, commands; the screens compared."""

import os
import stat
import termios

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment
from screen import Terminal

SLOW = ["--dev", "cpu=scalar", "--threads", "1"]  # an answer of many words takes more than a second
CTRL_C, CTRL_D, CTRL_R = "\x03", "\x04", "\x12"
UP, DOWN, LEFT, RIGHT, HOME, END, DELETE = "\x1b[A", "\x1b[B", "\x1b[D", "\x1b[C", "\x1b[H", "\x1b[F", "\x1b[3~"
WORD_LEFT, WORD_RIGHT, ALT_ENTER = "\x1b[1;5D", "\x1b[1;5C", "\x1b\r"
PARIS = "The capital of France is Paris."


def pasted(text):
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


class Typing(EndToEnd):
    def open(self, *arguments, columns=80, wait=True, **environment):
        command = [path_from_environment("DSPACK_DSRUN"), str(packed_tiny()), "--temp", "0", *arguments]
        try:
            self.terminal = Terminal(command, clean_environment(self.scratch, environment), columns)
        except OSError as error:
            self.skipTest("this machine has no pseudo-terminals: %s" % error)
        self.addCleanup(self.terminal.close)
        if wait:
            self.terminal.wait_for_bytes("\r\n> ")
            self.begin = len(self.terminal.screen.text())

    def type(self, text, until="\n> "):
        """Types, and returns what the program printed until this came."""
        self.terminal.mark()
        self.terminal.type(text)
        if until:
            self.terminal.wait_for_bytes(until)
        return self.terminal.bytes

    def shown(self):
        """The screen since the first prompt."""
        return self.terminal.screen.text()[self.begin - 1:]

    def leave(self, status=0, key=CTRL_D):
        self.type(key, until=None)
        self.assertEqual(self.terminal.process.wait(timeout=60), status)
        self.assertEqual(self.terminal.settings, termios.tcgetattr(self.terminal.inside),
                         "the terminal's settings were not restored")

    def history_file(self):
        return self.scratch / ".local" / "state" / "dspack" / "history"

    def history(self):
        return self.history_file().read_text(encoding="utf-8")

    def test_keys_edit_the_line(self):
        self.open()
        self.type("is the capitol" + LEFT + "\x7fa" + END + " Of Frances?" + LEFT + "\x7f" + HOME + "Wat " + LEFT * 3 +
                  "h" + WORD_RIGHT * 5 + WORD_LEFT + DELETE + "o\r")
        self.assertEqual(self.shown(), "> What is the capital of France?\n%s\n>" % PARIS)
        self.type("What junk" + "\x17" + "is" + HOME + "\x0b" + "\x19" + " my name?" + "\x15" + "/context\r")
        self.assertIn("\n> /context\n", self.shown())
        self.leave()
        self.assertEqual(self.history(), "What is the capital of France?\n/context\n")

    def test_sequences_do_not_become_text(self):
        self.open()
        sequences = ["\x1b[15~", "\x1b[24;5~", "\x1bOP", "\x1b[[A", "\x1b[I", "\x1b[<35;12;3M", "\x1b]11;rgb:0/0/0\x07",
                     "\x1b]0;title\x1b\\", "\x1bP1+r\x1b\\", "\x1b(B", "\x1b[?62;22c", "\x1b[27;5;9~", "\x1bz",
                     "\x1b[M !!", "\x00", "\x18", "\u009b5n", "\u0085"]
        question = "What is the capital of France?"
        typed = "".join(character + sequence for character, sequence in zip(question, sequences))
        self.type(typed + question[len(sequences):] + "\r")
        self.assertEqual(self.shown(), "> %s\n%s\n>" % (question, PARIS))
        self.leave()
        self.assertEqual(self.history(), question + "\n")

    def test_the_history_of_an_earlier_run(self):
        self.open()
        self.type("What is the capital of France?\r")
        self.type("two" + ALT_ENTER + "lines \\ n\r")
        self.leave()
        self.assertEqual(self.history(), "What is the capital of France?\ntwo\\nlines \\\\ n\n")
        self.assertEqual(stat.S_IMODE(self.history_file().stat().st_mode), 0o600)
        self.open()
        self.type(UP * 2 + DOWN + UP + "\r")
        self.assertEqual(self.shown(), "> What is the capital of France?\n%s\n>" % PARIS)
        self.type(CTRL_R + "lines", until="lines")
        self.type("\r")
        self.assertIn("> two\nlines \\ n\n", self.shown())
        self.leave()
        self.open("--no-history")
        self.type(UP + "/context\r")
        self.assertIn("> /context\n0 of 1024", self.shown())
        self.leave()
        self.assertNotIn("context", self.history())

    def test_two_chats_at_once_keep_both_histories(self):
        self.open()
        first = self.terminal
        self.open()
        self.type("/context\r")
        second, self.terminal = self.terminal, first
        self.type("/stats\r")
        self.leave()
        self.terminal = second
        self.leave()
        self.assertEqual(self.history(), "/context\n/stats\n")

    def test_a_long_paste_is_one_message(self):
        self.open()
        text = "".join("line %d of a text\n" % i for i in range(5600))
        self.assertGreater(len(text), 100_000)
        answer = self.type(pasted(text) + "\r")
        self.assertIn("> [paste 1: 5601 lines, %.1f kB]\n" % (len(text) / 1000), self.shown())
        self.assertIn("the context", answer.replace("\r\n", " "))
        self.type(pasted("What is the\n  capital of France?") + "\r")
        self.assertIn("> What is the\n  capital of France?\n", self.shown())
        self.leave()
        self.assertEqual(self.history(), "What is the\\n  capital of France?\n")

    def test_wide_characters(self):
        self.open()
        self.type("日本語 e\u0301a 🙂!" + LEFT * 2 + "\x7f" + LEFT * 8 + "x" + RIGHT + "\x7f" + END + "ß\r")
        self.leave()
        typed = self.history().rstrip("\n")
        self.assertEqual(self.shown().splitlines()[0], "> " + typed)
        self.assertIn("🙂!ß", typed)
        self.assertNotIn("\ufffd", typed)

    def test_narrow_and_wide_terminals(self):
        words = " ".join("word%d" % i for i in range(12))
        for columns in (40, 200):
            self.open(columns=columns)
            self.type("/nonsense" + words + HOME + "\x0b" + "/zzzz " + words + LEFT * 30 + END + "\r")
            shown = "> /zzzz " + words
            rows = [shown[i:i + columns] for i in range(0, len(shown), columns)]
            self.assertEqual([row.rstrip() for row in rows], self.shown().splitlines()[:len(rows)])
            self.leave()

    def test_resizing_while_typing_and_while_answering(self):
        self.open(*SLOW)
        self.type("What is the capital", until="capital")
        self.terminal.mark()
        self.terminal.resize(50)
        self.terminal.wait_for_bytes("> What is the capital")
        self.type(" of France?\r")
        self.assertTrue(self.terminal.screen.text().endswith("\n> What is the capital of France?\n%s\n>" % PARIS))
        self.type("/clear\r")
        self.type("Tell me a tale.\r", until="Once")
        self.terminal.resize(100)
        self.terminal.wait_for_bytes("\r\n> ")
        self.type("What is the capital of France?\r")
        self.assertIn("Paris", self.terminal.screen.text().splitlines()[-2])
        self.leave()

    def test_ctrl_c_at_every_stage(self):
        self.open(wait=False)
        self.terminal.wait_for_bytes("loading")
        self.terminal.type(CTRL_C)
        self.terminal.wait(lambda: "interrupted" in self.terminal.bytes or "\n> " in self.terminal.bytes, "its end")
        if "interrupted" in self.terminal.bytes:  # else it had loaded by then
            self.assertEqual(self.terminal.process.wait(timeout=60), 130)
        self.open(*SLOW)
        self.type("some words", until="words")
        self.type(CTRL_C)
        self.assertEqual(self.shown(), "> some words\n>")
        self.type(CTRL_C)
        self.assertEqual(self.shown(), "> some words\n>\n(Ctrl-C again or /exit leaves)\n>")
        self.type("Tell me a tale.\r", until="Once")
        self.type(CTRL_C)
        self.assertIn("(stopped)", self.shown())
        self.type("/clear\r")
        self.type("word " * 160 + "END\r", until="END\r\n")  # a prompt that is read for a while
        self.terminal.mark()
        self.terminal.type(CTRL_C)
        self.terminal.wait(lambda: any(text in self.terminal.bytes for text in ("(stopped)", "Ctrl-C again")), "its end")
        if "Ctrl-C again" not in self.terminal.bytes:  # else the answer had ended by then
            self.terminal.wait(lambda: self.shown().endswith("END\n\n(stopped)\n>"), "an empty line, the answer")
        self.type("/context\r")
        self.type(CTRL_C, until="Ctrl-C again")
        self.leave(130, CTRL_C)

    def test_commands(self):
        note = self.scratch / "note.txt"
        note.write_text("My name is Anna.\n")
        self.open()
        self.assertIn("did you mean /stats?", self.type("/stast\r"))
        self.assertIn("/regen", self.type("/help\r"))
        self.assertIn("0 of 1024 positions", self.type("/context\r"))
        self.assertIn("nothing was answered", self.type("/regen\r"))
        self.assertIn("nowhere.txt", self.type("/read nowhere.txt\r"))
        self.assertIn("17 B are put", self.type("/read %s\r" % note).replace("\r\n", ""))
        self.assertIn("Anna", self.type("What is my name?\r"))
        once = self.type("/regen\r")
        self.assertIn("Anna", once)
        self.assertIn("temperature 0.5", self.type("/temp 0.5\r"))
        self.assertIn("/temp", self.type("/temp hot\r"))
        self.assertIn("message is set", self.type("/system You are brief.\r"))
        self.assertIn("decode", self.type("/stats\r"))
        self.assertIn("takes nothing", self.type("/clear now\r"))
        self.leave(key="/quit\r")

    def test_files_that_are_no_text(self):
        (self.scratch / "zero").write_bytes(b"a\0b")
        (self.scratch / "latin").write_bytes(b"caf\xe9")
        self.open(columns=200)
        self.assertIn("byte 1 is no text", self.type("/read %s\r" % (self.scratch / "zero")))
        self.assertIn("byte 3 is no text", self.type("/read %s\r" % (self.scratch / "latin")))
        self.assertIn("dsrun: ", self.type("/read %s\r" % self.scratch))
        self.leave()

    def test_the_repository_recommends_the_sampling(self):
        self.open(columns=200)
        self.assertNotIn("generation_config.json", self.terminal.screen.text())
        self.leave()
        command = [path_from_environment("DSPACK_DSRUN"), str(packed_tiny())]
        self.terminal = Terminal(command, clean_environment(self.scratch), 200)
        self.addCleanup(self.terminal.close)
        self.terminal.wait_for_bytes("\r\n> ")
        self.assertIn("sampling: temperature 0.6, top-p 0.95 (generation_config.json; --temp 0 is greedy)",
                      self.terminal.screen.text())
        self.leave()

    def test_without_capabilities_lines_are_plain(self):
        for terminal in ("dumb", ""):
            self.open(TERM=terminal)
            self.type("What is the capital of France?\n")
            self.assertEqual(self.shown(), "> What is the capital of France?\n%s\n>" % PARIS)
            self.assertNotIn("\x1b", self.terminal.bytes)
            self.leave()
        self.assertFalse(os.path.exists(self.history_file()))

    def test_reasoning_is_dimmed_unless_no_color(self):
        question = "Repeat: <think>"
        for environment, dims in (({}, True), ({"NO_COLOR": "1"}, False)):
            self.open("--chat-template", "deepseek-r1", **environment)
            self.type(question + "\r")
            self.assertEqual(self.terminal.screen.dimmed != "", dims, self.terminal.bytes)
            self.assertEqual("\x1b[2m" in self.terminal.bytes, dims)
            self.assertFalse(self.terminal.screen.dim)
            self.leave()

    def test_reasoning_of_one_answer_is_dimmed_too(self):
        thinking = ["--chat-template", "deepseek-v3.1", "--thinking"]
        talk = self.scratch / "talk.json"
        talk.write_text('[{"role": "user", "content": "Tell me a tale."}]')
        for question in (["-p", "Tell me a tale."], ["--chat", talk], ["-p", "Once <think>", "--raw"]):
            for switch, environment, dims in (("on", {}, True), ("off", {}, "--raw" in question),
                                              ("on", {"NO_COLOR": "1"}, False)):
                with self.subTest(question=question, switch=switch, environment=environment):
                    self.open("-q", "-n", "3", *thinking, switch, *map(str, question), wait=False, **environment)
                    self.terminal.wait_for_bytes("\r\n")  # the end of the answer
                    self.assertEqual(self.terminal.process.wait(timeout=60), 0)
                    self.assertEqual(self.terminal.screen.dimmed != "", dims, self.terminal.bytes)
                    self.assertEqual(self.terminal.bytes.count("\x1b"), 2 if dims else 0, self.terminal.bytes)
                    self.assertFalse(self.terminal.screen.dim)


if __name__ == "__main__":
    main()
