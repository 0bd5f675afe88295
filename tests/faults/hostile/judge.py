"""What is demanded of a program that is given a hostile input: an end within seconds, in little memory, an exit status that is
one of ours, and text that is short and cannot rule a terminal."""

import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

from common import clean_environment, is_sanitized, path_from_environment
from hostile.cases import DSRUN, RESHARD

SECONDS = 10
SANITIZED = 6  # times as long under a sanitizer
MEMORY_KIB = 512 * 1024
LINE_BYTES = 400
PREFIX = {RESHARD: "reshard: ", DSRUN: "dsrun: "}
# Controls (C0, DEL, C1), bidirectional marks and separators: what can rule a terminal.
RULES_A_TERMINAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass
class Outcome:
    program: str
    arguments: list
    status: int  # None: it was still running at its deadline
    seconds: float
    peak_kib: int
    stdout: bytes
    stderr: bytes

    def __str__(self):
        return "%s %s\n  status %s, %.1f s, %d MiB\n  stdout: %r\n  stderr: %r" % (
            PREFIX[self.program].rstrip(": "), " ".join(self.arguments)[:500], self.status, self.seconds,
            self.peak_kib // 1024, self.stdout[:600], self.stderr[-1200:])


def run(program, arguments, home, env=None):
    """Runs a command in a session of its own, and kills it at its deadline. What it took is the system's account."""
    arguments = [str(word) for word in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = subprocess.Popen([path_from_environment(program), *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, env=clean_environment(home, env), start_new_session=True)
        status, usage = wait(process, begin + SECONDS * (SANITIZED if is_sanitized(program) else 1))
        seconds = time.monotonic() - begin
        for stream in (out, err):
            stream.seek(0)
        return Outcome(program, arguments, status, seconds, usage.ru_maxrss, out.read(), err.read())


def wait(process, deadline):
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = -signal.SIGKILL
            return None, usage
        time.sleep(0.002)


def faults(outcome, statuses=(1, 2), most_lines=1):
    """What is wrong with an outcome, as sentences; none: nothing. A verb that compares may say why on stdout alone, and one
    that makes two comparisons what came of each: then `most_lines` is more than 1. What `tokenize --text` prints where there is
    no terminal is data, byte for byte (e2e_foreign_text looks at a terminal)."""
    if outcome.status is None:
        return ["took more than its time"]
    found = []
    if outcome.status not in statuses:
        found.append("ended with status %s" % outcome.status)
    if outcome.peak_kib >= MEMORY_KIB and not is_sanitized(outcome.program):
        found.append("took %d MiB" % (outcome.peak_kib // 1024))
    try:
        stdout, stderr = outcome.stdout.decode("utf-8"), outcome.stderr.decode("utf-8")
    except UnicodeDecodeError as error:
        return [*found, "printed what is no UTF-8: %s" % error]
    said = [line for line in stderr.splitlines() if line.startswith(PREFIX[outcome.program])]
    least = 0 if outcome.status == 0 or (most_lines > 1 and stdout) else 1
    if not least <= len(said) <= (most_lines if outcome.status else 0):
        found.append("printed %d lines of errors" % len(said))
    for line in [*stderr.splitlines(), *stdout.splitlines()]:
        if outcome.status != 0 and len(line.encode()) >= LINE_BYTES:
            found.append("printed a line of %d bytes" % len(line.encode()))
    shown = stderr if outcome.status == 0 and "--text" in outcome.arguments else stderr + stdout
    for line in shown.splitlines():
        if RULES_A_TERMINAL.search(line):
            found.append("printed a control character: %r" % RULES_A_TERMINAL.search(line).group())
    return found
