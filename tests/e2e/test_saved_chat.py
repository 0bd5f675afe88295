"""dsrun's /save, /load and --session: a chat goes on where it was, without reading it again."""

import json
import os
import shutil
import subprocess

from common import TIMEOUT_SECONDS, EndToEnd, Result, clean_environment, flip_bit, main, path_from_environment

FIRST = ["My name is Anna.", "What is the capital of France?"]
LAST = "What is my name?"


class SavedChat(EndToEnd):
    def chat(self, lines, *options, code=0, folder=None):
        """What a chat through a pipe prints, and how many tokens of prompts it computed."""
        stats = self.scratch / "stats.json"
        command = [path_from_environment("DSPACK_DSRUN"),
                   *map(str, (folder or self.data(), "--device", "cpu", "--stats", stats, *options))]
        done = subprocess.run(command, input="".join(line + "\n" for line in lines).encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=clean_environment(self.scratch), timeout=TIMEOUT_SECONDS)
        result = Result(command, done.returncode, done.stdout, done.stderr)
        self.assertEqual(result.code, code, str(result))
        return result, json.loads(stats.read_text())["prefill"]["tokens"] if code == 0 else None

    def test_a_saved_chat_goes_on(self):
        whole, _ = self.chat(FIRST + [LAST])
        file = self.scratch / "anna.chat"
        begun, read = self.chat(FIRST + ["/save %s" % file])
        rest, more = self.chat(["/load %s" % file, LAST])
        self.assertEqual(begun.stdout + rest.stdout, whole.stdout)
        self.assertIn("Anna", rest.stdout)
        self.assertLess(more, read)
        # A session does both by itself, and a system message stays.
        session = self.scratch / "session"
        whole, _ = self.chat(FIRST + [LAST], "--system", "Be brief.")
        parts = [self.chat([line], "--session", session, *(["--system", "Be brief."] if line == FIRST[0] else []))[0]
                 for line in FIRST + [LAST]]
        self.assertEqual("".join(part.stdout for part in parts), whole.stdout)

    def test_a_session_goes_on_in_its_own_precision(self):
        for precision in ("exact", "bf16"):
            session = self.scratch / precision
            self.chat(FIRST[:1], "--session", session, "--precision", precision)
            stats = self.scratch / "stats.json"
            self.chat([LAST], "--session", session)
            self.assertEqual(json.loads(stats.read_text())["precision"], precision)
        refused, _ = self.chat([LAST], "--session", self.scratch / "exact", "--precision", "bf16", code=1)
        self.assertIn("use --precision exact", refused.stderr)
        # Of a header, which anybody may have written, no precision reaches a device that lacks it.
        self.assertIn(b'"precision":"exact"', (self.scratch / "exact").read_bytes())
        for name, words in (("fp8  ", "another"), ("fp8", "a CPU computes"), ("split", "a CPU computes")):
            forged = self.scratch / "forged"
            forged.write_bytes((self.scratch / "exact").read_bytes().replace(
                b'"precision":"exact"', b'"precision":"%s"%s' % (name.encode(), b" " * (5 - len(name)))))
            forged.chmod(0o600)
            refused, _ = self.chat([LAST], "--session", forged, code=1)
            self.assertIn(words, refused.stderr)
            self.assertIn(str(forged), refused.stderr)
        self.chat(FIRST[:1], "--session", self.scratch / "int8", "--precision", "int8")
        refused = self.run_program(self.data(), "--session", self.scratch / "int8", "--device", "cuda", program="DSPACK_DSRUN")
        self.assertIn("only a CPU has it", refused.stderr)

    def test_a_shard_that_was_replaced_by_one_of_its_size_and_time_is_another_model(self):
        folder = self.scratch / "model"
        shutil.copytree(self.data(), folder)
        file = self.scratch / "a.chat"
        self.chat(FIRST[:1] + ["/save %s" % file], folder=folder)
        again, _ = self.chat(["/load %s" % file, LAST], folder=folder)
        self.assertIn("Anna", again.stdout)
        shard = sorted(folder.glob("*.safetensors"))[0]
        other, times = self.scratch / "other", shard.stat()
        shutil.copy2(shard, other)
        flip_bit(other, other.stat().st_size - 1)
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.replace(shard)
        self.assertEqual((shard.stat().st_size, shard.stat().st_mtime_ns), (times.st_size, times.st_mtime_ns))
        result, _ = self.chat(["/load %s" % file], folder=folder)
        self.assertIn("another model", result.stderr)

    def test_what_cannot_be_loaded_is_said_and_left_as_it_is(self):
        file = self.scratch / "a.chat"
        self.chat(FIRST[:1] + ["/save %s" % file])
        notes = self.scratch / "notes.txt"
        notes.write_text("mine")
        result, _ = self.chat(["/save %s" % file, FIRST[0], "/save %s" % notes, "/load %s" % notes,
                               "/load %s" % (self.scratch / "nothing"), "/save %s" % (self.scratch / "no" / "folder")])
        said = result.stderr.splitlines()
        self.assertEqual(len(said), 5, result.stderr)
        for line, word in zip(said, ("nothing was answered yet", "something else of that name", "saved KV cache", "nothing", "folder")):
            self.assertIn(word, line)
        self.assertEqual(notes.read_text(), "mine")
        result, _ = self.chat(["/load %s" % file], "--kv-dtype", "bf16")
        self.assertIn("another model", result.stderr)
        result, _ = self.chat(["/load %s" % file], "--ctx", "5")
        self.assertIn("--ctx 5", result.stderr)
        flip_bit(file, file.stat().st_size - 1)
        result, _ = self.chat(["/load %s" % file])
        self.assertIn("SHA-256", result.stderr)
        damaged = file.read_bytes()
        result, _ = self.chat([FIRST[0]], "--session", file, code=1)
        self.assertEqual((result.stdout, file.read_bytes()), ("", damaged))
        # One that others can have written, or that a link leads to; and nobody else may read it.
        chat = self.scratch / "b.chat"
        self.chat(FIRST[:1] + ["/save %s" % chat])
        self.assertEqual(chat.stat().st_mode & 0o777, 0o600)
        link = self.scratch / "link"
        link.symlink_to(chat)
        for path, mode, words in ((chat, 0o602, "others may write to it"), (link, 0o600, "symbolic link")):
            chat.chmod(mode)
            result, _ = self.chat(["/load %s" % path])
            self.assertIn(str(path) + ": ", result.stderr)
            self.assertIn(words, result.stderr)
            refused, _ = self.chat([FIRST[0]], "--session", path, code=1)
            self.assertIn(words, refused.stderr)
        if os.geteuid() == 0:
            os.chown(chat, 12345, 12345)
            result, _ = self.chat(["/load %s" % chat])
            self.assertIn("belongs to another user", result.stderr)
        refused = self.run_program(self.data(), "-p", "x", "--session", file, program="DSPACK_DSRUN")
        self.assertEqual(refused.code, 2)


if __name__ == "__main__":
    main()
