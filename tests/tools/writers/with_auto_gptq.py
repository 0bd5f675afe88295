"""Checkpoints that AutoGPTQ writes: its GPTQ chooses codes from a Hessian of random inputs, its QuantLinear packs
them, its BaseQuantizeConfig is quantization_config, and its layer, with scales as FP32, multiplies the identity to
read them."""
import torch
from auto_gptq.modeling._base import BaseQuantizeConfig
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
from auto_gptq.quantization.gptq import GPTQ

import source

SAMPLES = 512


def quantised(layer, config, random):
    """The packed layer, and its values [rows, columns]."""
    inputs = torch.randn(SAMPLES, layer.in_features, generator=random)
    chosen = GPTQ(layer)
    chosen.quantizer.configure(config.bits, perchannel=True, sym=config.sym, mse=False)
    chosen.add_batch(inputs, None)
    scale, zero, g_idx = chosen.fasterquant(percdamp=config.damp_percent, group_size=config.group_size,
                                            actorder=config.desc_act, static_groups=config.static_groups)
    packed = QuantLinear(config.bits, config.group_size, layer.in_features, layer.out_features, False)
    layer.to(torch.float16)
    packed.pack(layer, scale, zero, g_idx)
    stored = {name: tensor.clone() for name, tensor in packed.state_dict().items()}
    packed.scales = packed.scales.float()
    return stored, packed(torch.eye(layer.in_features)).t()


def make(folder, twin, **settings):
    torch.cuda.synchronize = lambda *_: None  # fasterquant takes its time with it; there is no GPU
    config = BaseQuantizeConfig(**settings)
    random = torch.Generator().manual_seed(source.SEED)
    original = source.weights()
    stored = {name: tensor.to(torch.float16) if tensor.dtype == torch.bfloat16 else tensor
              for name, tensor in original.items()}
    values = {}
    for module in source.modules(original):
        weight = original[module + ".weight"].float()
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data.copy_(weight)
        parts, values[module + ".weight"] = quantised(layer, config, random)
        del stored[module + ".weight"]
        stored.update({"%s.%s" % (module, name): tensor for name, tensor in parts.items()})
    source.save(folder, stored, config.to_dict())
    source.save_twin(folder, twin, values)


KINDS = {
    "autogptq-4-g128": lambda *to: make(*to, bits=4, group_size=128, desc_act=False),
    "autogptq-4-g128-desc-act": lambda *to: make(*to, bits=4, group_size=128, desc_act=True),
    "autogptq-4-g32-static-groups": lambda *to: make(*to, bits=4, group_size=32, desc_act=True, static_groups=True),
    "autogptq-4-g64-asym": lambda *to: make(*to, bits=4, group_size=64, desc_act=False, sym=False),
    "autogptq-4-channel": lambda *to: make(*to, bits=4, group_size=-1, desc_act=False),
    "autogptq-8-g128": lambda *to: make(*to, bits=8, group_size=128, desc_act=False),
    "autogptq-8-g64-asym-desc-act": lambda *to: make(*to, bits=8, group_size=64, desc_act=True, sym=False),
}
