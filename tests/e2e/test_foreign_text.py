"""Text from outside reaches nobody's terminal as it is: neither what steers a terminal or turns the writing around,
nor megabytes of it. Whatever the place: names of tensors, configurations, tokenizers, manifests, answers of servers and
of the model."""

import hashlib
import json
import os
import pty
import re
import shutil
import subprocess
import time

import safetensors_io
from checkpoints import converted_tiny, copied_tiny, packed_tiny
from common import INDEX, MESSAGE_BYTES, UNPRINTABLE, EndToEnd, clean_environment, main, path_from_environment
from sealing import link_tree

STEERING = "\x1b[31m\x07\x7f\u0085\u009b2J\u202eabc\u2066\u200e\u200f\u061c\u2028\u2029"
STEERS = re.compile(UNPRINTABLE)
LONG = 1 << 20
CHAT = json.dumps([{"role": "user", "content": "Look: " + STEERING}])


def spelled(text):
    """The name of a token of these bytes in a byte-level vocabulary."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return "".join(chr(byte) if byte in visible else chr(256 + others.index(byte)) for byte in text.encode())


def reseal(packed, change):
    manifest = json.loads((packed / "manifest.json").read_text())
    change(manifest)
    manifest["seal"] = ""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["seal"] = hashlib.sha256(text.encode()).hexdigest()
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    (packed / "manifest.json").write_text(text)


class ForeignText(EndToEnd):
    def assert_shown(self, result):
        """Nothing that steers; every message is short."""
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            found = STEERS.search(text)
            self.assertIsNone(found, "%s has %r: %r" % (name, found and found.group(),
                                                        text[max(0, (found.start() if found else 0) - 80):][:200]))
        for line in result.stderr.splitlines():
            self.assertLess(len(line.encode()), MESSAGE_BYTES, line[:1000])
        return result

    def shown(self, *arguments, code, program="DSPACK_RESHARD", **options):
        result = self.assert_shown(self.run_program(*arguments, program=program, **options))
        self.assertEqual(result.code, code, str(result)[:4000])
        return result

    def dsrun(self, *arguments, **options):
        return self.shown(*arguments, program="DSPACK_DSRUN", **options)

    def folder(self, name, files):
        folder = self.scratch / name
        folder.mkdir()
        for path, content in files.items():
            (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    def with_tensors(self, name, names, byte=0):
        folder = self.scratch / name
        folder.mkdir()
        safetensors_io.write(folder / "model.safetensors", {name: ("U8", [1], bytes([byte])) for name in names})
        return folder

    def with_file(self, path, change):
        """A packed repository of which one companion is another; read without its digest by nobody but dsrun."""
        folder = link_tree(copied_tiny(), self.scratch / ("source-%d" % len(list(self.scratch.iterdir()))))
        text = (folder / path).read_text()
        (folder / path).unlink()
        (folder / path).write_text(change(text))
        return folder

    def on_terminal(self, *arguments, program="DSPACK_DSRUN", stdin=subprocess.DEVNULL):
        """What a terminal gets that is stdout and stderr of the program."""
        try:
            terminal, inside = pty.openpty()
        except OSError as error:
            self.skipTest("this machine has no pseudo-terminals: %s" % error)
        self.addCleanup(os.close, terminal)
        process = subprocess.Popen([path_from_environment(program), *map(str, arguments)], stdin=stdin, stdout=inside,
                                   stderr=inside, env=clean_environment(self.scratch))
        os.close(inside)
        self.addCleanup(process.wait)
        seen = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # EIO: nobody has the other side any more
                return seen.decode("utf-8", "replace").replace("\r\n", "\n")
            seen += piece


class Reports(ForeignText):
    def test_names_of_tensors(self):
        names = [STEERING, "model." + STEERING + ".weight", "\u202egnp.exe", "x" * LONG]
        one, other = self.with_tensors("one", names), self.with_tensors("other", names, byte=1)
        listed = self.shown("inspect", one, "--json", code=0).stdout
        self.assertEqual(sorted(json.loads(line)["name"] for line in listed.splitlines()), sorted(names))
        self.shown("inspect", one, code=0)
        text = self.shown("diff", one, other, code=1).stdout
        self.assertLess(len(text), 4000)
        lines = self.shown("diff", one, other, "--json", code=1).stdout.splitlines()
        self.assertEqual(sorted(json.loads(line)["tensor"] for line in lines), sorted(names))
        packed = self.scratch / "packed"
        self.shown(one, "--by", "layer", "--out", packed, code=0)
        findings = self.shown("verify", packed, "--source", other, code=1).stdout
        self.assertIn("differs", findings)
        for line in findings.splitlines():
            self.assertLess(len(line.encode()), MESSAGE_BYTES, line[:1000])

    def test_what_a_manifest_says_of_rounding(self):
        packed = shutil.copytree(converted_tiny("bf16-to-fp8"), self.scratch / "packed")
        for name in ("w" + STEERING, "w" * LONG, "w\nreshard: all is well"):
            def change(manifest, name=name):
                for errors in manifest["rounding_errors"].values():
                    errors["worst"]["name"] = name
            reseal(packed, change)
            text = self.shown("inspect", packed, code=0).stdout
            self.assertIn("rounded", text)
            self.assertNotIn("\nreshard: all", text)
            self.assertLess(max(map(len, text.splitlines())), 2100)

    def test_what_a_manifest_says_of_everything_else(self):
        def values(tree, path=()):
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                if isinstance(value, str) and key != "seal":
                    yield (*path, key)
                elif isinstance(value, (dict, list)) and not (path and isinstance(key, int) and key > 0):
                    yield from values(value, (*path, key))
        packed = shutil.copytree(packed_tiny("layer"), self.scratch / "packed")
        original = (packed / "manifest.json").read_text()
        places = list(values(json.loads(original)))
        self.assertGreater(len(places), 10)
        for turn, place in enumerate(places):
            for foreign in (STEERING, "y " * (LONG // 2)):
                turn += 1
                def change(manifest, place=place, foreign=foreign):
                    for key in place[:-1]:
                        manifest = manifest[key]
                    manifest[place[-1]] = foreign
                with self.subTest(place=place, steering=foreign == STEERING):
                    (packed / "manifest.json").write_text(original)
                    reseal(packed, change)
                    self.assert_shown(self.run_program("inspect", packed))
                    # In turn: of each place and of each text both come.
                    other = {"program": "DSPACK_DSRUN"} if turn % 2 else {}
                    self.assert_shown(self.run_program("inspect" if other else "verify", packed, **other))


class Errors(ForeignText):
    def test_broken_headers(self):
        def file(header):
            text = header.encode() if isinstance(header, str) else header
            return len(text).to_bytes(8, "little") + text
        tensor = '{"dtype":"%s","shape":[1],"data_offsets":[0,1]}'
        cases = {
            "unknown dtype": json.dumps({"a": json.loads(tensor % ("F7" + "z" * LONG))}),
            "dtype steers": json.dumps({"a": {**json.loads(tensor % "F7"), "dtype": STEERING}}, ensure_ascii=False),
            "twice": '{"%s":%s,"%s":%s}' % ("k" * LONG, tensor % "U8", "k" * LONG, tensor % "U8"),
            "twice, four megabytes of words": '{"%s":1,"%s":1}' % ("k v " * LONG, "k v " * LONG),
            "twice and steers": '{"\u009b\u202e":1,"\u009b\u202e":1}',
            "no JSON": '{"a":"' + "\u202e\u009b1m" * 1000,
            "not UTF-8": b'{"\xff\xfe\x1b":1}',
            "a long name with a hole": json.dumps({"h " * LONG: {"dtype": "U8", "shape": [1], "data_offsets": [5, 6]}}),
        }
        for number, (what, header) in enumerate(cases.items()):
            with self.subTest(what):
                folder = self.folder("h%d" % number, {"model.safetensors": file(header)})
                self.shown("inspect", folder, code=1)
                self.shown(folder, "--by", "layer", "--out", self.scratch / "out", code=1)

    def test_an_index(self):
        for number, name in enumerate([STEERING, "x" * LONG, "../" * LONG]):
            folder = self.folder("i%d" % number, {INDEX: json.dumps({"weight_map": {"a": name, name: name}})})
            self.shown("inspect", folder, code=1)

    def test_configurations(self):
        source = json.loads((self.data() / "config.json").read_text())
        for number, foreign in enumerate((STEERING, "c" * LONG, "c d " * LONG)):
            for key in ("model_type", "scoring_func", "torch_dtype", "topk_method", "hidden_act"):
                with self.subTest(number=number, key=key):
                    text = json.dumps({**source, key: foreign}, ensure_ascii=False)
                    folder = self.with_file("config.json", lambda _, text=text: text)
                    self.assert_shown(self.run_program(folder, "--tokens", "5", "-n", "1", program="DSPACK_DSRUN"))
                    shutil.rmtree(folder)
            folder = self.with_file("config.json",
                                    lambda _, f=foreign: json.dumps({**source, f: 1}, ensure_ascii=False))
            self.assert_shown(self.run_program(folder, "--tokens", "5", "-n", "1", program="DSPACK_DSRUN"))

    def test_tokenizers(self):
        def change(kind, foreign):
            def apply(text):
                tokenizer = json.loads(text)
                if kind == "two ids":
                    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 1200, "content": foreign})
                    tokenizer["model"]["vocab"][foreign] = 1201
                elif kind == "merge":
                    tokenizer["model"]["merges"].append([foreign, foreign])
                elif kind == "type":
                    tokenizer["model"]["type"] = foreign
                elif kind == "pattern":
                    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(" + foreign
                elif kind == "decoder":
                    tokenizer["decoder"] = {"type": foreign}
                return json.dumps(tokenizer, ensure_ascii=False)
            return apply
        for kind in ("two ids", "merge", "type", "pattern", "decoder"):
            for foreign in (STEERING, "t" * LONG):
                with self.subTest(kind=kind, steering=foreign == STEERING):
                    folder = self.with_file("tokenizer.json", change(kind, foreign))
                    self.dsrun("tokenize", folder, "-p", "x", code=1)
                    shutil.rmtree(folder)

    def test_arguments(self):
        for argument in (STEERING.replace("\x00", ""), "a" * 100_000):
            for arguments in (["inspect", argument], [argument, "--by", argument, "--out", "o"], ["--nonsense", argument],
                              ["verify", "x", argument]):
                self.assert_shown(self.run_program(*arguments))
                self.assert_shown(self.run_program(*arguments, program="DSPACK_DSRUN"))
            self.dsrun(argument, "-p", "x", code=1)
            self.dsrun("tokenize", packed_tiny(), "-p", "x", "--chat-template", argument, code=1)

    def test_what_servers_say(self):
        hub = self.serve_hub()
        hub.add("o/n", self.data())
        body = json.dumps({"error": "see \u009b31m \u202e " + "w " * 1000}, ensure_ascii=False)
        hub.add_fault("GET", "*", "403", body=body)
        result = self.shown("o/n", "--by", "layer", "--out", self.scratch / "out", code=1,
                            env={"HF_ENDPOINT": hub.url})
        self.assertIn("see", result.stderr)


class Terminal(ForeignText):
    """Where stdout is a terminal it is protected; a pipe gets the bytes."""

    def test_a_rendered_prompt(self):
        chat = self.scratch / "chat.json"
        chat.write_text(CHAT)
        arguments = ("tokenize", packed_tiny(), "--chat", chat, "--text")
        piped = self.run_program(*arguments, program="DSPACK_DSRUN")
        self.assertIn(STEERING.encode(), piped.stdout_bytes)
        seen = self.on_terminal(*arguments)
        self.assertIn("Look: ", seen)
        self.assertIsNone(STEERS.search(seen), repr(seen))

    def test_tokens_as_json(self):
        arguments = ("tokenize", packed_tiny(), "-p", STEERING, "--json")
        listed = self.assert_ok(self.run_program(*arguments, program="DSPACK_DSRUN")).stdout
        self.assertIsNone(re.search(UNPRINTABLE.replace("\ufffd", ""), listed), repr(listed))
        ids = [token["id"] for token in json.loads(listed)]
        (self.scratch / "ids").write_text(" ".join(map(str, ids)) + "\n")
        decoded = self.dsrun("tokenize", packed_tiny(), "--dev", "ids=%s" % (self.scratch / "ids"), code=0).stdout
        self.assertEqual(json.loads(decoded), STEERING)

    def test_an_answer(self):
        def steering_tokens(text):
            tokenizer = json.loads(text)
            vocabulary = tokenizer["model"]["vocab"]
            tokenizer["model"]["merges"] = []
            tokenizer["model"]["vocab"] = {
                (name if token <= 258 else spelled("\u009b31m\u202e\x1b[2J%d " % token)): token
                for name, token in vocabulary.items()}
            return json.dumps(tokenizer, ensure_ascii=False)
        folder = self.with_file("tokenizer.json", steering_tokens)
        arguments = (folder, "-p", "What is the capital of France?", "-n", "12")
        piped = self.assert_ok(self.run_program(*arguments, program="DSPACK_DSRUN"))
        self.assertIn("\u009b31m\u202e\x1b[2J", piped.stdout)
        seen = self.on_terminal(*arguments).replace("\r\x1b[K", "")  # the progress line's own
        self.assertIn("31m", seen)
        self.assertIsNone(STEERS.search(seen), repr(seen))

    def test_notes(self):
        place = self.scratch / ("place " + STEERING.replace("\x00", ""))
        shutil.copytree(packed_tiny(), place)
        seen = self.on_terminal(place, "-p", "x", "-n", "1").replace("\r\x1b[K", "")
        self.assertIn("loading", seen)
        self.assertIsNone(STEERS.search(seen), repr(seen))


class Passwords(ForeignText):
    SECRET = "pa55word"

    def address(self, server):
        return server.url.replace("http://", "http://someone:%s@" % self.SECRET)

    def assert_kept_secret(self, result):
        for text in (result.stdout, result.stderr):
            self.assertNotIn(self.SECRET, text)
        return result

    def assert_not_in_files(self):
        for path in self.scratch.rglob("*"):
            self.assertNotIn(self.SECRET, str(path))
            if path.is_file():
                self.assertNotIn(self.SECRET.encode(), path.read_bytes(), path)

    def test_an_address_with_a_password(self):
        server = self.serve(self.data())
        address, out = self.address(server), self.scratch / "out"
        for arguments in (["inspect", address], ["inspect", address, "--json"], ["inspect", address, "--html", "-"],
                          [address, "--by", "layer", "--dry-run"], [address, "--by", "layer", "--out", out],
                          ["verify", out, "--source", address], ["diff", address, out],
                          ["inspect", address, "--html", self.scratch / "page.html"]):
            self.assert_kept_secret(self.assert_ok(self.run_program(*arguments)))
        self.assertEqual({request.authorization is not None for request in server.requests()}, {True},
                         "the server must get what it asks for")
        self.assert_kept_secret(self.assert_ok(self.run_program(address, "-p", "x", "-n", "1",
                                                                program="DSPACK_DSRUN")))
        self.assertNotIn(self.SECRET, self.on_terminal(address, "-p", "x", "-n", "1"))
        self.assert_not_in_files()

    def test_errors(self):
        empty = self.folder("empty", {})
        server = self.serve(empty)
        address = self.address(server)
        nowhere = "http://someone:%s@127.0.0.1:9/x" % self.SECRET
        slashed = "http://someone:%s/x@127.0.0.1:9/x" % self.SECRET
        for place in (address, nowhere, slashed, "https://someone:%s@/" % self.SECRET):
            began = time.monotonic()
            for arguments in (["inspect", place], [place, "--by", "layer", "--out", self.scratch / "out"]):
                process = self.start(*arguments)
                while process.poll() is None and time.monotonic() - began < 8:
                    time.sleep(0.05)
                process.terminate()
                self.assert_kept_secret(self.finish(process))
        self.assert_kept_secret(self.run_program("inspect", "o/n", env={"HF_ENDPOINT": address}))
        self.assert_kept_secret(self.run_program("inspect", address, "--no-such-flag"))
        server.add_fault("*", "ignore_range")
        (empty / "model.safetensors").write_bytes((self.data() / "model-00001-of-000005.safetensors").read_bytes())
        self.assert_kept_secret(self.run_program("inspect", address))
        self.assert_not_in_files()


if __name__ == "__main__":
    main()
