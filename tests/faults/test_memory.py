"""Memory and time that the input decides: small or middling files that claim much. Each run ends within ten seconds and
512 MB of memory, with exit status 0, 1 or 2 and, where it refuses, one line of less than 400 bytes. A checkpoint as
large as those that exist is read all the same.

What a run takes is printed, so that the numbers of two versions can be compared."""

import hashlib
import json
import os
import resource
import shutil
import struct
import threading

import faults
import safetensors_io
from checkpoints import write_small
from common import INDEX, Result, is_sanitized, limit, main

MIB = 1 << 20
MOST_BYTES = 512_000_000
MOST_SECONDS = 10
MOST_LINE = 400
TEXT_MB = 4 if faults.LONG else 1  # what takes the square of a text's length takes far more than the time of either
REPLAYED_LAYERS = 300 if faults.LONG else 150  # likewise
SECONDS_OF_GRACE = 3  # for machines that do other work at the same time; the programs' own clock is the processor's


def zstd_of_one_byte(byte, count):
    """A frame of RLE blocks: 4 bytes for each 128 KiB."""
    frame = struct.pack("<I", 0xFD2FB528) + bytes([0xE0]) + struct.pack("<Q", count)  # single segment, size of 8 bytes
    while count:
        block = min(count, 128 << 10)
        count -= block
        frame += struct.pack("<I", block << 3 | 1 << 1 | (0 if count else 1))[:3] + byte
    return frame


def zstd_of_text(prefix, byte, count, suffix):
    """The same with raw blocks before and behind."""
    total = len(prefix) + count + len(suffix)
    frame = struct.pack("<I", 0xFD2FB528) + bytes([0xE0]) + struct.pack("<Q", total)
    frame += struct.pack("<I", len(prefix) << 3)[:3] + prefix
    while count:
        block = min(count, 128 << 10)
        count -= block
        frame += struct.pack("<I", block << 3 | 1 << 1)[:3] + byte
    return frame + struct.pack("<I", len(suffix) << 3 | 1)[:3] + suffix


def reseal(packed, change):
    """The manifest as anybody can write it: changed, and sealed again."""
    manifest = json.loads((packed / "manifest.json").read_text())
    change(manifest)
    manifest["seal"] = ""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["seal"] = hashlib.sha256(text.encode()).hexdigest()
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (packed / "manifest.json").write_text(text + "\n")


