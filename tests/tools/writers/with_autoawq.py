"""Checkpoints that AutoAWQ writes: its AwqQuantizer chooses codes and packs the layers, its AwqConfig is
quantization_config, and its dequantize_gemm reads them, with scales as FP32. (Its search for factors of columns changes
weights before that, not how they are stored, and is left out.)"""
import torch
from awq.models._config import AwqConfig
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.packing_utils import dequantize_gemm

import source


def make(folder, twin, group, version="gemm"):
    model = source.skeleton(torch.float16)
    quantizer = AwqQuantizer.__new__(AwqQuantizer)  # its own constructor runs the model on a data set
    quantizer.w_bit, quantizer.group_size, quantizer.zero_point, quantizer.version = 4, group, True, version
    wanted = source.modules(source.weights())
    # Its packing takes a layer's parent and {path below it: layer}.
    quantizer._apply_quant(model, {name: model.get_submodule(name) for name in wanted})
    stored = model.state_dict()
    values = {}
    for module in wanted:
        packed = model.get_submodule(module)
        if version == "gemm":
            values[module + ".weight"] = dequantize_gemm(
                packed.qweight, packed.qzeros, packed.scales.float(), 4, group).t()
    source.save(folder, stored, AwqConfig(q_group_size=group, version=version).to_transformers_dict())
    if values:
        source.save_twin(folder, twin, values)


KINDS = {
    "awq-g128": lambda *to: make(*to, 128),
    "awq-g64": lambda *to: make(*to, 64),
    "awq-g32": lambda *to: make(*to, 32),
    "awq-gemv": lambda *to: make(*to, 128, version="gemv"),
    "awq-gemv-fast": lambda *to: make(*to, 128, version="gemv_fast"),
}
