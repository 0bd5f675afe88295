"""Lets the pinned transformers load block-FP8 checkpoints with ragged last blocks on a CPU.

transformers 5.23.0 derives the block size from the scale grid (rows // scale_rows), which refuses, or silently
misreads, matrices whose sides are no multiple of 128 (V3's own kv_a_proj_with_mqa, 576 x 7168 with scales 5 x 56, is
one). This replaces that one method by the published rule: W[i, j] = fp8[i, j] * scale[i // 128, j // 128].
"""
import torch
from transformers.integrations import finegrained_fp8

BLOCK = 128


def _dequantize_one(self, quantized, scales, output_dtype=None):
    rows, cols = quantized.shape[-2:]
    assert scales.shape[-2:] == (-(-rows // BLOCK), -(-cols // BLOCK)), (quantized.shape, scales.shape)
    full = scales.float().repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :rows, :cols]
    return (quantized.float() * full).to(output_dtype or torch.bfloat16)


def apply():
    assert hasattr(finegrained_fp8.Fp8Dequantize, "_dequantize_one"), "another transformers than the pinned one?"
    finegrained_fp8.Fp8Dequantize._dequantize_one = _dequantize_one


def load(folder, dtype=torch.float32):
    """DeepseekV3ForCausalLM with dequantised weights, eager attention."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config
    apply()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager",
        quantization_config=FineGrainedFP8Config(dequantize=True)).to(dtype).eval()
