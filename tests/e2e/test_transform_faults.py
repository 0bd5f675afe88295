"""Transforms where something is in the way: few answers a minute, kills, bytes that are read differently twice; and what
they refuse."""

import json
import shutil
import struct

import safetensors_io
from checkpoints import SHARDS, bf16_tiny, converted_tiny, write_small
from common import main, tree
from transforming import FP8, TransformCase


class OffTheHub(TransformCase):
    def test_a_thousand_scales_take_a_few_resolutions(self):
        """The Hub answers few requests a minute for where a file lies; ranges of it, then, are free."""
        hub = self.serve_hub()
        hub.add("o/n", self.data())
        out = self.scratch / "packed"
        self.assert_ok(self.repack("o/n", out, "--transform", "fp8-to-bf16", "--jobs", 3, env={"HF_ENDPOINT": hub.url}))
        self.assert_tensors(out, safetensors_io.read_checkpoint(converted_tiny("fp8-to-bf16")))
        stored = [request for request in hub.requests("GET") if request.host != "hub"]
        self.assertGreater(len(stored), 1008)
        self.assertLess(len(hub.requests("GET", "*.safetensors", "hub")), 30)


class Interrupted(TransformCase):
    """A transform needs scales of other shards, and leaves figures that no file holds: both outlive a kill."""

    def test_killed_at_every_shard_and_within(self):
        for transform in ("fp8-to-bf16", "bf16-to-fp8"):
            folder = bf16_tiny() if transform == "bf16-to-fp8" else self.data()
            names = sorted(path.name for path in folder.glob("*.safetensors"))
            out = self.scratch / transform
            for name in reversed(names):  # as they are read
                server = self.serve(folder)
                # Past the probe, and past the scales: what is slow is the shard itself.
                slow = server.add_fault(name, "slow", min_bytes=1_000_000, rate=300_000)
                process = self.start(server.url, "--by", "expert", "--transform", transform, "--out", out, "--jobs", 1)
                self.wait_until(lambda: slow.struck, "shard " + name)
                process.kill()
                self.finish(process)
                self.assert_unfinished(out)
            server.clear_faults()
            result = self.assert_ok(self.repack(server.url, out, "--transform", transform))
            self.assertIn("resuming: %d of %d" % (len(names) - 1, len(names)), result.stderr)
            self.assert_same_tree(out, converted_tiny(transform))

    def test_scales_that_were_read_differently_twice_are_refused_and_read_again_by_repair(self):
        tensors = [{}, {}]
        name = "model.layers.0.self_attn.o_proj.weight"
        tensors[0][name] = (FP8, [640, 1000], bytes(640_000))
        tensors[1]["before"] = ("U8", [300_000], bytes(300_000))
        tensors[1][name + "_scale_inv"] = ("F32", [5, 8], struct.pack("<40f", *range(40)))
        source = write_small(self.scratch / "source", tensors)
        raw = (source / SHARDS[1]).read_bytes()
        server = self.serve(source)
        server.add_fault(SHARDS[1], "corrupt", times=1, at=len(raw) - 1)  # on its way to be used, or to be digested
        out = self.scratch / "packed"
        self.assert_refused(self.repack(server.url, out, "--transform", "fp8-to-bf16", by="layer"),
                            name + "_scale_inv", "read differently twice", "reshard repair %s" % out)
        self.assert_refused(self.repack(server.url, out, "--transform", "fp8-to-bf16", by="layer"), "differently twice")
        self.assert_absent(out / "manifest.json")
        self.assert_ok(self.run_program("repair", out))
        whole = self.scratch / "whole"
        self.assert_ok(self.repack(source, whole, "--transform", "fp8-to-bf16", by="layer"))
        self.assert_same_tree(out, whole)


class Refused(TransformCase):
    def source_of(self, tensors, config=None):
        number = len(list(self.scratch.glob("source-*")))
        source = write_small(self.scratch / ("source-%d" % number),
                             [tensors, {"model.norm.weight": ("BF16", [2], b"1234")}])
        (source / "config.json").write_text(json.dumps(config or {}))
        return source

    def assert_refused_transform(self, source, transform, *needles, began=False):
        out = self.scratch / "packed"
        self.assert_refused(self.repack(source, out, "--transform", transform, by="layer"), *needles)
        self.assert_absent(out / "manifest.json")
        if not began:
            self.assert_absent(out)
        shutil.rmtree(out, ignore_errors=True)

    def test_what_no_number_format_holds(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        for code in (0x7f80, 0xff80, 0x7fc1):
            with self.subTest(code=code):
                source = self.source_of({name: ("BF16", [2, 3], struct.pack("<6H", 0, 1, 2, 3, code, 5))})
                self.assert_refused_transform(source, "bf16-to-fp8", name, "infinity or NaN", "selector", began=True)
        source = self.source_of({name: (FP8, [1, 2], b"\x38\x7e"),
                                 name + "_scale_inv": ("F32", [1, 1], struct.pack("<f", 2.0**120))})
        self.assert_refused_transform(source, "fp8-to-bf16", name, "rows from 0", "too large for 16 bits", began=True)

    def test_scales_that_do_not_fit(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        for dtype, shape, size in (("F32", [1, 2], 8), ("F32", [1], 4), ("F32", [2, 1], 8), ("BF16", [1, 1], 2)):
            with self.subTest(dtype=dtype, shape=shape):
                source = self.source_of({name: (FP8, [1, 2], b"ab"), name + "_scale_inv": (dtype, shape, bytes(size))})
                self.assert_refused_transform(source, "fp8-to-bf16", name + "_scale_inv", "blocks of 128 x 128")

    def test_a_config_that_describes_something_else(self):
        name = "model.layers.0.self_attn.o_proj.weight"
        tensors = {name: (FP8, [1, 2], b"ab"), name + "_scale_inv": ("F32", [1, 1], b"\0\0\x80\x3f")}
        described = {"quant_method": "fp8", "weight_block_size": [64, 64]}
        source = self.source_of(tensors, {"quantization_config": described})
        self.assert_refused_transform(source, "fp8-to-bf16", "config.json", "weight_block_size")
        # A method that transforms do not know is of no matter where no codes are left, and is where some are.
        gptq = {"quantization_config": {"quant_method": "gptq"}}
        packed = self.scratch / "values"
        self.assert_ok(self.repack(self.source_of(tensors, gptq), packed, "--transform", "fp8-to-bf16", by="layer"))
        self.assertNotIn("quantization_config", json.loads((packed / "config.json").read_text()))
        self.assert_refused_transform(self.source_of(tensors, gptq), "scales-to-e8m0", "config.json", "quant_method")
        source = self.source_of(tensors)
        for text in ("[]", "{", "", "{\"a\":1,\"a\":2}", "[" * 100_000, "{\"a\":\"" + "x" * (17 << 20) + "\"}"):
            (source / "config.json").write_text(text)
            self.assert_refused_transform(source, "fp8-to-bf16", "config.json")
        (source / "config.json").unlink()
        self.assert_refused_transform(source, "fp8-to-bf16", "config.json")

    def test_the_name_for_the_source_s_config_is_taken(self):
        source = self.copy_source()
        (source / "config.source.json").write_text("{}")
        self.assert_refused(self.repack(source, self.scratch / "packed", "--transform", "fp8-to-bf16"),
                            "config.source.json", "move the file away")
        self.assert_ok(self.repack(source, self.scratch / "packed"))  # without a change it is a file like any other
        self.assertEqual(tree(self.scratch / "packed")["config.source.json"], tree(source)["config.source.json"])


if __name__ == "__main__":
    main()
