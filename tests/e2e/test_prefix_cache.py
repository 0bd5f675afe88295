"""dsrun serve --cache-ram and --cache-disk: conversations that alternate in one place, restarts, damaged files; answers
are those without a cache."""

import hashlib
import http.client
import json
import os
import re
import struct

from common import EndToEnd, flip_bit, main

def make_rows_nan(file):
    """FP32 rows of a saved block, with the digest that goes with them."""
    data = file.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    rows = begin + header["tokens"]["data_offsets"][1]
    whole = data[begin:rows] + struct.pack("<f", float("nan")) * ((len(data) - rows) // 4)
    was = header["__metadata__"]["sha256"].encode()
    file.write_bytes(data[:begin].replace(was, hashlib.sha256(whole).hexdigest().encode()) + whole)


QUESTIONS = ["What is the capital of France?", "My name is Anna.", "Once upon a time"]


class PrefixCache(EndToEnd):
    def start_server(self, *arguments):
        self.process = self.start("serve", self.data(), "--port", "0", "--device", "cpu", *arguments,
                                  program="DSPACK_DSRUN")
        said = ""
        while "/v1" not in said:
            line = self.process.stderr.readline().decode()
            self.assertTrue(line, said)
            said += line
        self.port = int(re.search(r":([0-9]+)/v1", said)[1])
        return said

    def stop_server(self):
        self.process.terminate()
        result = self.finish(self.process, 60)
        self.assertEqual(result.code, 0, str(result))
        return result.stderr

    def status_of(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def ask(self, path, body=None):
        status, text = self.status_of(path, body)
        self.assertEqual(status, 200, text)
        return text

    def say(self, conversation, text):
        """Appends the message and its answer; returns the usage: tokens of the prompt, and those of them found."""
        conversation.append({"role": "user", "content": text})
        whole = json.loads(self.ask("/v1/chat/completions", {"messages": conversation, "temperature": 0, "max_tokens": 24}))
        conversation.append(whole["choices"][0]["message"])
        usage = whole["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def counts(self):
        return {name: float(value) for name, value in re.findall(r"^dspack_(\w+) (\S+)$", self.ask("/metrics"), re.M)}

    def talks(self, rounds):
        """Three conversations in turn: their messages, and the usages of the last round."""
        talks = [[] for _ in QUESTIONS]
        for _ in range(rounds):
            usages = [self.say(talk, question) for talk, question in zip(talks, QUESTIONS)]
        return talks, usages

    def test_conversations_that_alternate_go_on_where_they_were(self):
        self.start_server()
        wanted, lost = self.talks(3)
        self.assertNotIn("prefix_cache", json.loads(self.ask("/props")))
        self.stop_server()
        self.start_server("--cache-ram", "100MB")
        talks, usages = self.talks(3)
        self.assertEqual(talks, wanted)
        for (prompt, found), (_, before) in zip(usages, lost):
            # All but the new message, with what the template writes before and after it; nothing was left without.
            self.assertLess(prompt - found, 20)
            self.assertGreater(found, before)
        counts = self.counts()
        self.assertGreater(counts["prefix_cache_memory_tokens_total"], 0)
        self.assertEqual(counts["prefix_cache_disk_bytes"], 0)
        props = json.loads(self.ask("/props"))["prefix_cache"]
        self.assertEqual((props["memory_limit_bytes"], props["memory_bytes"]),
                         (100_000_000, counts["prefix_cache_memory_bytes"]))
        self.assertEqual(self.stop_server(), "")

    def test_conversations_go_on_after_a_restart(self):
        self.start_server()
        wanted, _ = self.talks(3)
        self.stop_server()
        folder = self.scratch / "prefixes"
        self.start_server("--cache-disk", folder)
        talks, usages = self.talks(2)
        self.assertEqual(self.stop_server(), "")
        self.assertEqual(os.stat(folder).st_mode & 0o77, 0)  # what was said is nobody else's business
        self.start_server("--cache-disk", folder, "--parallel", "2")
        for talk, question, (prompt, _) in zip(talks, QUESTIONS, usages):
            _, found = self.say(talk, question)
            self.assertGreaterEqual(found, prompt)
        self.assertEqual(talks, wanted)
        self.assertGreater(self.counts()["prefix_cache_disk_tokens_total"], 0)
        # A killed one leaves what it had answered.
        self.say(talks[0], "hello")
        before = self.say(talks[0], "hello")
        self.assertEqual(self.stop_server(), "")
        self.start_server("--cache-disk", folder)
        prompt, found = self.say(talks[0], "hello")
        self.assertGreater(found, before[0])
        self.process.kill()
        self.finish(self.process)

    def test_damaged_files_and_those_of_another_model_are_said(self):
        folder = self.scratch / "prefixes"
        self.start_server("--cache-disk", folder)
        wanted, _ = self.talks(1)
        self.stop_server()
        files = sorted(folder.glob("kv-*.safetensors"))
        self.assertEqual(len(files), len(QUESTIONS))
        for file in files:
            flip_bit(file, file.stat().st_size - 1)
        self.start_server("--cache-disk", folder)
        talks, usages = self.talks(1)
        self.assertEqual(talks, wanted)
        self.assertEqual([found for _, found in usages][0], 0)
        said = self.stop_server()
        self.assertEqual(said.count("SHA-256"), len(QUESTIONS), said)
        said = self.start_server("--cache-disk", folder, "--kv-dtype", "bf16")
        self.assertIn("3 of 3 saved prefixes are left out", said)
        self.assertIn("another model", said)
        self.assertEqual(self.talks(1)[1][0][1], 0)
        # A second server in the same folder.
        refused = self.run_program("serve", self.data(), "--port", "0", "--device", "cpu", "--cache-disk", folder,
                                   program="DSPACK_DSRUN")
        self.assertEqual(refused.code, 1)
        self.assertIn("a folder of its own", refused.stderr)

    def test_rows_that_give_no_numbers_are_an_error_once_and_go(self):
        folder = self.scratch / "prefixes"
        self.start_server("--cache-disk", folder, "--kv-dtype", "f32")
        wanted, _ = self.talks(1)
        self.stop_server()
        files = sorted(folder.glob("kv-*.safetensors"))
        self.assertEqual([file.stat().st_mode & 0o777 for file in files], [0o600] * len(files))
        for file in files:
            make_rows_nan(file)
        self.start_server("--cache-disk", folder, "--kv-dtype", "f32")
        for question, talk in zip(QUESTIONS, wanted):
            body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
            status, text = self.status_of("/v1/chat/completions", body)
            self.assertEqual(status, 500, text)
            self.assertIn("could not be computed", text)
            again = json.loads(self.ask("/v1/chat/completions", body))
            self.assertEqual(again["choices"][0]["message"], talk[1])
            self.assertLess(again["usage"]["prompt_tokens_details"]["cached_tokens"], 4)  # of others, the first tokens
        said = self.stop_server().splitlines()
        self.assertEqual(len(said), len(QUESTIONS), said)
        for line in said:
            self.assertRegex(line, "logit [0-9]+ is -?nan")
        self.start_server("--cache-disk", folder, "--kv-dtype", "f32")
        talks, usages = self.talks(1)
        self.assertEqual(talks, wanted)
        self.assertGreater(min(found for _, found in usages), 0)
        self.assertEqual(self.stop_server(), "")

    def test_a_folder_that_others_may_write_to_is_refused_and_strangers_files_stay(self):
        folder = self.scratch / "prefixes"
        folder.mkdir()
        (folder / ".old-kv-backup").mkdir()
        (folder / ".old-kv-backup" / "precious").write_text("mine")
        (folder / ".kv-notes").write_text("mine")
        for mode in (0o777, 0o775, 0o757, 0o1777):
            folder.chmod(mode)
            refused = self.run_program("serve", self.data(), "--port", "0", "--device", "cpu", "--cache-disk", folder,
                                       program="DSPACK_DSRUN")
            self.assert_refused(refused, str(folder) + ": others may write to it", "chmod go-w", program="dsrun")
        if os.geteuid() == 0:
            folder.chmod(0o755)
            os.chown(folder, 12345, 12345)
            refused = self.run_program("serve", self.data(), "--port", "0", "--device", "cpu", "--cache-disk", folder,
                                       program="DSPACK_DSRUN")
            self.assert_refused(refused, str(folder) + ": belongs to another user", program="dsrun")
            os.chown(folder, 0, 0)
        folder.chmod(0o755)
        self.start_server("--cache-disk", folder)
        self.talks(1)
        self.assertEqual(self.stop_server(), "")
        self.assertEqual((folder / ".old-kv-backup" / "precious").read_text(), "mine")
        self.assertEqual((folder / ".kv-notes").read_text(), "mine")

    def test_sizes_are_checked(self):
        for options in (["--cache-ram", "x"], ["--cache-disk-size", "1GB"], ["--cache-disk", "d", "--cache-disk-size", "-1"]):
            refused = self.run_program("serve", self.data(), *options, program="DSPACK_DSRUN")
            self.assertEqual(refused.code, 2, str(refused))
        refused = self.run_program("serve", self.data(), "--device", "cpu", "--ram", "200MB", "--cache-ram", "300MB",
                                   program="DSPACK_DSRUN")
        self.assertEqual(refused.code, 1, str(refused))
        self.assertIn("--ram", refused.stderr)


if __name__ == "__main__":
    main()
