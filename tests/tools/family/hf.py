"""The same checkpoint in transformers: FP32 on dequantised weights, eager attention, on a CPU."""
import json
import pathlib
import re
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Mistral4ForCausalLM
from transformers.utils import logging

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tiny_v3"))
import transformers_mtp  # noqa: E402

logging.disable_progress_bar()

# transformers has no class of its own for it; the released files bring V3's.
SAME_CLASS = {"kimi_k2": "deepseek_v3"}




def is_mtp(config, name):
    return name.startswith(f"model.layers.{config['num_hidden_layers']}.")


def fused(weights):
    """Experts as Mistral4Experts has them: [experts, 2 * width, hidden], gate above up, and [experts, hidden, width]."""
    kept, experts = {}, {}
    for name, values in weights.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if found:
            experts.setdefault(found[1], {}).setdefault(found[3], {})[int(found[2])] = values
        else:
            kept[name] = values
    for at, parts in experts.items():
        gate, up, down = (np.stack([parts[part][i] for i in range(len(parts[part]))])
                          for part in ("gate_proj", "up_proj", "down_proj"))
        kept[at + ".gate_up_proj"], kept[at + ".down_proj"] = np.concatenate([gate, up], 1), down
    return kept


def load(config, exact):
    """Without the MTP module, which from_pretrained knows by the layer number of the released model alone."""
    kept = {name: values for name, values in exact.items() if not is_mtp(config, name)}
    if config["model_type"] == "mistral4":
        kept = fused(kept)
    config = {key: value for key, value in config.items() if key not in ("auto_map", "quantization_config")}
    config["model_type"] = SAME_CLASS.get(config["model_type"], config["model_type"])
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        save_file({name: torch.from_numpy(values).float().contiguous() for name, values in kept.items()},
                  pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        # The first is not among those that the second knows by name.
        kind = Mistral4ForCausalLM if config["model_type"] == "mistral4" else AutoModelForCausalLM
        model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                           experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all("inv_freq" in name for name in info["unexpected_keys"]), info
    return model.eval()


class Chosen:
    """Hears what indexers choose: {layer: [queries, index_topk] positions, ascending}, of queries with a choice."""

    def __init__(self, count):
        self.count, self.of = count, {}

    def listen(self, layer, module):
        def heard(_, __, positions):
            self.of[layer] = positions[0, self.count:].sort(-1).values.numpy()
        return module.register_forward_hook(heard)


@torch.no_grad()
def logits(model, tokens):
    """(logits [tokens, vocab], {layer: choices}) of one pass over all tokens."""
    chosen = Chosen(getattr(model.config, "index_topk", 0))
    hooks = [chosen.listen(number, layer.self_attn.indexer) for number, layer in enumerate(model.model.layers)
             if getattr(layer.self_attn, "indexer", None) is not None and len(tokens) > chosen.count]
    found = model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    for hook in hooks:
        hook.remove()
    return found, chosen.of


@torch.no_grad()
def mtp_logits(model, config, exact, tokens):
    """(logits [tokens - 1, vocab], {layer: choices}) of transformers' MtpModel, filled by hand: its config does not say
    of what kind the module's layer is, and GLM's layer returns its choice beside the hidden state."""
    number, rows = config["num_hidden_layers"], len(tokens) - 1
    for name, value in (("num_mtp_layers", 1), ("mtp_layer_types", ["indexed_attention"]), ("mtp_mlp_layer_types", ["sparse"])):
        setattr(model.config, name, value)
    mtp = transformers_mtp.build(model, {name: torch.from_numpy(values).float() for name, values in exact.items()})
    layer, chosen = mtp.layers[0], Chosen(config["index_topk"])
    hook = chosen.listen(number, layer.mtp_block.self_attn.indexer)
    hidden = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[:, :-1]
    embedded, positions = mtp.embed_tokens(torch.tensor([tokens[1:]])), torch.arange(rows)[None]
    mask = torch.full((rows, rows), torch.finfo(torch.float32).min).triu(1)[None, None]
    out = layer.mtp_block(layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(hidden)], -1)), attention_mask=mask,
                          position_embeddings=mtp.rotary_emb(embedded, positions), position_ids=positions,
                          past_key_values=None)
    hook.remove()
    found = mtp.shared_head(layer.post_norm(out[0] if isinstance(out, tuple) else out))[0]
    return found.float().numpy(), chosen.of if rows > config["index_topk"] else {}
