"""The generator of checkpoints (tests/tools/v3_checkpoint.py) against the published figures of the releases, and reshard
on all of DeepSeek-V3: 163 shards of zeros that take no room."""

import collections
import json
import os
import sys
import unittest
from pathlib import Path

import safetensors_io
from common import INDEX, EndToEnd, exact_size, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import v3_checkpoint  # noqa: E402

V3_TENSORS, V3_PAYLOAD_BYTES, V3_EXPERTS = 91_991, 688_574_839_360, 15_104
V3_HEADERS_BYTES = 11_888_393
V2_LITE = {"first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
           "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
           "num_attention_heads": 16, "num_hidden_layers": 27, "q_lora_rank": None, "qk_nope_head_dim": 128,
           "qk_rope_head_dim": 64, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400}
SMALL = {**v3_checkpoint.V3, "hidden_size": 256, "intermediate_size": 512, "kv_lora_rank": 64, "q_lora_rank": 96,
         "moe_intermediate_size": 128, "n_routed_experts": 4, "num_attention_heads": 2, "num_hidden_layers": 4,
         "vocab_size": 9000}


def totals(shards):
    tensors = [tensor for shard in shards for tensor in shard]
    return len(shards), len(tensors), sum(tensor.bytes for tensor in tensors)


class Shapes(unittest.TestCase):
    def test_v3_is_cut_as_the_release_is(self):
        shards = v3_checkpoint.make_shards(v3_checkpoint.V3)
        self.assertEqual(totals(shards), (163, V3_TENSORS, V3_PAYLOAD_BYTES))
        headers = [v3_checkpoint.header(shard) for shard in shards]
        sizes = [len(head) + sum(tensor.bytes for tensor in shard) for head, shard in zip(headers, shards)]
        self.assertEqual(sizes[0], 5_234_139_343)
        self.assertIn(4_302_350_824, sizes)
        self.assertEqual(len(headers[159]), 8 + 58_442)
        self.assertEqual(sum(map(len, headers)), V3_HEADERS_BYTES)
        self.assertEqual(shards[159][0].name, "model.layers.60.mlp.experts.184.up_proj.weight_scale_inv")
        shard_of = {tensor.name: number for number, shard in enumerate(shards, 1) for tensor in shard}
        self.assertEqual((shard_of["lm_head.weight"], shard_of["model.norm.weight"]), (160, 160))
        for name in ("embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head"):
            self.assertEqual(shard_of["model.layers.61.%s.weight" % name], 163)
        apart = [name for name in shard_of if shard_of.get(name + "_scale_inv", shard_of[name]) != shard_of[name]]
        self.assertGreater(len(apart), 100)

    def test_v3_by_layer(self):
        by_layer = collections.defaultdict(list)
        for tensor in v3_checkpoint.Model(v3_checkpoint.V3).tensors():
            by_layer[tensor.part].append(tensor)
        for layer, tensors, size in ((0, 20, 583_642_336), (3, 1_558, 11_511_947_488), (61, 1_564, 15_424_227_552)):
            self.assertEqual((len(by_layer[layer]), sum(t.bytes for t in by_layer[layer])), (tensors, size))
        shapes = {t.name[len("model.layers.3."):]: (t.dtype, t.shape) for t in by_layer[3]}
        self.assertEqual(shapes["self_attn.kv_a_proj_with_mqa.weight_scale_inv"], ("F32", [5, 56]))
        self.assertEqual(shapes["mlp.experts.255.down_proj.weight"], ("F8_E4M3", [7168, 2048]))
        self.assertEqual(shapes["mlp.gate.e_score_correction_bias"], ("F32", [256]))

    def test_v2_lite(self):
        self.assertEqual(totals(v3_checkpoint.make_shards(V2_LITE)), (4, 5_291, 31_412_968_448))

    def test_chosen_layers_and_shards(self):
        parts = v3_checkpoint.parse_parts("embed,0-1,3,head")
        for options, count in (({"count": 7}, 7), ({"count": 89}, 89), ({"shard_bytes": 1}, 89)):
            shards = v3_checkpoint.make_shards(SMALL, parts, **options)
            self.assertEqual(totals(shards)[:2], (count, 3 + 2 * 20 + 22 + 4 * 6))
            self.assertTrue(all(shards))
        with self.assertRaises(ValueError):
            v3_checkpoint.make_shards(SMALL, parts, count=1000)


class Payload(EndToEnd):
    def write(self, name, seed):
        folder = self.scratch / name
        v3_checkpoint.write_checkpoint(folder, SMALL, v3_checkpoint.make_shards(SMALL, count=3),
                                       v3_checkpoint.RandomPayload(seed))
        return folder

    def read(self, folder):
        tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors.update(safetensors_io.parse(path.read_bytes())[0])
        return tensors

    def test_random_bytes_are_numbers_and_repeatable(self):
        one, again, other = self.write("one", 1), self.write("again", 1), self.write("other", 2)
        tensors = self.read(one)
        self.assertEqual(self.read(again), tensors)
        self.assertNotEqual(self.read(other), tensors)
        raws = [raw for _, _, raw in tensors.values()]
        self.assertEqual(len(set(raws)), len(raws))
        self.assertGreater(max(map(len, raws)), v3_checkpoint.RandomPayload.PIECE_BYTES)
        for name, (dtype, _, raw) in tensors.items():
            if dtype == "F8_E4M3":
                self.assertEqual({0x7f, 0xff} & set(raw), set(), name)
            else:  # the byte with the sign and most of the exponent
                top = set(raw[1::2]) if dtype == "BF16" else set(raw[3::4])
                self.assertLessEqual(top, {0x39, 0x3b, 0x3c, 0x3d, 0xbb, 0xbc, 0xbd}, name)

    def test_reshard_packs_it(self):
        source = self.write("one", 1)
        self.assert_ok(self.repack(source, self.scratch / "packed"))
        self.assert_ok(self.run_program("verify", self.scratch / "packed", "--source", source))


class Whole(EndToEnd):
    def test_reshard_on_all_of_v3(self):
        source = self.scratch / "v3"
        try:
            v3_checkpoint.write_checkpoint(source, v3_checkpoint.V3, v3_checkpoint.make_shards(v3_checkpoint.V3))
        except OSError as error:
            self.skipTest("this file system makes no sparse files of 6 GB: %s" % error)
        shards = [os.stat(path) for path in source.glob("*.safetensors")]
        if sum(info.st_blocks * 512 for info in shards) > 1 << 30:
            self.skipTest("this file system keeps zeros: no sparse files")
        self.assertEqual(sum(info.st_size for info in shards), V3_PAYLOAD_BYTES + V3_HEADERS_BYTES)
        self.assertEqual(json.loads((source / INDEX).read_text())["metadata"]["total_size"], 1_369_062_772_000)

        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        self.assertIn("163 files, %d tensors, %s, 62 layers, %d routed experts" % (
            V3_TENSORS, exact_size(V3_PAYLOAD_BYTES), V3_EXPERTS), inspected)
        out = self.scratch / "packed"
        planned = self.assert_ok(self.repack(source, out, "--dry-run")).stdout
        # One file an expert, one a layer, embedding and head.
        self.assertIn(" in %d weight files\n" % (V3_EXPERTS + 62 + 2), planned)
        self.assertIn("to read  %s " % exact_size(V3_PAYLOAD_BYTES + V3_HEADERS_BYTES), planned)
        self.assert_absent(out)


if __name__ == "__main__":
    main()
