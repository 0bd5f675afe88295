"""The one model that every writer gets: DeepSeek-V3's graph and names, random weights, sizes in which the groups and
blocks of all formats fit. What its parts are called, and how a checkpoint and its twin are saved."""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "tools" / "family"))
import checkpoint  # noqa: E402
import variants  # noqa: E402

SEED = 20261128
# Every number of columns is a multiple of 128; the rows of kv_a_proj_with_mqa are not, so blocks have a ragged end.
SIZES = {**variants.V3, "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "q_lora_rank": 128,
         "kv_lora_rank": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "qk_nope_head_dim": 32,
         "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "quantization_config": variants.DROP, "auto_map": variants.DROP}
# Powers of two on what Maker chooses, so that rounding stays far below the test's bound: products with coded weights
# are added in another order than those with F32, and large scores of attention multiply the difference.
FACTORS = {"q_b_proj.weight": 0.25, "embed_tokens.weight": 64.0}
KEPT = ("lm_head", "embed_tokens", "gate")  # matrices that no writer is asked to quantise


def config():
    released = json.loads((TESTS / "data" / "family" / "configs" / "deepseek-v3.json").read_text(encoding="utf-8"))
    return variants.make_config(released, SIZES)


def weights():
    """{name: tensor}, BF16 but for the router's bias."""
    settings = config()
    made = checkpoint.Maker(settings, {"store": "BF16"}, SEED).make(
        lambda layer: layer >= settings["first_k_dense_replace"])
    types = {"BF16": torch.bfloat16, "F32": torch.float32}
    tensors = {name: torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
               for name, (dtype, shape, data) in made.stored.items()}
    return {name: tensor * FACTORS.get(".".join(name.split(".")[-2:]), 1.0) for name, tensor in tensors.items()}


def modules(tensors):
    """The names of the linear layers that a writer quantises."""
    return [name[:-len(".weight")] for name, tensor in tensors.items()
            if tensor.dim() == 2 and name.split(".")[-2] not in KEPT]


class Part(torch.nn.Module):
    """A module without a computation of its own, which only has a name and children; numbered ones as in a list."""

    def __getitem__(self, place):
        return getattr(self, str(place))


def skeleton(dtype=torch.bfloat16):
    """The model as a tree of torch modules, each expert a module of its own: for writers that take any model. Routers
    are parameters, as in DeepSeek's own code, so no writer takes them for linear layers."""
    root = Part()
    for name, tensor in weights().items():
        *path, leaf = name.split(".")
        kind = "embedding" if path[-1] == "embed_tokens" else "plain"
        if tensor.dim() == 2 and path[-1] not in ("embed_tokens", "gate"):
            kind = "linear"
        at = root
        for place, step in enumerate(path):
            if not hasattr(at, step):
                last = place == len(path) - 1
                rows, columns = tensor.shape if tensor.dim() == 2 else (0, 0)
                made = (torch.nn.Linear(columns, rows, bias=False, dtype=dtype) if last and kind == "linear" else
                        torch.nn.Embedding(rows, columns, dtype=dtype) if last and kind == "embedding" else Part())
                at.add_module(step, made)
            at = getattr(at, step)
        kept = tensor if tensor.dtype == torch.float32 else tensor.to(dtype)
        setattr(at, leaf, torch.nn.Parameter(kept, requires_grad=False))
    return root


def save(folder, tensors, quantisation=None, files=None, settings=None):
    """A checkpoint as a folder: one file of weights, config.json with `quantisation`, and files of other names."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    settings = {**(settings or config()), **({"quantization_config": quantisation} if quantisation else {})}
    (folder / "config.json").write_text(json.dumps(settings, indent=1, default=str) + "\n", encoding="utf-8")
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")


def save_plain(folder, dtype=torch.bfloat16):
    """The model before any format, with a tokenizer of a word for each token: for writers that open a folder."""
    save(folder, {name: tensor if tensor.dtype == torch.float32 else tensor.to(dtype)
                  for name, tensor in weights().items()})
    words = {"w%d" % token: token for token in range(config()["vocab_size"])}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "decoder": None, "post_processor": None,
                 "truncation": None, "padding": None, "pre_tokenizer": {"type": "Whitespace"},
                 "model": {"type": "WordLevel", "vocab": words, "unk_token": "w2"}}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "w0", "eos_token": "w1", "pad_token": "w1"}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        (pathlib.Path(folder) / name).write_text(json.dumps(content) + "\n", encoding="utf-8")


def prompts(count=32, length=64):
    """Token ids to calibrate with."""
    random = torch.Generator().manual_seed(SEED)
    return torch.randint(0, config()["vocab_size"], (count, length), generator=random).tolist()


def saved(folder):
    """{name: tensor} of all weight files of a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        found.update(load_file(path))
    return found


def save_twin(folder, twin, read):
    """The checkpoint of `folder` without its format: what `read` has for a linear layer, as F32, and the other tensors
    as they are stored. Whoever makes a checkpoint owes the values of each linear layer that is stored otherwise."""
    stored, original = saved(folder), weights()
    wanted, found = modules(original), {}
    for name, tensor in original.items():
        module = name.removesuffix(".weight")
        found[name] = read[name].detach().float() if module in wanted and name in read else stored[name]
        assert found[name].shape == tensor.shape and torch.isfinite(found[name].float()).all(), name
        assert found[name].dtype in (torch.float32, torch.float16, torch.bfloat16), "no values of " + name
    # The format must not have lost the model: a twin of zeros or of another layer's numbers would compare equal too.
    worst = max(float((found[module + ".weight"].float() - original[module + ".weight"].float()).norm()
                      / original[module + ".weight"].float().norm()) for module in wanted)
    assert worst < 0.35, "the values read are %.2f away from the model" % worst
    settings = json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))
    settings.pop("quantization_config", None)
    save(twin, found, settings=settings)


def told(folder):
    """quantization_config of a checkpoint."""
    return json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8")).get("quantization_config", {})
