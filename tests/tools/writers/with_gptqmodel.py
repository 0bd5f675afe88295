"""Checkpoints that GPTQModel writes. GPTQ from end to end: it opens the model with transformers, quantises it with
prompts of random tokens on a CPU and saves it; its own layer for PyTorch, with scales as FP32, reads them. AWQ by its
parts, since its search for factors of columns gives a layer of this graph another one's inputs and ends with an
error."""
import os
import tempfile
import types
from pathlib import Path

import torch

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it asks for two where a machine has few processors, and has one
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig  # noqa: E402
from gptqmodel.looper.awq_processor import AWQProcessor  # noqa: E402
from gptqmodel.nn_modules.qlinear import BaseQuantLinear  # noqa: E402
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear  # noqa: E402
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTQConfig  # noqa: E402

import source  # noqa: E402


def read(folder, model=None):
    model = model or GPTQModel.load(str(folder), backend=BACKEND.TORCH, device="cpu").model
    values, stored = {}, source.saved(folder)
    for name, module in model.named_modules():
        if isinstance(module, BaseQuantLinear):
            module.scales = stored[name + ".scales"].float()  # it has rounded them to BF16 when it was opened
            module.eval()
            values[name + ".weight"] = module.dequantize_weight().t()
    assert values, "no layer was quantised"
    assert all(value.dtype == torch.float32 for value in values.values())
    return values


def make(folder, twin, readable=True, **settings):
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(Path(scratch) / "plain", torch.float16)
        model = GPTQModel.load(str(Path(scratch) / "plain"), QuantizeConfig(
            offload_to_disk_path=str(Path(scratch) / "offload"), **settings), device="cpu")
        model.quantize([{"input_ids": prompt, "attention_mask": [1] * len(prompt)} for prompt in source.prompts()],
                       batch_size=1)
        model.save(str(folder))
    if readable:
        source.save_twin(folder, twin, read(folder))


def make_optimum(folder, twin, **settings):
    """transformers and optimum, which have GPTQModel's layers pack. Experts are one tensor there and stay as is."""
    with tempfile.TemporaryDirectory() as scratch:
        source.save_plain(scratch, torch.float16)
        tokenizer = AutoTokenizer.from_pretrained(scratch)
        config = GPTQConfig(dataset=[" ".join("w%d" % token for token in prompt) for prompt in source.prompts(16)],
                            tokenizer=tokenizer, model_seqlen=64, block_name_to_quantize="model.layers", **settings)
        AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float16, device_map={"": "cpu"},
                                             quantization_config=config).save_pretrained(folder)
    opened = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map={"": "cpu"})
    source.save_twin(folder, twin, read(folder, opened))


def make_awq(folder, twin, **settings):
    config = QuantizeConfig(bits=4, quant_method="awq", format="gemm", **settings)
    chooser = types.SimpleNamespace(qcfg=config)
    original = source.weights()
    stored, values = dict(original), {}
    for module in source.modules(original):
        weight = stored.pop(module + ".weight").to(torch.float16)
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float16)
        layer.weight.data, scales, zeros = AWQProcessor.pseudo_quantize_tensor(chooser, weight)
        packed = AwqTorchLinear(4, config.group_size, config.sym, False, weight.shape[1], weight.shape[0])
        packed.pack(layer, scales, zeros)
        stored.update({"%s.%s" % (module, name): tensor for name, tensor in packed.state_dict().items()})
        values[module + ".weight"] = dequantize_gemm(
            qweight=packed.qweight, qzeros=packed.qzeros, scales=packed.scales.float(), bits=4,
            group_size=config.group_size).t()
    source.save(folder, stored, config.to_dict())
    source.save_twin(folder, twin, values)


KINDS = {
    "gptqmodel-4-g64": lambda *to: make(*to, bits=4, group_size=64),
    "gptqmodel-4-g128-desc-act": lambda *to: make(*to, bits=4, group_size=128, desc_act=True, act_group_aware=False),
    "gptqmodel-4-g32-v2": lambda *to: make(*to, bits=4, group_size=32, format="gptq_v2"),
    "gptqmodel-4-g64-v2-asym": lambda *to: make(*to, bits=4, group_size=64, format="gptq_v2", sym=False),
    "gptqmodel-8-g128": lambda *to: make(*to, bits=8, group_size=128),
    "gptqmodel-8-g64-v2-asym-desc-act": lambda *to: make(
        *to, bits=8, group_size=64, format="gptq_v2", sym=False, desc_act=True, act_group_aware=False),
    "optimum-4-g64-desc-act": lambda *to: make_optimum(*to, bits=4, group_size=64, desc_act=True),
    "optimum-8-g128": lambda *to: make_optimum(*to, bits=8, group_size=128, desc_act=False),
    "gptqmodel-awq-g128": lambda *to: make_awq(*to, group_size=128, sym=False),
    "gptqmodel-awq-g64-sym": lambda *to: make_awq(*to, group_size=64, sym=True),
    "gptqmodel-3-g128": lambda *to: make(*to, readable=False, bits=3, group_size=128),
    "gptqmodel-4-experts-8": lambda *to: make(*to, readable=False, bits=4, group_size=128, dynamic={
        "+:.*experts\\.\\d+\\..*": {"bits": 8}}),
}