def repeated(start, unit, end, size):
    """About `size` bytes in pieces: a child's peak counts from its parent's memory on, so that this one stays small."""
    count = (size - len(start) - len(end)) // len(unit)
    at_once = max(1, MIB // len(unit))
    yield start
    for first in range(0, count, at_once):
        yield unit * min(at_once, count - first)
    yield end


def numbered(start, unit, end, size):
    """The same with a number of eight digits in each unit, in place of %s, and commas between. A thousand units are
    made once; of the others only the first digits differ."""
    count = (size - len(start) - len(end)) // (len(unit % bytes(8)) + 1)
    made = [unit % (b"\0%03d" % number) for number in range(1000)]
    yield start
    for first in range(0, count, 1000):
        units = b",".join(made[:count - first]).replace(b"\0", b"%05d" % (first // 1000))
        yield units + (b"," if first + 1000 < count else b"")
    yield end


def write_pieces(path, pieces, before=b"", behind=b""):
    with open(path, "wb") as file:
        file.write(before)
        for piece in pieces:
            file.write(piece)
        file.write(behind)


def write_header(path, pieces):
    """A shard of this header and no data."""
    write_pieces(path, pieces, bytes(8))
    with open(path, "r+b") as file:
        file.write(struct.pack("<Q", path.stat().st_size - 8))


class Bounded(faults.FaultCase):
    def measured(self, *arguments, program="DSPACK_RESHARD", **options):
        """(what the run said, processor seconds, bytes of memory at its peak)"""
        process = self.start(*arguments, program=program, **options)
        said = {}
        readers = [threading.Thread(target=lambda n=name, s=stream: said.update({n: s.read()}))
                   for name, stream in (("out", process.stdout), ("err", process.stderr))]
        timer = threading.Timer(120, process.kill)
        for thread in (*readers, timer):
            thread.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        for thread in readers:
            thread.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Result(process.command, process.returncode, said["out"], said["err"]), usage

    def assert_bounded(self, name, *arguments, needles=(), codes=(1,), program="DSPACK_RESHARD", most_bytes=MOST_BYTES,
                       **options):
        result, usage = self.measured(*arguments, program=program, **options)
        seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        print("MEASURED: %s | %d MB | %.1f s | exit %d | %s" % (
            name, memory / 1e6, seconds, result.code, result.stderr[:160].strip()), flush=True)
        with self.subTest(name):
            self.assertIn(result.code, codes, str(result))
            if result.code != 0:
                lines = result.stderr.splitlines()
                self.assertEqual(len(lines), 1, str(result))
                self.assertLess(len(lines[0].encode()), MOST_LINE, str(result))
                for needle in needles:
                    self.assertIn(needle, lines[0])
            if not is_sanitized(program):
                self.assertLess(memory, most_bytes, str(result))
                self.assertLess(seconds, MOST_SECONDS + SECONDS_OF_GRACE, str(result))
        return result


class Documents(Bounded):
    def shard(self, name, *contents):
        """A checkpoint of one file, or of several with an index."""
        folder = self.scratch / name.replace(" ", "-")
        folder.mkdir()
        if len(contents) == 1:
            write_header(folder / "model.safetensors", contents[0])
            return folder
        weight_map = {}
        for number, content in enumerate(contents):
            path = "model-%d.safetensors" % number
            write_header(folder / path, content)
            weight_map["t%d" % number] = path
        safetensors_io.write_index(folder, weight_map)
        return folder

    def test_headers(self):
        size = 99 * 10**6
        tensors = numbered(b"{", b'"%s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', b"}", size)
        start, end = b'{"a":{"dtype":"U8","data_offsets":[0,0],"shape":', b"}}"
        cases = {
            "header of 99 MB: empty tensors": [tensors],
            "header of 99 MB: lists": [repeated(b'{"a":[', b"[],", b"[]]}", size)],
            "header of 99 MB: objects": [repeated(b'{"a":[', b"{},", b"{}]}", size)],
            "header of 99 MB: dimensions": [repeated(start + b"[", b"0,", b"0]" + end, size)],
            "header of 99 MB: metadata": [numbered(b'{"__metadata__":{', b'"%s":""', b"}}", size)],
            "header of 99 MB: spaces": [repeated(b"{", b" ", b"}", size)],
            "4 headers of 50 MB": [repeated(b"{", b" ", b"}", size // 2) for _ in range(4)]}
        for name, contents in cases.items():
            folder = self.shard(name, *contents)
            refuses = "spaces" not in name
            self.assert_bounded(name, "inspect", folder, codes=(1,) if refuses else (0,))
            shutil.rmtree(folder)

    def test_indexes_and_configurations(self):
        size = 120 * 10**6
        folder = write_small(self.scratch / "source")
        index = (folder / INDEX).read_bytes()
        many = numbered(b'{"weight_map":{', b'"%s":"a"', b"}}", size)
        for name, text in {
                "index of 120 MB: tensors": many,
                "index of 67 MB: tensors": numbered(b'{"weight_map":{', b'"%s":"a"', b"}}", 67 * 10**6),
                "index of 120 MB: lists": repeated(b'{"weight_map":[', b"[],", b"[]]}", size),
                "index of 67 MB: lists": repeated(b'{"weight_map":[', b"[],", b"[]]}", 67 * 10**6)}.items():
            if name == "index of 120 MB: lists" and not faults.LONG:
                continue  # what is too long is not read, whatever it holds
            write_pieces(folder / INDEX, text)
            self.assert_bounded(name, "inspect", folder)
        (folder / INDEX).write_bytes(index)
        model = self.copy_source("model")
        kinds = (("lists", b"[],"), ("numbers", b"0,"))
        for number, (name, size) in enumerate({
                "config.json": 16 * 10**6, "generation_config.json": 16 * 10**6, "tokenizer.json": 80 * 10**6,
                "tokenizer_config.json": 16 * 10**6}.items()):
            text = (model / name).read_bytes()
            # The four are read alike: in the short form each has one kind, and both come.
            for kind, unit in kinds if faults.LONG else kinds[number % 2:][:1]:
                write_pieces(model / name, repeated(b'{"x":[', unit, b"0],", size), behind=text.lstrip()[1:])
                self.assert_bounded("%s of %d MB: %s" % (name, size / 10**6, kind), model, "-p", "x", "-n", "1",
                                    program="DSPACK_DSRUN")
            (model / name).write_bytes(text)

    def test_manifests(self):
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), packed))
        manifest = (packed / "manifest.json").read_bytes()
        for name, unit, size in (("lists", b"[],", 120), ("numbers", b"0,", 120), ("objects", b"{},", 67),
                                 ("keys", None, 67), ("text", b"x", 67)):
            if (name, size) == ("numbers", 120) and not faults.LONG:
                continue  # as of an index
            pieces = repeated(b'{"a":[' if unit != b"x" else b'{"a":["', unit, b"0]," if unit != b"x" else b'"],',
                              size * 10**6) if unit else numbered(b'{"a":{', b'"%s":{}', b"},", size * 10**6)
            write_pieces(packed / "manifest.json", pieces, behind=manifest[1:])
            self.assert_bounded("manifest of %d MB: %s" % (size, name), "inspect", packed)

    def test_kept_headers(self):
        """Some kilobytes that expand to a gigabyte, with the digest that the manifest names."""
        packed = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), packed))
        path = "provenance/headers.json.zst"

        def companion(manifest):
            content = (packed / path).read_bytes()
            entry = next(entry for entry in manifest["companions"] if entry["path"] == path)
            entry.update(sha256=hashlib.sha256(content).hexdigest(), size=len(content))

        for name, frame in {"spaces in a text": zstd_of_text(b'{"a":"', b" ", 1000 * MIB, b'"}'),
                            "brackets": zstd_of_text(b'{"a":', b"[", 1000 * MIB, b"}"),
                            "spaces": zstd_of_one_byte(b" ", 1000 * MIB)}.items():
            (packed / path).write_bytes(frame)
            reseal(packed, companion)
            self.assert_bounded("kept headers, %d bytes: %s" % (len(frame), name), "unpack", packed, "--exact", "--out",
                                self.scratch / "unpacked")

    def test_fused_experts(self):
        """A megabyte that could be cut into a million tensors."""
        header, at, experts = {}, 0, 65535
        for layer in range(8):
            for part, shape in (("gate_up_proj", [experts, 1, 1]), ("down_proj", [experts, 1, 1])):
                size = experts
                header["model.layers.%d.mlp.experts.%s" % (layer, part)] = {
                    "dtype": "U8", "shape": shape, "data_offsets": [at, at + size]}
                at += size
        folder = self.scratch / "fused"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors_io.with_length(header) + bytes(at))
        self.assert_bounded("1 MB of fused experts: inspect", "inspect", folder, codes=(0, 1))
        self.assert_bounded("1 MB of fused experts: --dry-run", folder, "--by", "expert", "--dry-run", codes=(0, 1))

    def test_a_checkpoint_of_released_size_is_read(self):
        """V3's catalogue: 91,991 tensors of 61 layers and 256 experts, in 163 shards; all zero, so that it takes no room."""
        folder = self.scratch / "large"
        folder.mkdir()
        names = {"model.embed_tokens.weight": 1 << 20}
        for layer in range(61):
            for part in ("q_a", "kv_a", "o"):
                names["model.layers.%d.self_attn.%s_proj.weight" % (layer, part)] = 4096
            if layer < 3:
                continue
            for expert in range(256):
                for part in ("gate", "up", "down"):
                    stem = "model.layers.%d.mlp.experts.%d.%s_proj.weight" % (layer, expert, part)
                    names[stem] = 4096
                    names[stem + "_scale_inv"] = 16
        listed = list(names.items())
        weight_map, step = {}, len(listed) // 163 + 1
        for number in range(163):
            path = "model-%05d-of-000163.safetensors" % (number + 1)
            part = dict(listed[number * step:(number + 1) * step])
            safetensors_io.write_sparse(folder / path, part)
            weight_map.update((name, path) for name in part)
        safetensors_io.write_index(folder, weight_map)
        print("%d tensors" % len(names), flush=True)
        self.assert_bounded("V3's catalogue: inspect", "inspect", folder, codes=(0,))
        self.assert_bounded("V3's catalogue: --dry-run", folder, "--by", "expert", "--dry-run", codes=(0,))


