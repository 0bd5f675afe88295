"""What the tests of transforms share: what the program should make of weights, by weight_formats.py, and how a result is
held to it."""

import array
import json
import re

import safetensors_io
import weight_formats
from common import EndToEnd

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
FP8 = "F8_E4M3"
QUANTISED = ("self_attn.", "mlp.gate_proj.", "mlp.up_proj.", "mlp.down_proj.", "mlp.shared_experts.", "mlp.experts.")
TOKENS = "0,5,17,200,9,44,3"
SUMS = 1e-12  # of rounding in the program's FP64 sums


def role(name):
    """As the manifest names it."""
    for part, known in (("self_attn.", "attention"), ("shared_experts.", "shared_expert"), (".experts.", "routed_expert"),
                        ("mlp.", "dense_mlp")):
        if part in name:
            return known
    raise ValueError(name)


def scales_of(tensors, name):
    return weight_formats.f32_values(tensors[name + "_scale_inv"][2])


def dequantised(tensors, dtype):
    """(all tensors that should come of FP8 tensors, {name: loss})"""
    made, losses = {}, {}
    for name, (kind, shape, raw) in tensors.items():
        if kind == FP8:
            data, losses[name] = weight_formats.dequantised(raw, shape, scales_of(tensors, name), dtype)
            made[name] = (dtype, shape, data)
        elif not name.endswith("_scale_inv"):
            made[name] = (kind, shape, raw)
    return made, losses


def quantised(tensors):
    made, losses = {}, {}
    for name, (kind, shape, raw) in tensors.items():
        made[name] = (kind, shape, raw)
        if kind == "BF16" and len(shape) == 2 and name.endswith(".weight") and any(p in name for p in QUANTISED):
            data, scales, losses[name] = weight_formats.quantised(raw, shape)
            made[name] = (FP8, shape, data)
            made[name + "_scale_inv"] = ("F32", [-(-size // weight_formats.BLOCK) for size in shape], scales)
    return made, losses


class TransformCase(EndToEnd):
    def manifest(self, packed):
        return json.loads((packed / "manifest.json").read_text())

    def ask(self, folder, *arguments):
        return self.assert_ok(self.run_program(folder, "-p", QUESTION, *arguments, program="DSPACK_DSRUN")).stdout

    def logits(self, folder, *arguments):
        path = self.scratch / "logits.safetensors"
        path.unlink(missing_ok=True)
        self.assert_ok(self.run_program("logits", folder, "--tokens", TOKENS, "--out", path, *arguments,
                                        program="DSPACK_DSRUN"))
        values = array.array("f")
        values.frombytes(safetensors_io.parse(path.read_bytes())[0]["logits"][2])
        return values

    def assert_tensors(self, packed, wanted):
        found = safetensors_io.read_checkpoint(packed)
        self.assertEqual(sorted(set(found) ^ set(wanted)), [])
        self.assertEqual([name for name in wanted if found[name][:2] != wanted[name][:2]], [], "dtypes and shapes")
        self.assertEqual([name for name in wanted if found[name][2] != wanted[name][2]], [], "bytes")

    def assert_errors(self, packed, losses):
        """The manifest's figures are those of the tensors that were rounded, by role."""
        stated = self.manifest(packed)["rounding_errors"]
        roles = {}
        for name, loss in losses.items():
            roles.setdefault(role(name), {})[name] = loss
        self.assertEqual(sorted(stated), sorted(roles))
        for name, of_role in roles.items():
            total = weight_formats.Loss()
            for loss in of_role.values():
                total.join(loss)
            errors = {tensor: loss.relative_rms() for tensor, loss in of_role.items()}
            worst = max(errors.values())
            self.assertEqual(stated[name]["tensors"], len(of_role))
            self.assertAlmostEqual(stated[name]["relative_rms"] / total.relative_rms(), 1, delta=SUMS)
            self.assertAlmostEqual(stated[name]["worst"]["relative_rms"] / worst, 1, delta=SUMS)
            self.assertAlmostEqual(errors[stated[name]["worst"]["name"]] / worst, 1, delta=SUMS)
            experts = {}
            for tensor, loss in of_role.items():
                if key := re.search(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.", tensor):
                    experts.setdefault(tuple(map(int, key.groups())), weight_formats.Loss()).join(loss)
            self.assertEqual("worst_expert" in stated[name], bool(experts))
            if experts:
                said = stated[name]["worst_expert"]
                worst = max(loss.relative_rms() for loss in experts.values())
                self.assertAlmostEqual(said["relative_rms"] / worst, 1, delta=SUMS)
                self.assertAlmostEqual(experts[said["layer"], said["expert"]].relative_rms() / worst, 1, delta=SUMS)

    def assert_verified(self, packed, source):
        self.assert_ok(self.run_program("verify", packed))
        said = self.assert_ok(self.run_program("verify", packed, "--source", source)).stdout
        self.assertIn("equal to what its recipe makes of the source", said)

    def copy_with(self, change):
        """A copy of the small checkpoint in which change(name, dtype, shape, raw) gives each tensor's bytes."""
        source = self.copy_source("changed")
        for path in sorted(source.glob("*.safetensors")):
            tensors = safetensors_io.parse(path.read_bytes())[0]
            safetensors_io.write(path, {name: (*value[:2], change(name, *value)) for name, value in tensors.items()})
        return source
