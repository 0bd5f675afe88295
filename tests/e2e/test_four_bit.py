"""dsrun on weights of four bits and on integers in groups: the numbers are those of the same values as F32, written down
by converters of the test's own (checkpoints.FOUR_BIT)."""

import json
import struct

import safetensors_io
from checkpoints import FOUR_BIT, write_four_bit
from common import main
from logits_case import TOKENS, LogitsCase

# Sums of up to 136 products, a few times over; codes take their scale after the sum, F32 before.
ROUNDING_NMSE = 1e-11
EXPERT = "model.layers.1.mlp.experts.3.up_proj."
STATE = "weight.quant_state.bitsandbytes__nf4"


class FourBit(LogitsCase):
    def test_every_form_means_what_it_says(self):
        for form in FOUR_BIT:
            with self.subTest(form):
                coded, f32 = write_four_bit(self.scratch, "v2.5", form)
                wanted = self.logits(f32)
                own = self.logits(coded)
                self.assertLess(self.nmse(own, wanted), ROUNDING_NMSE)
                self.assertEqual(self.logits(coded, "--dev", "chunk=7"), own)
                self.assertEqual(self.logits(coded, "--dev", "cpu=scalar"), own)
                f32.rename(self.scratch / ("f32-" + form))

    def test_experts_alone_beside_others_in_bf16(self):
        for form in ("int4", "nvfp4", "mxfp4-v4"):
            with self.subTest(form):
                coded, f32 = write_four_bit(self.scratch / form, "v2-lite", form, only=lambda name: ".experts." in name)
                self.assertLess(self.nmse(self.logits(coded), self.logits(f32)), ROUNDING_NMSE)

    def test_packing_by_expert_and_few_slots_change_no_bit(self):
        for form in ("int4", "int4-zeros", "nvfp4-over", "nf4-nested", "awq"):
            with self.subTest(form):
                coded, _ = write_four_bit(self.scratch / form, "v2-lite", form)
                packed = self.scratch / ("packed-" + form)
                self.assert_ok(self.repack(coded, packed))
                own = self.logits(coded)
                self.assertEqual(self.logits(packed), own)
                self.assertEqual(self.logits(packed, "--experts", "8"), own)
                self.assertEqual(safetensors_io.read_checkpoint(packed), safetensors_io.read_checkpoint(coded))
                self.assert_ok(self.run_program("verify", packed, "--source", coded))

    def test_what_releases_have_beside_it_changes_nothing(self):
        """What the programs write that published checkpoints are from, and no library's own output shows."""
        def each(ending, change):
            def apply(tensors, _):
                for name in [name for name in tensors if name.endswith(ending)]:
                    change(tensors, name)
            return apply

        def narrow(tensors, name):  # Moonshot's
            tensors[name] = ("I32", [2], struct.pack("<2i", *struct.unpack("<2q", tensors[name][2])))

        def in_order(tensors, name):  # llm-compressor's with actorder "weight"
            columns = struct.unpack("<2q", tensors[name][2])[1]
            order = struct.pack("<%di" % columns, *(column // 32 for column in range(columns)))
            tensors[name.replace("shape", "g_idx")] = ("I32", [columns], order)

        def cache_scales(tensors, name):  # NVIDIA's with an FP8 cache; compressed-tensors', Quark's and vLLM's beside
            module = name.removesuffix("kv_a_layernorm.weight")
            for part in ("k_proj.k_scale", "v_proj.v_scale", "k_scale", "v_scale", "k_proj.output_scale", "attn.k_scale",
                         "kv_scale"):
                tensors[module + part] = ("F32", [], struct.pack("<f", 0.5))

        def says(**more):
            return lambda _, config: config["quantization_config"].update(more)

        def moved(_, config):  # NVIDIA's beside a config.json that says nothing
            told = config.pop("quantization_config")
            told.pop("quant_method")
            return {"hf_quant_config.json": json.dumps({"producer": {"name": "modelopt"}, "quantization": told})}

        rounds = {"auto-round": {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "iters": 200,
                                 "extra_config": {"lm_head": {"bits": 16, "data_type": "fp"}}},
                  "GPTQModel": {"method": "gptq", "format": "gptq", "act_group_aware": True, "mse": 0.0,
                                "dynamic": {"-:.*q_proj": {}}, "something_new": 3}}
        for form, change in (("int4", each("weight_shape", narrow)), ("int4", each("weight_shape", in_order)),
                             ("nvfp4", each("kv_a_layernorm.weight", cache_scales)), ("nvfp4", moved),
                             ("gptq", says(**rounds["auto-round"])), ("gptq", says(**rounds["GPTQModel"])),
                             ("awq", says(quant_method="moe_wna16", linear_quant_method="awq"))):
            with self.subTest(form):
                good, changed = self.scratch / form / form, self.scratch / "changed"
                if not good.exists():
                    write_four_bit(self.scratch / form, "v2-lite", form)
                changed.mkdir(exist_ok=True)
                tensors, _ = safetensors_io.parse((good / "model.safetensors").read_bytes())
                config = json.loads((good / "config.json").read_text())
                (changed / "hf_quant_config.json").unlink(missing_ok=True)
                for name, text in (change(tensors, config) or {}).items():
                    (changed / name).write_text(text)
                safetensors_io.write(changed / "model.safetensors", tensors)
                (changed / "config.json").write_text(json.dumps(config))
                self.assertEqual(self.logits(changed), self.logits(good))

    def refused(self, form, change, *words):
        """`change` gets the tensors and quantization_config of a good checkpoint."""
        good, coded = self.scratch / "good" / form, self.scratch / "changed"
        if not good.exists():
            write_four_bit(self.scratch / "good", "v2-lite", form)
            (self.scratch / "good" / "f32").rename(self.scratch / ("f32-" + form))
        coded.mkdir(exist_ok=True)
        tensors, _ = safetensors_io.parse((good / "model.safetensors").read_bytes())
        settings = json.loads((good / "config.json").read_text())
        change(tensors, settings.get("quantization_config"))
        safetensors_io.write(coded / "model.safetensors", tensors)
        (coded / "config.json").write_text(json.dumps(settings))
        result = self.dsrun(coded, "--tokens", ",".join(map(str, TOKENS)), "-n", 2)
        self.assert_refused(result, *words, program="dsrun")

    def test_what_does_not_fit_is_refused_by_name(self):
        def without(part):
            return lambda tensors, _: tensors.pop(EXPERT + part)

        def with_bytes(part, raw):
            def change(tensors, _):
                dtype, shape, old = tensors[EXPERT + part]
                tensors[EXPERT + part] = (dtype, shape, raw + old[len(raw):])
            return change

        def with_shape(part, shape, count):
            def change(tensors, _):
                dtype, _, raw = tensors[EXPERT + part]
                tensors[EXPERT + part] = (dtype, shape, (raw * (count // len(raw) + 1))[:count])
            return change

        def weights(key, value):
            def change(_, quantisation):
                quantisation["config_groups"]["group_0"]["weights"][key] = value
            return change

        def added(part, tensor):
            return lambda tensors, _: tensors.update({EXPERT + part: tensor})

        def setting(key, value):
            return lambda _, quantisation: quantisation.update({key: value})

        def state(name=STATE, **changes):
            def change(tensors, _):
                dtype, _, raw = tensors.pop(EXPERT + STATE)
                text = json.dumps({**json.loads(raw), **changes}).encode()
                tensors[EXPERT + name] = (dtype, [len(text)], text)
            return change

        def both(first, second):
            return lambda *parts: (first(*parts), second(*parts))

        scalar = ("F32", [1], struct.pack("<f", 1))
        nan16, infinite = b"\xc0\x7f", b"\x80\xff"
        for form, change, words in (
                ("int4", without("weight_scale"), (EXPERT + "weight_scale", "missing")),
                ("int4", with_bytes("weight_scale", nan16), (EXPERT + "weight_scale", "not a number")),
                ("int4", with_bytes("weight_scale", infinite), (EXPERT + "weight_scale", "infinite")),
                ("int4", with_shape("weight_scale", [6, 3], 36), (EXPERT + "weight_scale", "[6, 3]", "32")),
                ("int4", with_bytes("weight_shape", struct.pack("<2q", 6, 40)), ("weight_shape", "[6, 40]", "[6, 48]")),
                ("int4", with_shape("weight_packed", [6, 5], 120), (EXPERT + "weight_packed", "[6, 5]")),
                ("int4", weights("num_bits", 8), ("weight_packed", "8 bits")),
                ("int4", weights("group_size", 16), ("weight_scale", "group_size")),
                ("int4", weights("group_size", 0), ("group_size",)),
                ("int4", weights("symmetric", False), ("weight_zero_point", "config.json")),
                ("int4", weights("num_bits", 3), ("num_bits", "3")),
                ("int4", added("weight_g_idx", ("I32", [48], bytes(192))),
                 (EXPERT + "weight_packed", "weight_g_idx", "actorder")),
                ("int4", weights("actorder", "group"), ("weight_packed", "actorder")),
                ("int4-zeros", without("weight_zero_point"), (EXPERT + "weight_packed", "weight_zero_point")),
                ("int4-zeros", weights("symmetric", True), ("weight_zero_point", "config.json")),
                ("int4-zeros", with_shape("weight_zero_point", [2, 2], 16), (EXPERT + "weight_zero_point", "[2, 2]")),
                ("nvfp4", without("weight_scale_2"), (EXPERT + "weight_scale", "weight_scale_2")),
                ("nvfp4", with_bytes("weight_scale_2", bytes(4)), (EXPERT + "weight_scale_2", "above 0")),
                ("nvfp4", with_bytes("weight_scale_2", struct.pack("<f", float("nan"))), (EXPERT + "weight_scale_2",)),
                ("nvfp4", with_bytes("weight_scale", b"\x7f"), (EXPERT + "weight_scale", "not a number")),
                ("nvfp4", with_shape("weight_scale", [6, 2], 12), (EXPERT + "weight_scale", "[6, 2]", "16")),
                ("nvfp4", without("weight_scale"), (EXPERT + "weight_scale", "missing")),
                ("nvfp4", added("weight_global_scale", ("F32", [1], struct.pack("<f", 1))), ("ambiguous",)),
                ("awq", without("qzeros"), (EXPERT + "qzeros", "missing")),
                ("awq", without("scales"), (EXPERT + "scales", "missing")),
                ("awq", with_shape("qzeros", [1, 1], 4), (EXPERT + "qzeros", "[1, 1]", "[2, 1]")),
                ("awq", with_bytes("scales", b"\0\x7e"), (EXPERT + "scales", "not a number")),
                ("awq", setting("bits", 3), ("bits",)),
                ("awq", setting("version", "marlin"), ("version", "marlin")),
                ("awq", setting("group_size", 16), ("scales", "group_size")),
                ("gptq", with_bytes("g_idx", struct.pack("<i", 1)), (EXPERT + "qweight", "desc_act")),
                ("gptq-ordered", with_bytes("g_idx", struct.pack("<i", 2)), (EXPERT + "qweight", "group 2", "2 groups")),
                ("gptq-ordered", with_bytes("g_idx", struct.pack("<i", -1)), (EXPERT + "qweight", "group -1")),
                ("gptq", with_bytes("qzeros", b"\xff"), (EXPERT + "qzeros", "zero point", "disagree")),
                ("gptq-ordered", without("g_idx"), (EXPERT + "g_idx", "missing")),
                ("gptq", setting("quant_method", "fp8"), ("quantization_config",)),
                ("gptq", setting("bits", 2), ("bits",)),
                ("gptq", setting("checkpoint_format", "marlin"), ("checkpoint_format", "marlin")),
                ("gptq", setting("dynamic", {"+:.*down.*": {"bits": 8}}), ("dynamic",)),
                ("nf4", without("weight.absmax"), (EXPERT + "weight.absmax", "missing")),
                ("nf4", with_bytes("weight.absmax", b"\0\0\x80\x7f"), (EXPERT + "weight", "absmax 0")),
                ("nf4", with_shape("weight.absmax", [3], 12), (EXPERT + "weight", "3 absmax")),
                ("nf4", with_bytes("weight.quant_map", b"\0\0\xc0\x7f"), (EXPERT + "weight", "quant_map 0")),
                ("nf4", with_shape("weight.quant_map", [15], 60), (EXPERT + "weight.quant_map", "[15]")),
                ("nf4", with_shape("weight", [100, 1], 100), (EXPERT + "weight", "[100, 1]")),
                ("nf4", with_bytes(STATE, b"not JSON"), (EXPERT + "weight", "quant_state")),
                ("nf4", with_bytes(STATE, json.dumps({"blocksize": 0, "shape": [6, 48]}).encode().ljust(77)),
                 (EXPERT + "weight", "blocksize")),
                ("nf4", with_bytes(STATE, json.dumps({"blocksize": 64, "shape": [48, 6]}).encode().ljust(77)),
                 (EXPERT + "weight", "[6, 48]")),
                ("nf4", with_shape(STATE, [5000], 5000), (EXPERT + STATE, "5.00 kB, more than the 4.10 kB")),
                ("nf4", setting("load_in_8bit", True), ("load_in_4bit", "load_in_8bit")),
                ("nf4", setting("bnb_4bit_quant_storage", "bfloat16"), ("bnb_4bit_quant_storage",)),
                ("nf4-nested", without("weight.nested_absmax"), (EXPERT + "weight.nested_absmax", "missing")),
                ("nf4-nested", with_shape("weight.nested_quant_map", [255], 1020), ("nested_quant_map", "256")),
                ("bnb-int8", with_bytes("SCB", b"\0\0\x80\x7f"), (EXPERT + "weight", "SCB 0")),
                ("bnb-int8", with_shape("SCB", [5], 20), (EXPERT + "SCB", "[5]")),
                ("bnb-int8", with_bytes("weight_format", b"\1"), (EXPERT + "weight", "weight_format")),
                ("bnb-int8", setting("load_in_4bit", True), ("load_in_4bit",)),
                ("nf4", without(STATE), (EXPERT + STATE, "missing")),
                ("nf4", state(quant_type="fp4"), (EXPERT + "weight", "quant_type")),
                ("nf4", state(STATE.replace("nf4", "fp4"), quant_type="fp4"), (EXPERT + "weight", "bnb_4bit_quant_type")),
                ("nf4", added(STATE.replace("nf4", "fp4"), ("U8", [2], b"{}")), (EXPERT + STATE, "remove one")),
                ("nf4", state(dtype="int8"), (EXPERT + "weight", '"dtype"')),
                ("nf4", state(dtype=["bfloat16"]), (EXPERT + "weight", '"dtype"')),
                ("nf4", state(blocksize=32), (EXPERT + "weight", "blocks of 32")),
                ("nf4", added("weight.nested_absmax", scalar), (EXPERT + "weight.nested_absmax", "F32")),
                ("nf4-nested", with_bytes("weight.nested_absmax", b"\0\0\xc0\x7f"), (EXPERT + "weight", "nested_absmax 0")),
                ("nf4", both(with_bytes("weight.quant_map", struct.pack("<f", -4)),
                             with_bytes("weight.absmax", struct.pack("<f", 1e38))), (EXPERT + "weight", "block 0", "too large")),
                ("nf4-nested", without("weight.nested_quant_map"), (EXPERT + "weight.nested_quant_map", "missing")),
                ("nf4-nested", state(nested_dtype="float16"), (EXPERT + "weight", '"nested_dtype"')),
                ("nf4-nested", state(nested_blocksize=2), (EXPERT + "weight", "blocks of 2")),
                ("nf4-nested", state(nested_offset="0"), (EXPERT + "weight", "nested_offset")),
                ("bnb-int8", with_bytes("SCB", b"\xff\xff\x7f\x7f"), (EXPERT + "weight", "row 0", "too large")),
                ("bnb-int8", without("SCB"), (EXPERT + "weight", "missing")),
                ("nf4", setting("bnb_4bit_quant_type", "int4"), ("bnb_4bit_quant_type", "int4")),
                ("nf4", added("q_weight", ("I32", [1, 1], bytes(4))), (EXPERT + "q_weight", "exl2", "permuted")),
                ("nf4", added("trellis", ("I16", [1, 1, 48], bytes(96))), (EXPERT + "trellis", "exl3")),
                ("bnb-int8", added("weight_scales", ("F16", [6], bytes(12))), (EXPERT + "weight_scales", "eetq")),
                ("nf4", setting("quant_method", "eetq"), ("quant_method", "kernel")),
                ("nf4", setting("quant_method", "exl2"), ("quant_method", "permuted")),
                ("nf4", setting("quant_method", "mxfp4"), ("quant_method", "gpt-oss")),
                ("mxfp4", added("weight_global_scale", ("F32", [1], struct.pack("<f", 1))), ("ambiguous",)),
                ("mxfp4", added("weight", ("U8", [6, 24], bytes(144))), ("ambiguous",)),
                ("mxfp4", with_bytes("weight_scale", b"\xff"), (EXPERT + "weight_scale", "not a number")),
                ("mxfp4", with_shape("weight_scale", [6, 3], 18), (EXPERT + "weight_scale", "[6, 3]", "32"))):
            with self.subTest(form=form, words=words):
                self.refused(form, change, *words)


if __name__ == "__main__":
    main()