class Patterns(Bounded):
    """A tokenizer's patterns: one budget for a whole text."""

    def model(self, steps):
        model = self.copy_source("model-%d" % len(list(self.scratch.iterdir())))
        path = model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        tokenizer["pre_tokenizer"]["pretokenizers"][:-1] = steps
        path.write_text(json.dumps(tokenizer))
        return model

    @staticmethod
    def split(pattern):
        return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}

    def encode(self, name, model, text, **options):
        path = self.scratch / "text"
        path.write_text(text)
        return self.assert_bounded(name, "tokenize", model, "--dev", "texts=%s" % path, program="DSPACK_DSRUN", **options)

    def test_patterns_that_explode(self):
        run = "a" * 6000 + "xc"  # so that the engine does not miss the c at once
        for pattern, text in {"a*a*a*c": run, "(?=a*a*c)a|b": run, "(?:a|a|a|aa)*c": run, "(?:a*a|b)*?c": run,
                              "a{0,900}a{0,900}c": run, "(?=(?:a|a|a)*c)a|b": "a" * 120_000 + "xc"}.items():
            self.encode("pattern %s" % pattern, self.model([self.split(pattern)]), text, needles=[pattern])

    def test_many_steps(self):
        self.encode("100,000 steps", self.model([self.split("b")] * 100_000), "a" * 6000, needles=["steps"])

    def test_added_tokens(self):
        model = self.model([])
        path = model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        highest = max(token["id"] for token in tokenizer["added_tokens"])
        vocabulary = max(tokenizer["model"]["vocab"].values())
        tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=max(highest, vocabulary) + 1,
                                              content="a" * 4000 + "b"))
        path.write_text(json.dumps(tokenizer))
        self.encode("a literal of 4,000 bytes", model, "a" * 10**6, needles=["added tokens"])

    def test_long_texts_are_encoded(self):
        """Megabytes of what people write, and of what they do not, with V3's own patterns."""
        model = self.copy_source()
        prose = "The quick brown fox jumps over 1234 lazy dogs; isn't it?\n\n\tif (x == 1) { return \"y\"; }\n"
        for name, unit in {"prose": prose, "Chinese": "深度求索的模型会说中文。", "spaces": " ", "lines": "\n",
                           "letters": "a", "digits": "7", "punctuation": "!", "marks": "a\u0301"}.items():
            text = unit * (TEXT_MB * 10**6 // len(unit.encode()))
            self.encode("%d MB of %s" % (TEXT_MB, name), model, text, codes=(0,))


class Runs(Bounded):
    def test_a_layer_map_of_4000_passes(self):
        packed = self.scratch / "packed"
        recipe = self.scratch / "recipe.json"
        recipe.write_text(json.dumps({"by": "expert", "layer_map": [0, 1, 2, 3] * 1000}))
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", packed))
        # The KV cache alone, which nobody bounded, may have 600 MB; of 1,024 positions it would have 1,540.
        self.assert_bounded("4,000 passes", packed, "-p", "x", "-n", "1", codes=(0,), program="DSPACK_DSRUN",
                            most_bytes=700_000_000)

    def routes(self, layers, experts, steps):
        """A trace: `steps` gives (pass, layer, [[experts of a row]])."""
        path = self.scratch / "routes.jsonl"
        header = {"format": "dspack-routes", "version": 1, "model_type": "x", "top_k": 4, "layers": [
            {"layer": layer, "experts": experts, "expert_bytes": 1000} for layer in range(layers)]}
        with open(path, "w") as file:
            file.write(json.dumps(header) + "\n")
            for number, layer, rows in steps:
                file.write('{"pass":%d,"phase":"%s","layer":%d,"ids":%s}\n' % (
                    number, "prefill" if len(rows) > 1 else "decode", layer, json.dumps(rows).replace(" ", "")))
        return path

    def test_a_replay_with_many_slots(self):
        """Passes over 600 experts of each layer, each asked for once in a round, of which nine tenths have slots."""
        layers, experts = REPLAYED_LAYERS, 600
        slots = layers * experts * 9 // 10
        steps = ((number, layer, [[4 * (number % (experts // 4)) + i for i in range(4)]])
                 for number in range(2 * experts // 4) for layer in range(layers))
        path = self.routes(layers, experts, steps)
        for policy in ("lru", "reuse"):
            name = "replay of %d uses, %d slots: %s" % (2 * layers * experts, slots, policy)
            self.assert_bounded(name, "replay", path, "--slots", slots, "--dev", "policy=%s" % policy, codes=(0,),
                                program="DSPACK_DSRUN")

    def test_a_replay_of_wide_layers(self):
        """Prompts that ask for all of a layer's 10,000 experts."""
        experts = 10_000
        rows = [[4 * row + i for i in range(4)] for row in range(experts // 4)]
        path = self.routes(2, experts, ((number, number % 2, rows) for number in range(4)))
        self.assert_bounded("replay of layers of 10,000 experts", "replay", path, "--slots", "15000", codes=(0,),
                            program="DSPACK_DSRUN")


class NoMemory(Bounded):
    """Where memory does run out: one line and exit status 1, in every thread."""

    def test_less_than_the_work_takes(self):
        if is_sanitized() or is_sanitized("DSPACK_DSRUN"):
            self.skipTest("a sanitizer's shadow does not fit")
        model = self.copy_source()
        text = self.scratch / "text"
        text.write_text("The quick brown fox. " * (10**6 if faults.LONG else 10**5))
        server = self.serve(self.data())
        ended = set()
        sizes = range(20, 200, 12)
        # From 92 MiB on packing mostly ends well, slowly: every allocation of its threads is then one of the system's.
        few = {"DSPACK_RESHARD": (*range(20, 92, 12), 188), "DSPACK_DSRUN": (*range(20, 92, 12), 116, 140, 188)}
        for mib in sizes:
            for arguments, program in (((self.data(), "--by", "expert", "--out", self.scratch / ("out-%d" % mib)),
                                        "DSPACK_RESHARD"),
                                       ((server.url, "--by", "layer", "--out", self.scratch / ("far-%d" % mib)),
                                        "DSPACK_RESHARD"),
                                       (("tokenize", model, "--dev", "texts=%s" % text), "DSPACK_DSRUN"),
                                       ((model, "-p", "x", "-n", "1", "--ram", "4GB"), "DSPACK_DSRUN")):
                if not faults.LONG and mib not in few[program]:
                    continue
                result = self.run_program(*arguments, program=program, timeout=60,
                                          before=limit(resource.RLIMIT_AS, mib * MIB))
                with self.subTest("%d MiB: %s" % (mib, arguments)):
                    if result.code == 127:
                        continue  # the system's loader had no memory
                    ended.add(result.code)
                    self.assertIn(result.code, (0, 1), str(result))
                    if result.code == 1:
                        self.assertRegex(result.stderr.splitlines()[-1], "^(reshard|dsrun): ", str(result))
        self.assertIn(1, ended)


if __name__ == "__main__":
    main()
