"""transformers opens what was packed of every family of names for which it has a class, in every grouping: the same model as
the source opened the same way, parameter by parameter, and the same logits.

It makes the sources itself (tests/tools/transformers/families.py). Where experts were fused, the packed repository is not
for other loaders: there it refuses, and what `reshard unpack` makes of it is opened.
"""

import json
import shutil

from common import INDEX, EndToEnd, main
from with_transformers import TOOLS, differences, need_transformers, opened, run_python

GROUPINGS = ("expert", "expert:3", "layer", "shard:100KB")
FUSED = {"llama4_text", "gpt_oss", "qwen3_vl_moe"}
NATIVE = {"deepseek_v4": "layers.0.ffn.experts.0.w1.weight", "mistral_large4": "layers.1.experts.0.w1.weight",
          "kimi_k25": "language_model.model.layers.1.mlp.experts.0.down_proj.weight",
          "mixtral": "model.layers.0.block_sparse_moe.experts.0.w1.weight"}  # as released, not as a class calls them


class Families(EndToEnd):
    def made(self):
        result = self.assert_ok(run_python(self, [TOOLS / "families.py", self.scratch / "source"]))
        return {line["name"]: line for line in map(json.loads, result.stdout.splitlines())}

    def packed(self, name, by):
        """What other loaders are given: the packed folder, or the unpacked one of a family whose experts were fused."""
        source, packed = self.scratch / "source" / name, self.scratch / "packed" / name / by.replace(":", "-")
        self.assert_ok(self.repack(source, packed, by=by))
        self.assertEqual((packed / INDEX).exists(), name not in FUSED)
        if name not in FUSED:
            return packed
        self.assert_ok(self.run_program("unpack", packed, "--out", packed.with_suffix(".unpacked")))
        return packed.with_suffix(".unpacked")

    def test_every_family_in_every_grouping(self):
        made = self.made()
        self.assertGreaterEqual(len(made), 19)
        for name, first in NATIVE.items():
            weight_map = json.loads((self.scratch / "source" / name / INDEX).read_text())["weight_map"]
            self.assertIn(first, weight_map)
        places = {}
        for name in made:
            self.assertTrue(made[name]["expert"], name)
            places[name] = [self.packed(name, by) for by in GROUPINGS]
        flat = self.scratch / "flat"
        self.assert_ok(self.run_program("link", places["deepseek_v3"][0], "--out", flat))
        places["deepseek_v3"].append(flat)
        reports = opened(self, [place for name in made for place in (self.scratch / "source" / name, *places[name])])
        for name in made:
            source = reports[str(self.scratch / "source" / name)]
            self.assertEqual((source["model"], source["missing"], source["mismatched"]), (made[name]["model"], [], []), name)
            self.assertGreater(len(source["parameters"]), 20)
            for place in places[name]:
                with self.subTest(name, place=place.name):
                    self.assertEqual(differences(source, reports[str(place)]), [])
            print("opened: %s (%s), %d parameters" % (name, source["model"], len(source["parameters"])), flush=True)

    def test_slices_of_fused_experts_are_refused_not_left_out(self):
        """No index: transformers must not go on with random weights in their place."""
        self.assert_ok(run_python(self, [TOOLS / "families.py", self.scratch / "source", "gpt_oss"]))
        self.packed("gpt_oss", "layer")
        packed = self.scratch / "packed" / "gpt_oss" / "layer"
        result = run_python(self, [TOOLS / "opened.py", packed])
        self.assertNotEqual(result.code, 0)
        self.assertIn("no file named model.safetensors", result.stderr)
        shutil.rmtree(packed)


if __name__ == "__main__":
    need_transformers()
    main()
