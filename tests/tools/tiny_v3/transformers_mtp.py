"""The MTP module as transformers understands it, filled by hand: a third opinion on the wiring.

transformers 5.23.0 has an `MtpModel` (embedding first, hidden state after the final norm), but its loader finds V3's
MTP weights by the hard-coded layer number 61, and so not ours.
"""
import torch
from transformers.modeling_layers import MtpModel


def build(hf, tensors):
    """hf: DeepseekV3ForCausalLM; tensors: dequantised tensors by released name."""
    mtp = MtpModel(hf, 1).float().eval()
    at = f"model.layers.{hf.config.num_hidden_layers}."
    own = {"enorm.weight": "enorm.weight", "hnorm.weight": "hnorm.weight", "eh_proj.weight": "eh_proj.weight",
           "shared_head.norm.weight": "post_norm.weight"}
    experts = range(hf.config.n_routed_experts)
    stack = lambda part: torch.stack([tensors[f"{at}mlp.experts.{e}.{part}.weight"] for e in experts])
    state = {"mtp_block.mlp.experts.gate_up_proj": torch.cat([stack("gate_proj"), stack("up_proj")], 1),
             "mtp_block.mlp.experts.down_proj": stack("down_proj")}
    for name, value in tensors.items():
        if name.startswith(at) and ".mlp.experts." not in name and not name.endswith(
                ("embed_tokens.weight", "shared_head.head.weight")):
            state[own.get(name[len(at):], "mtp_block." + name[len(at):])] = value
    mtp.layers[0].load_state_dict(state)
    return mtp


@torch.no_grad()
def logits(hf, mtp, ids):
    """Row i: from the embedding of token i+1 and the main model's last hidden state (normed) of token i."""
    hidden = hf.model(torch.tensor([ids]), use_cache=False).last_hidden_state[:, :-1]
    embedded = mtp.embed_tokens(torch.tensor([ids[1:]]))
    n = len(ids) - 1
    position = torch.arange(n)[None]
    mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
    z = mtp.layers[0](embedded, hidden, mtp.rotary_emb(embedded, position), mask, position, None)
    return mtp.shared_head(z)[0]
