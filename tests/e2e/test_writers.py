"""Checkpoints of the programs that write them (tests/tools/writers): dsrun's logits are those of the same values as
F32, which the writer's own code has read, also after reshard has packed the checkpoint. What cannot be run is refused
by its name.

The writers weigh gigabytes, so scripts/test does not install them: DSPACK_TEST_WRITERS names a folder of what they
have made."""

import array
import os
import shutil
import sys
from pathlib import Path

import safetensors_io
from common import SKIPPED, main
from logits_case import TOKENS, LogitsCase

MADE = os.environ.get("DSPACK_TEST_WRITERS", "")
TWIN = ".twin"
# Products with coded weights are added in another order than those with F32; nothing else differs.
MOST_NMSE = 1e-12
AT_LEAST = 40  # checkpoints that are run: a folder of a few shows little

# Kinds that are refused, and words of the message.
REFUSED = {
    # As docs/models.md says: widths, layouts and factors that no kernel here computes with.
    "awq-gemv": ("version", "gemv"),
    "awq-gemv-fast": ("version", "gemv_fast"),
    "gptqmodel-3-g128": ("bits", "3"),
    "gptqmodel-4-experts-8": ("dynamic", "other bits and groups"),
    "autoround-3-bits": ("bits", "3"),
    "modelopt-int8-smoothquant": ("W8A8_SQ_PER_CHANNEL",),
    "bnb-nf4-bf16-storage": ("bnb_4bit_quant_storage", "bfloat16"),
    "ct-int4-fp8-activations": ("scales of shape", "one a row"),
    "ct-int6-g128": ("num_bits", "6"),
    "ct-int8-channel-asym": ("\"symmetric\": false",),
    "quark-uint4": ("stored as I32",),
    "torchao-fp8": ("_weight_scale",),
    "torchao-int8": ("_weight_scale",),
}
# Run by dsrun, but refused by reshard's transform to F32.
NOT_TRANSFORMED = {"bnb-" + kind: ("bitsandbytes' four bits",)
                   for kind in ("nf4", "nf4-nested", "nf4-nested-f16", "fp4", "fp4-nested")}
# A code of each of these is changed by one, in the matrix that every token multiplies.
CHANGED = "model.layers.0.mlp.down_proj."
CODES = {"ct-int4-g32": "weight_packed", "ct-fp8-block": "weight", "awq-g128": "qweight", "gptqmodel-4-g64": "qweight",
         "modelopt-nvfp4": "weight", "bnb-int8": "weight"}


def need_checkpoints():
    """Ends the file if there is no such folder; fails it if there is one with too little in it."""
    if not MADE:
        print("DID NOT RUN: whether dsrun reads what the writers of checkpoints write: DSPACK_TEST_WRITERS names no "
              "folder of them; tests/tools/writers/README.md says how to make one", flush=True)
        sys.exit(SKIPPED)
    if not Path(MADE).is_dir():
        sys.exit("DSPACK_TEST_WRITERS=%s is no folder" % MADE)


def kinds():
    return sorted(path.name for path in Path(MADE).iterdir() if path.is_dir() and not path.name.endswith(TWIN))


class Writers(LogitsCase):
    def test_the_values_are_the_writers(self):
        compared, worst = 0, (0.0, "")
        for kind in kinds():
            if kind in REFUSED:
                continue
            with self.subTest(kind):
                folder, packed = Path(MADE) / kind, self.scratch / "packed"
                wanted = self.logits(Path(MADE) / (kind + TWIN))
                own = self.logits(folder)
                self.assert_ok(self.repack(folder, packed))
                again = self.logits(packed)
                self.assert_ok(self.run_program("verify", packed, "--source", folder))
                shutil.rmtree(packed)
                error = self.nmse(own, wanted)
                print("%-36s NMSE %.1e%s" % (kind, error, ", the same bits" if own == wanted else ""), flush=True)
                self.assertLessEqual(error, MOST_NMSE)
                self.assertEqual(again, own, "packing changes the logits")
                compared, worst = compared + 1, max(worst, (error, kind))
        print("%d checkpoints, NMSE at most %.1e (%s)" % (compared, *worst), flush=True)
        self.assertGreaterEqual(compared, AT_LEAST)

    def test_reshard_writes_the_same_values_bit_for_bit(self):
        """The transform to F32 has nothing to add up, so here not even rounding differs."""
        equal = 0
        for kind in kinds():
            if kind in REFUSED:
                continue
            with self.subTest(kind):
                out = self.scratch / "f32"
                result = self.repack(Path(MADE) / kind, out, "--transform", "quantised-to-f32", by="layer")
                if kind in NOT_TRANSFORMED:
                    self.assert_refused(result, *NOT_TRANSFORMED[kind])
                    continue
                self.assert_ok(result)
                made = safetensors_io.read_checkpoint(out)
                shutil.rmtree(out)
                for name, tensor in safetensors_io.read_checkpoint(Path(MADE) / (kind + TWIN)).items():
                    if tensor[0] == "F32":
                        self.assertEqual(self.digest(made[name]), self.digest(tensor), name)
                equal += 1
        print("%d checkpoints with the writers' values, bit for bit" % equal, flush=True)

    @staticmethod
    def digest(tensor):
        """Of zeros the sign is left out: it changes no product."""
        dtype, shape, raw = tensor
        values = array.array("f", raw) if dtype == "F32" else raw
        return dtype, shape, hash(tuple(value + 0.0 for value in values)) if dtype == "F32" else raw

    def test_what_cannot_be_run_is_refused_by_its_name(self):
        there = set(kinds())
        for kind in sorted(set(REFUSED) - there):
            print("not made, so not tried: %s" % kind, flush=True)
        for kind in sorted(set(REFUSED) & there):
            with self.subTest(kind):
                result = self.dsrun(Path(MADE) / kind, "--tokens", ",".join(map(str, TOKENS)), "-n", 2)
                self.assert_refused(result, *REFUSED[kind], program="dsrun")

    def test_one_wrong_code_is_seen(self):
        """The bound is so low that a code of four bits that is one too large in one matrix is above it."""
        there = set(kinds())
        for kind, part in CODES.items():
            if kind not in there:
                continue
            with self.subTest(kind):
                changed = self.scratch / kind
                changed.mkdir()
                folder = Path(MADE) / kind
                (changed / "config.json").write_bytes((folder / "config.json").read_bytes())
                tensors, _ = safetensors_io.parse((folder / "model.safetensors").read_bytes())
                dtype, shape, raw = tensors[CHANGED + part]
                at = len(raw) // 2
                tensors[CHANGED + part] = (dtype, shape, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
                safetensors_io.write(changed / "model.safetensors", tensors)
                error = self.nmse(self.logits(changed), self.logits(Path(MADE) / (kind + TWIN)))
                print("%-36s NMSE %.1e with one wrong code" % (kind, error), flush=True)
                self.assertGreater(error, MOST_NMSE)


if __name__ == "__main__":
    need_checkpoints()
    main()
