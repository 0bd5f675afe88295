"""A program at a (pseudo-)terminal, and what its screen shows: a model of the part of xterm that dsrun and libedit use.

A sequence that the model does not know is an error, so that what is compared is what a terminal would show.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unicodedata

SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([@-~])|([=>78D]))")
MODES = {"?2004", "?1", "?25"}  # set and reset; nothing of them is seen


def cells(character):
    if unicodedata.combining(character) or character in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """Rows of cells; a wide character is followed by an empty cell. Rows that scroll away are kept in `above`."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.above, self.lines = [], [[] for _ in range(rows)]
        self.row = self.column = 0
        self.inserting = self.dim = False
        self.wraps = False  # the next character goes to the next row
        self.saved = None  # of ESC 7: row, column, dim
        self.dimmed = ""
        self.rest = ""

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
                continue
            found = SEQUENCE.match(text, at)
            if not found:
                assert len(text) - at < 12, "unknown sequence %r" % text[at:at + 12]
                self.rest = text[at:]
                return
            if found[3]:
                self.obey_single(found[3])
            else:
                self.obey(found[1], found[2])
            at = found.end()

    def put(self, character):
        if character == "\r":
            self.column, self.wraps = 0, False
        elif character == "\n":
            self.line_feed()
        elif character == "\b":
            self.column, self.wraps = max(0, self.column - 1), False
        elif character == "\t":
            self.column = min(self.columns - 1, self.column // 8 * 8 + 8)
        elif character == "\a":
            pass
        elif ord(character) < 32 or character == "\x7f":
            raise AssertionError("the program printed %r" % character)
        else:
            self.show(character)

    def line_feed(self):
        self.wraps = False
        if self.row + 1 < self.rows:
            self.row += 1
            return
        self.above.append(self.lines.pop(0))
        self.lines.append([])

    def show(self, character):
        width = cells(character)
        line = self.lines[self.row]
        if width == 0:
            at = min(self.column, len(line)) - 1
            while at > 0 and line[at] == "":
                at -= 1
            line[at] += character
            return
        if self.wraps or self.column + width > self.columns:
            self.column = 0
            self.line_feed()
            line = self.lines[self.row]
        line.extend(" " * (self.column - len(line)))
        new = [character] + [""] * (width - 1)
        if self.inserting:
            line[self.column:self.column] = new
            del line[self.columns:]
        else:
            line[self.column:self.column + width] = new
        if self.dim:
            self.dimmed += character
        self.column += width
        if self.column >= self.columns:
            self.column, self.wraps = self.columns - 1, True

    def obey_single(self, final):
        if final == "7":
            self.saved = self.row, self.column, self.dim
        elif final == "8":
            self.row, self.column, self.dim = self.saved
            self.wraps = False
        elif final == "D":
            self.line_feed()

    def obey(self, parameters, final):
        numbers = [int(part or 0) for part in parameters.split(";")] if "?" not in parameters else []
        count = max(1, numbers[0]) if numbers else 1
        line = self.lines[self.row]
        if final != "m":
            self.wraps = False
        if final in "hl" and (parameters in MODES or parameters == "4"):
            if parameters == "4":
                self.inserting = final == "h"
        elif final == "A":
            self.row = max(0, self.row - count)
        elif final == "B":
            self.row = min(self.rows - 1, self.row + count)
        elif final == "C":
            self.column = min(self.columns - 1, self.column + count)
        elif final == "D":
            self.column = max(0, self.column - count)
        elif final == "G":
            self.column = min(self.columns, count) - 1
        elif final == "H":
            self.row = min(self.rows, count) - 1
            self.column = (max(1, numbers[1]) if len(numbers) > 1 else 1) - 1
        elif final == "K" and numbers == [0]:
            del line[self.column:]
        elif final == "J" and numbers == [0]:
            del line[self.column:]
            for below in range(self.row + 1, self.rows):
                self.lines[below] = []
        elif final == "J" and numbers == [2]:
            self.lines = [[] for _ in range(self.rows)]
        elif final == "P":
            del line[self.column:self.column + count]
        elif final == "@":
            line.extend(" " * (self.column - len(line)))
            line[self.column:self.column] = [" "] * count
            del line[self.columns:]
        elif final == "m" and numbers in ([2], [22], [0]):
            self.dim = numbers == [2]
        else:
            raise AssertionError("unknown sequence ESC[%s%s" % (parameters, final))

    def resize(self, columns, rows):
        """As xterm: rows are cut, not wrapped again."""
        self.columns = columns
        for line in self.lines:
            del line[columns:]
        while len(self.lines) < rows:
            self.lines.append([])
        while len(self.lines) > rows:
            if self.row == len(self.lines) - 1:
                self.above.append(self.lines.pop(0))
                self.row -= 1
            else:
                self.lines.pop()
        self.rows, self.column, self.wraps = rows, min(self.column, columns - 1), False

    def text(self):
        """Everything that was shown, of rows that have scrolled away, too."""
        return "\n".join("".join(line).rstrip() for line in self.above + self.lines).rstrip()


class Terminal:
    def __init__(self, command, environment, columns=80, rows=24):
        self.outside, self.inside = pty.openpty()
        self.screen = Screen(columns, rows)
        self.bytes = ""
        self.set_size(columns, rows)
        self.settings = termios.tcgetattr(self.inside)

        def own_terminal():  # Ctrl-C is a signal to whoever the terminal belongs to
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(command, stdin=self.inside, stdout=self.inside, stderr=self.inside,
                                        preexec_fn=own_terminal, env={"TERM": "xterm", **environment})
        self.undecoded = b""

    def set_size(self, columns, rows):
        fcntl.ioctl(self.inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows=24):
        self.screen.resize(columns, rows)
        self.set_size(columns, rows)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.outside)
        os.close(self.inside)

    def read(self):
        data = self.undecoded + os.read(self.outside, 65536)
        for cut in range(4):  # a character may come in two pieces
            try:
                text = data[:len(data) - cut].decode()
                self.undecoded = data[len(data) - cut:]
                break
            except UnicodeDecodeError:
                continue
        else:
            raise AssertionError("the program printed bytes that are no UTF-8: %r" % data[-80:])
        self.bytes += text
        self.screen.feed(text)

    def wait(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            ready, _, _ = select.select([self.outside], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError("waited %d s in vain for %s; the terminal shows\n%s\nlast bytes: %r"
                                     % (seconds, what, self.screen.text(), self.bytes[-300:]))
            self.read()

    def wait_for(self, text):
        """Until the screen's text, whole, ends in this."""
        self.wait(lambda: self.screen.text().endswith(text), "an end in %r" % text)

    def wait_for_bytes(self, text):
        """Until the program has printed this since the last call of `mark`."""
        self.wait(lambda: text in self.bytes, "%r" % text)

    def mark(self):
        self.bytes = ""

    def record(self, until, what, seconds=60):
        """What the screen shows once a second, as lists of rows, until the condition holds or the program has ended."""
        begin, shown = time.monotonic(), []
        while not until() and self.process.poll() is None:
            now = time.monotonic()
            if now - begin > seconds:
                raise AssertionError("waited %d s in vain for %s; each second showed\n%s"
                                     % (seconds, what, "\n".join(map(repr, shown))))
            if self.has_more(max(0.0, begin + len(shown) + 1 - now)):
                self.read()
            while time.monotonic() >= begin + len(shown) + 1:
                shown.append(self.screen.text().split("\n"))
        while self.has_more(0):
            self.read()
        return shown

    def has_more(self, seconds):
        return bool(select.select([self.outside], [], [], seconds)[0])

    def type(self, text):
        """Writes while reading, so that neither side waits for the other."""
        data = text.encode()
        while data:
            readable, writable, _ = select.select([self.outside], [self.outside], [], 60)
            if readable:
                self.read()
            if writable:
                data = data[os.write(self.outside, data[:1024]):]
