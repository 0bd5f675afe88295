#!/usr/bin/env python3
"""The Python package against packed folders, a server with ranges and the server that plays the Hub.

mypy and the official safetensors library are used where the Python of scripts/test (build/python) has them."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

ROOT = Path(os.environ["DSPACK_SOURCE"])
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import dspack  # noqa: E402
import safetensors_io  # noqa: E402
from checkpoints import compressed_tiny, packed_tiny  # noqa: E402
from common import EndToEnd, flip_bit, main  # noqa: E402
from dspack.json_text import parse_json  # noqa: E402
from dspack.manifest import Manifest, expert_of  # noqa: E402

GROUPINGS = ("expert", "expert:8", "layer", "shard:5MB")


def python_with(module):
    """The Python of scripts/test, if it has a module; else this one, if it has; else None."""
    for python in (os.environ.get("DSPACK_TEST_PYTHON", ""), sys.executable):
        if python and Path(python).exists() and subprocess.run(
                [python, "-c", "import " + module], capture_output=True, check=False).returncode == 0:
            return python
    return None


def resealed(fields):
    """The manifest with these fields, as its maker would have sealed it."""
    line = json.dumps({**fields, "seal": ""}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    seal = hashlib.sha256(line.encode()).hexdigest()
    return (line.replace('"seal":""', '"seal":"%s"' % seal) + "\n").encode()


class Package(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = {}
        for path in self.data().glob("*.safetensors"):
            self.source.update(safetensors_io.parse(path.read_bytes())[0])

    def assert_expert(self, repository, layer, expert):
        tensors = repository.read_expert(layer, expert)
        prefix = "model.layers.%d.mlp.experts.%d." % (layer, expert)
        self.assertEqual(set(tensors), {name for name in self.source if name.startswith(prefix)})
        self.assertGreater(len(tensors), 0)
        for name, tensor in tensors.items():
            self.assertEqual((tensor.dtype, list(tensor.shape), tensor.data), self.source[name], name)

    def test_every_grouping_gives_the_source_bytes_and_the_same_digests(self):
        digests = []
        for by in GROUPINGS:
            with self.subTest(by):
                repository = dspack.open(packed_tiny(by))
                self.assertEqual(len(repository.experts), 320)
                for expert in (repository.experts[0], repository.experts[37], repository.experts[-1]):
                    self.assert_expert(repository, expert.layer, expert.number)
                digests.append([(expert.layer, expert.number, expert.sha256) for expert in repository.experts])
        self.assertEqual([digest == digests[0] for digest in digests], [True] * len(GROUPINGS))

    def test_the_documented_example_is_read(self):
        text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
        example = json.loads(text.split("<!-- example manifest -->\n```json\n")[1].split("```")[0])
        expert, = Manifest.parse(resealed(example)).experts.values()
        self.assertEqual((expert.layer, expert.number, [vars(extent) for extent in expert.extents]),
                         (3, 7, [{"path": "model/layers/003/experts/007.safetensors", "offset": 4096, "length": 8}]))

    def test_names_of_every_family(self):
        for name, meant in (("model.layers.3.mlp.experts.7.gate_proj.weight", (3, 7)),
                            ("language_model.model.layers.3.block_sparse_moe.experts.7.w1.weight", (3, 7)),
                            ("layers.60.ffn.experts.383.w2.scale", (60, 383)), ("layers.1.experts.2.w1.weight", (1, 2)),
                            ("mtp.0.ffn.experts.4.w1.weight", (60000, 4)), ("model.layers.3.mlp.gate.weight", None),
                            ("mtp.layers.1.mlp.experts.4.up_proj.weight", (60001, 4)),
                            ("model.layers.03.mlp.experts.7.up_proj.weight", None),
                            ("model.layers.3.mlp.shared_experts.up_proj.weight", None)):
            self.assertEqual(expert_of(name), meant, name)

    def test_by_range_from_a_server(self):
        server = self.serve(packed_tiny("layer"))
        repository = dspack.open(server.url)
        self.assert_expert(repository, 1, 5)
        sizes = sum(expert.payload_bytes for expert in repository.experts)
        self.assertLess(repository.expert(1, 5).payload_bytes * 100, sizes)

    def test_from_the_hub_by_range_with_and_without_a_token(self):
        hub = self.serve_hub()
        hub.add("o/packed", packed_tiny("expert"), private=True)
        keep = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HOME": str(self.scratch), "HF_HOME": str(self.scratch)}
        with mock.patch.dict(os.environ, keep):
            self.assert_expert(dspack.open("o/packed"), 1, 5)
            self.assert_expert(dspack.open("hf://o/packed@main"), 2, 0)
            del os.environ["HF_TOKEN"]
            with self.assertRaises(OSError):
                dspack.open("o/packed")

    def test_the_token_stays_with_its_server_and_off_open_lines(self):
        place = dspack.places.HttpFolder("http://10.1.2.3/", "secret")
        self.assertIsNone(place.token)
        self.assertEqual(dspack.places.HttpFolder("https://host/", "secret").token, "secret")
        hub = self.serve_hub()  # redirects files to a storage of another address
        hub.add("o/packed", packed_tiny("expert"))
        with mock.patch.dict(os.environ, {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token}):
            dspack.open("o/packed").read_expert(1, 5)
        self.assertEqual(hub.token_leaks(), [])
        self.assertTrue([entry for entry in hub.requests() if entry.host != "hub"], "no file came from the storage")

    def test_a_server_that_is_never_silent_and_never_done_is_given_up(self):
        def trickle(before, byte):
            """The port of a server that sends one byte of an answer every 20 ms."""
            listener = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(listener.close)

            def serve():
                with contextlib.suppress(OSError):
                    connection = listener.accept()[0]
                    with connection:
                        connection.recv(4096)
                        connection.sendall(before)
                        while True:
                            connection.sendall(byte)
                            time.sleep(0.02)
            thread = threading.Thread(target=serve)
            thread.start()
            self.addCleanup(thread.join)
            return listener.getsockname()[1]

        with mock.patch.object(dspack.places, "TIMEOUT_SECONDS", 0.3):
            for before, byte in ((b"", b"H"), (b"HTTP/1.1 200 OK\r\n", b"X"),
                                 (b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n", b" "),
                                 (b"HTTP/1.1 404 Not Found\r\nContent-Length: 60000000\r\n\r\n", b" ")):
                begin = time.monotonic()
                with self.assertRaises(OSError) as raised:
                    dspack.open("http://127.0.0.1:%d" % trickle(before, byte))
                self.assertLess(time.monotonic() - begin, 20)
                self.assertIn("too slow" if b"404" not in before else "404", str(raised.exception))
            # One that is slow, but not so slow.
            self.assert_expert(dspack.open(self.serve(packed_tiny("expert"), rate=500_000).url), 1, 5)

    def test_what_json_may_hold_is_counted_before_it_is_kept(self):
        deep = 100_000
        for text in ("[" + "[]," * 3_000_000 + "[]]", '{"a":' + "9" * 1_000_000 + "}", '{"a":1.' + "9" * 1_000_000 + "}",
                     "[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep):
            begin = time.monotonic()
            with self.assertRaises(ValueError):
                parse_json(text)
            with self.assertRaisesRegex(dspack.FormatError, "^manifest.json: "):
                Manifest.parse(text.encode() + b"\n")
            self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(parse_json('{"a":[1,2.5,"x,y:[{"]}'), {"a": [1, 2.5, "x,y:[{"]})
        self.assertEqual(parse_json("[1,2]", most_values=3), [1, 2])
        with self.assertRaisesRegex(ValueError, "more than 2 values"):
            parse_json("[1,2]", most_values=2)

    def test_damage_is_noticed(self):
        folder = Path(shutil.copytree(packed_tiny("expert"), self.scratch / "damaged"))
        repository = dspack.open(folder)
        expert = repository.expert(1, 5)
        flip_bit(folder / expert.path, expert.tensors[1].begin + 3)
        with self.assertRaisesRegex(dspack.IntegrityError, "is not what was sealed"):
            repository.read_expert(1, 5)
        self.assertEqual(len(repository.read_expert(1, 5, verify=False)), len(expert.tensors))
        with open(folder / expert.path, "ab") as file:
            file.write(b"x")
        with self.assertRaisesRegex(OSError, "the manifest says"):
            repository.read_expert(1, 5)
        flip_bit(folder / "manifest.json", (folder / "manifest.json").read_bytes().index(b'"size":') + 8)
        with self.assertRaises((dspack.IntegrityError, dspack.FormatError)):
            dspack.open(folder)

    def test_hostile_manifests_are_refused(self):
        fields = json.loads((packed_tiny("expert") / "manifest.json").read_bytes())

        def changed(change):
            other = json.loads(json.dumps(fields))
            change(other)
            return resealed(other)

        Manifest.parse(changed(lambda manifest: None))
        first = fields["files"][0]
        cases = {
            "a path out of the folder": lambda m: m["files"][0].update(path="../" + first["path"]),
            "an absolute path": lambda m: m["files"][0].update(path="/etc/passwd"),
            "a hidden path": lambda m: m["files"][0].update(path=".git/config"),
            "a size that is no number": lambda m: m["files"][0].update(size=True),
            "a size of 2^63": lambda m: m["files"][0].update(size=1 << 63),
            "a negative layout": lambda m: m["files"][0].update(layout=-1),
            "a layout that is not there": lambda m: m["files"][0].update(layout=999),
            "a digest that is none": lambda m: m["files"][0].update(sha256="x" * 64),
            "a file twice": lambda m: m["files"].append(m["files"][0]),
            "tensors without digests": lambda m: m["files"][0].update(tensors=[]),
            "a shape that overflows": lambda m: m["layouts"][0]["tensors"][0].update(shape=[1 << 40] * 3),
            "a hole": lambda m: m["layouts"][0]["tensors"][0].update(data_offsets=[8, 16]),
            "no object": lambda m: m.update(files={}),
        }
        for what, change in cases.items():
            with self.subTest(what), self.assertRaises(dspack.FormatError):
                Manifest.parse(changed(change))
        for what, change in {"format 2": lambda m: m["format"].update(major=2),
                             "an unknown feature": lambda m: m.update(requires=["telepathy"])}.items():
            with self.subTest(what), self.assertRaises(dspack.UnsupportedError):
                Manifest.parse(changed(change))
        for text in (b"", b"[]", b"{}", b"[" * 100000, b'{"a":1,"a":1}', b"\xff"):
            with self.subTest(text[:20]), self.assertRaises(dspack.FormatError):
                Manifest.parse(text)

    def test_what_it_cannot_read_is_said(self):
        repository = dspack.open(compressed_tiny())
        with self.assertRaisesRegex(dspack.UnsupportedError, "compressed"):
            repository.read_expert(1, 5)
        with self.assertRaises(KeyError):
            repository.read_expert(1, 4000)
        with self.assertRaisesRegex(dspack.DspackError, "more than 10"):
            dspack.open(packed_tiny("expert")).read_expert(1, 5, most_bytes=10)
        with self.assertRaises(OSError):
            dspack.open(self.scratch / "nothing")

    def run_example(self, source, out, **environment):
        done = subprocess.run([sys.executable, str(ROOT / "docs" / "examples" / "read_expert.py"), str(source), "1", "5",
                               str(out)], env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment}, text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith("every digest fits\n"), done.stdout)
        return done.stdout, safetensors_io.parse(out.read_bytes())[0]

    def test_the_example_from_a_folder_a_server_and_the_hub(self):
        server = self.serve(packed_tiny("expert"))
        hub = self.serve_hub()
        hub.add("o/packed", packed_tiny("expert"))
        before = len(hub.requests())
        _, tensors = self.run_example(packed_tiny("layer"), self.scratch / "folder.safetensors")
        said, of_server = self.run_example(server.url, self.scratch / "server.safetensors")
        said_of_hub, of_hub = self.run_example("o/packed", self.scratch / "hub.safetensors", HF_ENDPOINT=hub.url,
                                               HF_HOME=str(self.scratch))
        self.assertEqual((of_server, of_hub, said_of_hub), (tensors, tensors, said))
        # Of weights, the Hub is asked for the ranges that the example names.
        weights = [entry for entry in hub.requests()[before:] if entry.host == "hub" and entry.path.endswith(".safetensors")]
        self.assertEqual([entry.headers["range"] for entry in weights],
                         ["bytes=%s-%s" % named for named in re.findall(r": bytes (\d+) to (\d+)\n", said)])

    def test_the_official_library_reads_what_is_written(self):
        python = python_with("safetensors")
        if python is None:
            self.skipTest("no Python here has safetensors")
        out = self.scratch / "expert.safetensors"
        tensors = dspack.open(packed_tiny("expert")).read_expert(1, 5)
        out.write_bytes(dspack.to_safetensors(tensors))
        script = ("import safetensors, sys, hashlib\n"
                  "for name, tensor in sorted(safetensors.deserialize(open(sys.argv[1], 'rb').read())):\n"
                  "    print(name, tensor['dtype'], tensor['shape'], hashlib.sha256(tensor['data']).hexdigest())\n")
        read = subprocess.run([python, "-c", script, str(out)], capture_output=True, text=True, check=False)
        self.assertEqual(read.returncode, 0, read.stderr)
        self.assertEqual(read.stdout, "".join(
            "%s %s %s %s\n" % (name, tensor.dtype, list(tensor.shape), hashlib.sha256(tensor.data).hexdigest())
            for name, tensor in sorted(tensors.items())))

    def test_types(self):
        python = python_with("mypy")
        if python is None:
            self.skipTest("no Python here has mypy")
        done = subprocess.run([python, "-m", "mypy", "--strict", "--cache-dir", str(self.scratch), str(ROOT / "python" / "dspack"),
                               str(ROOT / "docs" / "examples" / "read_expert.py")], capture_output=True, text=True,
                              check=False, env={**os.environ, "MYPYPATH": str(ROOT / "python")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
