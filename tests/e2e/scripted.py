"""Checkpoints that say what a script says, token by token, so that a server can be asked for answers that no trained model
of a test's size would give: calls of tools in every form, and broken ones.

No layer adds anything (all projections back are zero), the embedding is the unit matrix, and the head's row of a token
has a one wherever the token before it in a script has its own. A script begins at its token <GO:name>, with which the
prompt ends, or at the mark that is its name; its pieces must not occur twice, as a token tells all there is to know of what follows."""

import json
import struct

import safetensors_io

BOS, EOS = "<|begin|>", "<|end|>"
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.content if m.content is string else '' }}"
            "{% if not loop.last %}\n{% endif %}{% endfor %}")


def _spelling():
    """GPT-2's characters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


SPELLING = _spelling()


def _pieces(text, used):
    """The text's bytes in pieces that are as short as they can be without occurring in `used`, which then holds them: so
    that they end anywhere, within marks and characters too."""
    data = text.encode()
    pieces = []
    while data:
        size = next((size for size in range(2, len(data) + 1) if data[:size] not in used), None)
        if size is None:  # the rest is no piece of its own: it is joined to those before it
            while data in used or len(data) == 1:
                if not pieces:
                    raise ValueError(f"{text!r} has no piece of its own")
                used.discard(pieces[-1])
                data = pieces.pop() + data
            size = len(data)
        pieces.append(data[:size])
        used.add(data[:size])
        data = data[size:]
    return pieces


def _parts(script, special):
    """Marks, and the texts between them."""
    while script:
        mark = next((mark for mark in special if script.startswith(mark)), None)
        end = len(mark) if mark else min((script.index(mark) for mark in special if mark in script), default=len(script))
        yield script[:end]
        script = script[end:]


def write(folder, scripts, template=TEMPLATE, special=()):
    """`scripts`: texts by name, or lists of texts, of which those that are marks stand for the tokens and the others spell
    what they say. `special`: marks that are added tokens flagged special; none occurs in a script twice."""
    vocab = {}
    added = []

    def new_token(spelled, is_added=False):
        vocab[spelled] = len(vocab)
        if is_added:
            added.append({"id": vocab[spelled], "content": spelled, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True})
        return vocab[spelled]

    new_token(BOS, True)
    new_token(EOS, True)
    for byte in range(256):
        new_token(SPELLING[byte])
    for mark in special:
        new_token(mark, True)
    used = set()
    before = {}  # of each token, those that it follows
    for name, script in scripts.items():
        last = vocab[name] if name in special else new_token(f"<GO:{name}>", True)
        for part in script if isinstance(script, list) else _parts(script, special):
            tokens = [vocab[part]] if part in special else [new_token("".join(SPELLING[byte] for byte in piece))
                                                            for piece in _pieces(part, used)]
            for token in tokens:
                before.setdefault(token, []).append(last)
                last = token
        before.setdefault(vocab[EOS], []).append(last)
    size = (len(vocab) + 31) // 32 * 32
    one = struct.pack("<H", 0x3F80)
    matrix = lambda rows, columns: ("BF16", [rows, columns], bytes(2 * rows * columns))

    def ones_at(places):
        data = bytearray(2 * size * size)
        for row, columns in places:
            for column in columns:
                data[2 * (row * size + column):2 * (row * size + column) + 2] = one
        return "BF16", [size, size], bytes(data)

    norm = lambda count: ("BF16", [count], one * count)
    tensors = {"model.embed_tokens.weight": ones_at((token, [token]) for token in range(size)),
               "lm_head.weight": ones_at(before.items()), "model.norm.weight": norm(size)}
    for layer in range(2):
        place = f"model.layers.{layer}."
        tensors |= {place + "input_layernorm.weight": norm(size), place + "post_attention_layernorm.weight": norm(size),
                    place + "self_attn.q_proj.weight": matrix(32, size),
                    place + "self_attn.kv_a_proj_with_mqa.weight": matrix(48, size),
                    place + "self_attn.kv_a_layernorm.weight": norm(32), place + "self_attn.kv_b_proj.weight": matrix(32, 32),
                    place + "self_attn.o_proj.weight": matrix(size, 16)}
        modules = ["mlp."] if layer == 0 else [f"mlp.experts.{e}." for e in range(2)] + ["mlp.shared_experts."]
        for module in modules:
            tensors |= {place + module + "gate_proj.weight": matrix(32, size), place + module + "up_proj.weight": matrix(32, size),
                        place + module + "down_proj.weight": matrix(size, 32)}
    tensors["model.layers.1.mlp.gate.weight"] = matrix(2, size)
    tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = ("F32", [2], bytes(8))
    folder.mkdir(parents=True, exist_ok=True)
    safetensors_io.write(folder / "model.safetensors", tensors)
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "bos_token_id": 0, "eos_token_id": 1,
              "hidden_size": size, "vocab_size": size, "intermediate_size": 32, "moe_intermediate_size": 32,
              "num_hidden_layers": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 1,
              "num_key_value_heads": 1, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16,
              "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 2, "n_shared_experts": 1,
              "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
              "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 1.0, "hidden_act": "silu",
              "rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 8192,
              "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    tokenizer = {"version": "1.0", "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                 "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    settings = {"add_bos_token": False, "bos_token": BOS, "eos_token": EOS, "chat_template": template}
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        (folder / name).write_text(json.dumps(value))
    return folder
