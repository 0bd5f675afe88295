"""reshard on DeepSeek-V4: all names of the releases against their published digest, planned without their bytes, and every kind
of tensor packed, verified and unpacked."""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

from common import EndToEnd, exact_size, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import v3_checkpoint  # noqa: E402
import v4_checkpoint  # noqa: E402

# Files, tensors, bytes of tensors, layers with the stages, routed experts; and of Flash the digest of the released index:
# SHA-256 over its sorted lines ["name","shard"].
RELEASES = {"flash": (48, 72_317, 166_878_536_440, 46, 46 * 256), "pro": (66, 149_782, 892_727_580_904, 64, 64 * 384)}
FLASH_INDEX = "189e5e292be34b1378ac96dafd0e6255d582aaae28a1558a21f0d629938d5c8c"
SMALL = {**v4_checkpoint.FLASH, "hidden_size": 128, "moe_intermediate_size": 64, "n_routed_experts": 4, "num_attention_heads": 4,
         "head_dim": 64, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 32,
         "num_hidden_layers": 5, "compress_ratios": [0, 0, 4, 128, 4, 0, 0, 0], "vocab_size": 300, "num_experts_per_tok": 2,
         "dspark_target_layer_ids": [2, 3, 4], "dspark_markov_rank": 8}


class Releases(EndToEnd):
    def whole(self, model):
        source = self.scratch / model
        try:
            v4_checkpoint.write_checkpoint(source, v4_checkpoint.FLASH if model == "flash" else v4_checkpoint.PRO)
        except OSError as error:
            self.skipTest("this file system makes no sparse files of 14 GB: %s" % error)
        if sum(path.stat().st_blocks * 512 for path in source.glob("*.safetensors")) > 1 << 30:
            self.skipTest("this file system keeps zeros: no sparse files")
        return source

    def check(self, model):
        source = self.whole(model)
        files, tensors, size, layers, experts = RELEASES[model]
        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        self.assertIn("%d files, %d tensors, %s, %d layers, %d routed experts" % (files, tensors, exact_size(size), layers, experts),
                      inspected)
        planned = self.assert_ok(self.repack(source, self.scratch / "packed", "--dry-run")).stdout
        # One file an expert, one a layer, embedding and head.
        self.assertIn(" in %d weight files\n" % (experts + layers + 2), planned)
        self.assert_absent(self.scratch / "packed")
        return source

    def test_all_of_flash(self):
        source = self.check("flash")
        weight_map = json.loads((source / v3_checkpoint.INDEX).read_text())["weight_map"]
        lines = "".join(json.dumps(pair, separators=(",", ":")) + "\n" for pair in sorted(weight_map.items()))
        self.assertEqual(hashlib.sha256(lines.encode()).hexdigest(), FLASH_INDEX)

    def test_all_of_pro(self):
        self.check("pro")


class Packing(EndToEnd):
    def test_every_kind_of_tensor_is_packed_verified_and_unpacked(self):
        source, packed, back = self.scratch / "source", self.scratch / "packed", self.scratch / "back"
        shards = v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(1))
        self.assertEqual({tensor.dtype for shard in shards for tensor in shard}, {"F8_E4M3", "F8_E8M0", "I8", "BF16", "F32", "I64"})
        inspected = self.assert_ok(self.run_program("inspect", source)).stdout
        roles = {role: int(count) for role, count in re.findall(r"^  ([a-z_]+) +(\d+) +\d+$", inspected, re.M)}
        self.assertEqual(roles["routed_expert"], 8 * 4 * 6)
        self.assertEqual(roles["router"], 8 * 2)
        self.assertEqual(roles["head"], 5)
        self.assertEqual(roles["mtp"], 3 + 4 + 3)  # main_proj and its norm; the end of the last stage; its two heads
        self.assertEqual(roles["other"], 8 * 2 * 3)  # what mixes the streams
        self.assert_ok(self.repack(source, packed))
        self.assert_ok(self.run_program("verify", packed, "--source", source))
        self.assert_ok(self.run_program("unpack", "--exact", packed, "--out", back))
        for path in sorted(source.iterdir()):
            self.assertEqual((back / path.name).read_bytes(), path.read_bytes(), path.name)
        victim = sorted(packed.rglob("*.safetensors"))[5]
        with open(victim, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.run_program("verify", packed).code, 1)
        self.assert_ok(self.run_program("repair", packed, "--source", source))
        self.assert_ok(self.run_program("verify", packed))

    def test_the_stages_that_draft_can_be_left_out(self):
        source, packed = self.scratch / "source", self.scratch / "packed"
        v4_checkpoint.write_checkpoint(source, SMALL, v3_checkpoint.RandomPayload(1))
        recipe = Path(__file__).resolve().parents[2] / "recipes" / "without-mtp.json"
        self.assert_ok(self.run_program("--recipe", recipe, "--out", packed, source))
        self.assert_ok(self.run_program("verify", packed))
        self.assertIn(" 5 layers, %d routed experts" % (5 * 4), self.assert_ok(self.run_program("inspect", packed)).stdout)
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual((config["num_nextn_predict_layers"], config["compress_ratios"]), (0, [0, 0, 4, 128, 4]))
        self.assertEqual([key for key in config if key.startswith("dspark_")], [])
        self.assertEqual({key for key in SMALL if key not in config}, {key for key in SMALL if key.startswith("dspark_")})


if __name__ == "__main__":
    main()
