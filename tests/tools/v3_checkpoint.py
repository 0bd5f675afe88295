#!/usr/bin/env python3
"""Makes checkpoints of the DeepSeek-V2/V3 kind with the released shapes, at any size, for tests and measurements.

    v3_checkpoint.py FOLDER                              # all of DeepSeek-V3: 688.6 GB that take 12 MB (zeros, sparse)
    v3_checkpoint.py FOLDER --layers 3 --experts 48 --shards 4 --payload random
    v3_checkpoint.py FOLDER --config config.json         # another model of the kind: V2-Lite, R1, ...
    v3_checkpoint.py FOLDER --set hidden_size=64 ...     # every tensor of V3, but small
    v3_checkpoint.py FOLDER --sparse --layers 4 ...      # with the indexers of DeepSeek-V3.2

Standard library only. What is as in the release of DeepSeek-V3, byte for byte where the payload is not concerned:

* names, dtypes and shapes of all 91,991 tensors (688,574,839,360 bytes), the MTP module (layer 61) with its own copies of
  embedding and head included;
* 163 shards and their boundaries. The order of the model is cut after the tensor with which a shard reaches 8 GiB counted
  as two bytes an element, and anew where a stage begins (layers 6, 14, ... 54). So a weight is usually the last of its
  shard, and its scale the first of the next. The rule was found from, and gives exactly, all published figures: shard 1 of
  5,234,139,343 bytes, a shard of 4,302,350,824 bytes, the 58,442-byte header of shard 160 which begins with the scale of
  layers.60.mlp.experts.184.up_proj, the final norm and the head in 160, the extras of the MTP module in 163;
* headers: compact JSON in the order of the bytes, without padding, so that data starts at odd places, too;
* metadata.total_size of the index, which counts two bytes an element and is not the number of bytes.

What is approximated, since nothing published settles it: the order within attention, within the final norm and head, and
within the MTP module's extras; the order of the index (sorted here); the payload; every layout of other models, which are
cut by the same rule without stages. There is no tokenizer: nothing that this feeds needs one.

Random payload is repeatable by --seed. FP8 bytes are never NaN; BF16 and F32 are small finite numbers. Large tensors are
woven from blocks of one pool, so that making them is as fast as the disk; no two tensors are equal.
"""

import argparse
import json
import os
import random
import struct
import sys
from math import prod
from pathlib import Path

V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
    "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 128,
    "vocab_size": 129280}
V32 = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_head_dim": 128,
       "index_n_heads": 64, "index_topk": 2048}  # beside V3's
V3_STAGES = (6, 14, 22, 30, 38, 46, 54)  # layers at which the release begins a new shard whatever the last one holds
RELEASED_SHARD_BYTES = 8 << 30  # by the release's count of two bytes an element
COUNTED_BYTES = 2
ELEMENT_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4, "F8_E8M0": 1, "I8": 1, "U8": 1, "I64": 8}  # the last four: DeepSeek-V4
INDEX = "model.safetensors.index.json"


# What there is ---------------------------------------------------------------------------------------------------

class Tensor:
    """`part` is "embed", "head" or the number of a layer."""

    def __init__(self, name, dtype, shape, part):
        self.name, self.dtype, self.shape, self.part = name, dtype, shape, part
        self.elements = prod(shape)
        self.bytes = self.elements * ELEMENT_BYTES[dtype]


class Model:
    """Lists the tensors of a config.json, in the order in which they are stored."""

    def __init__(self, config):
        self.config = config
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.mtp_layers = config.get("num_nextn_predict_layers") or 0
        quantised = config.get("quantization_config")
        self.block = quantised["weight_block_size"] if quantised else None

    def tensors(self):
        """[Tensor] of the whole model."""
        out = [Tensor("model.embed_tokens.weight", "BF16", [self.config["vocab_size"], self.hidden], "embed")]
        for layer in range(self.layers):
            out += self.layer(layer)
        out.append(Tensor("model.norm.weight", "BF16", [self.hidden], "head"))
        out.append(Tensor("lm_head.weight", "BF16", [self.config["vocab_size"], self.hidden], "head"))
        for layer in range(self.layers, self.layers + self.mtp_layers):
            out += self.layer(layer) + self.mtp_extras(layer)
        return out

    def layer(self, number):
        prefix = f"model.layers.{number}."
        found = self.attention(prefix + "self_attn.")
        if self.config.get("index_topk"):
            found += self.indexer(prefix + "self_attn.indexer.")
        if self.has_experts(number):
            found += self.experts(prefix + "mlp.")
        else:
            found += self.mlp(prefix + "mlp.", self.config["intermediate_size"])
        found += [(prefix + name + ".weight", "BF16", [self.hidden])
                  for name in ("input_layernorm", "post_attention_layernorm")]
        return [Tensor(*one, number) for one in found]

    def has_experts(self, number):
        first, every = self.config["first_k_dense_replace"], self.config.get("moe_layer_freq", 1)
        return number >= first and number % every == 0

    def linear(self, name, rows, columns):
        name += ".weight"
        if not self.block:
            return [(name, "BF16", [rows, columns])]
        scale = [-(-rows // self.block[0]), -(-columns // self.block[1])]
        return [(name, "F8_E4M3", [rows, columns]), (name + "_scale_inv", "F32", scale)]

    def attention(self, prefix):
        c, heads = self.config, self.config["num_attention_heads"]
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        query, latent = c.get("q_lora_rank"), c["kv_lora_rank"]
        if query:
            out = self.linear(prefix + "q_a_proj", query, self.hidden)
            out.append((prefix + "q_a_layernorm.weight", "BF16", [query]))
            out += self.linear(prefix + "q_b_proj", heads * (nope + rope), query)
        else:
            out = self.linear(prefix + "q_proj", heads * (nope + rope), self.hidden)
        out += self.linear(prefix + "kv_a_proj_with_mqa", latent + rope, self.hidden)
        out.append((prefix + "kv_a_layernorm.weight", "BF16", [latent]))
        out += self.linear(prefix + "kv_b_proj", heads * (nope + value), latent)
        return out + self.linear(prefix + "o_proj", self.hidden, heads * value)

    def indexer(self, prefix):
        c = self.config
        heads, width = c["index_n_heads"], c["index_head_dim"]
        return [*self.linear(prefix + "wq_b", heads * width, c["q_lora_rank"]),
                *self.linear(prefix + "wk", width, self.hidden),
                (prefix + "k_norm.weight", "F32", [width]), (prefix + "k_norm.bias", "F32", [width]),
                (prefix + "weights_proj.weight", "BF16", [heads, self.hidden])]

    def mlp(self, prefix, width):
        return [*self.linear(prefix + "gate_proj", width, self.hidden),
                *self.linear(prefix + "up_proj", width, self.hidden),
                *self.linear(prefix + "down_proj", self.hidden, width)]

    def experts(self, prefix):
        c = self.config
        out = [(prefix + "gate.weight", "BF16", [c["n_routed_experts"], self.hidden])]
        if c.get("topk_method") == "noaux_tc":
            out.append((prefix + "gate.e_score_correction_bias", "F32", [c["n_routed_experts"]]))
        width = c["moe_intermediate_size"]
        if c.get("n_shared_experts"):
            out += self.mlp(prefix + "shared_experts.", width * c["n_shared_experts"])
        for expert in range(c["n_routed_experts"]):
            out += self.mlp(prefix + f"experts.{expert}.", width)
        return out

    def mtp_extras(self, number):
        prefix, vocabulary = f"model.layers.{number}.", [self.config["vocab_size"], self.hidden]
        found = [("embed_tokens", vocabulary), ("enorm", [self.hidden]), ("hnorm", [self.hidden]),
                 ("eh_proj", [self.hidden, 2 * self.hidden]), ("shared_head.norm", [self.hidden]),
                 ("shared_head.head", vocabulary)]
        return [Tensor(prefix + name + ".weight", "BF16", shape, number) for name, shape in found]


# Which shard it is in --------------------------------------------------------------------------------------------

def cut(tensors, limit, size, stages=()):
    """Shards that end with the tensor with which they reach `limit`, and before each layer of `stages`."""
    shards, held, stages = [[]], 0, set(stages)
    for tensor in tensors:
        stage_begins = tensor.part in stages
        if shards[-1] and (held >= limit or stage_begins):
            shards.append([])
            held = 0
        if stage_begins:
            stages.remove(tensor.part)
        shards[-1].append(tensor)
        held += size(tensor)
    return shards


def cut_evenly(tensors, count):
    """`count` shards of about the same bytes; each ends with the tensor that fills its share."""
    if not 1 <= count <= len(tensors):
        raise ValueError(f"{len(tensors)} tensors cannot fill {count} shards")
    total, done, shards = sum(tensor.bytes for tensor in tensors), 0, [[]]
    for number, tensor in enumerate(tensors):
        full = done * count >= total * len(shards)
        needed = len(tensors) - number <= count - len(shards)  # each further shard wants one tensor at least
        if shards[-1] and len(shards) < count and (full or needed):
            shards.append([])
        shards[-1].append(tensor)
        done += tensor.bytes
    return shards


def make_shards(config, parts=None, count=None, shard_bytes=None):
    """[[Tensor]]; `parts` limits them to layers and to "embed" and "head". By default cut as the release is."""
    tensors = [tensor for tensor in Model(config).tensors() if parts is None or tensor.part in parts]
    if not tensors:
        raise ValueError("no tensor is left")
    if count:
        return cut_evenly(tensors, count)
    if shard_bytes:
        return cut(tensors, shard_bytes, lambda tensor: tensor.bytes)
    is_v3 = (config["num_hidden_layers"], config.get("num_nextn_predict_layers")) == (61, 1)
    return cut(tensors, RELEASED_SHARD_BYTES, lambda tensor: COUNTED_BYTES * tensor.elements,
               V3_STAGES if is_v3 else ())


def header(tensors):
    """The first bytes of a shard: length and JSON."""
    fields, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        fields[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                               "data_offsets": [offset, offset + tensor.bytes]}
        offset += tensor.bytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


# What bytes it has -----------------------------------------------------------------------------------------------

class RandomPayload:
    """Bytes of tensors, by seed and name."""
    POOL_BYTES = 32 << 20
    PIECE_BYTES = 1 << 20
    NO_NAN = bytes(byte - 1 if byte in (0x7f, 0xff) else byte for byte in range(256))
    # Sign and upper exponent bits of BF16: numbers of either sign from 2^-9 to 2^-3.
    BF16_TOP = bytes((0xbb if byte & 128 else 0x3b) + byte % 3 for byte in range(256))

    def __init__(self, seed):
        self.seed = seed
        noise = random.Random(seed).randbytes(self.POOL_BYTES)
        self.pools = {dtype: memoryview(self.shape(noise, dtype)) for dtype in ELEMENT_BYTES}

    @classmethod
    def shape(cls, noise, dtype):
        """Random bytes made into plausible numbers."""
        if dtype == "F8_E4M3":
            return noise.translate(cls.NO_NAN)
        if dtype in ("I8", "U8"):  # two FP4 numbers
            return noise
        if dtype == "F8_E8M0":  # 2^-10 to 2^-3
            return noise.translate(bytes(117 + byte % 8 for byte in range(256)))
        out = bytearray(noise)
        if dtype == "I64":  # numbers below 4, as of experts
            for byte in range(1, 8):
                out[byte::8] = bytes(len(out) // 8)
            out[0::8] = bytes(byte % 4 for byte in out[0::8])
        elif dtype == "BF16":
            out[1::2] = out[1::2].translate(cls.BF16_TOP)
        else:  # F32: 2^-13 to 2^-11, as scales of uniform FP8 bytes for weights of about 0.02
            out[3::4] = b"\x39" * (len(out) // 4)
        return bytes(out)

    def write(self, file, tensor):
        choice = random.Random(f"{self.seed} {tensor.name}")
        if tensor.bytes <= self.PIECE_BYTES:
            file.write(self.shape(choice.randbytes(tensor.bytes), tensor.dtype))
            return
        pool, width = self.pools[tensor.dtype], ELEMENT_BYTES[tensor.dtype]
        for at in range(0, tensor.bytes, self.PIECE_BYTES):
            piece = min(self.PIECE_BYTES, tensor.bytes - at)
            begin = width * choice.randrange((self.POOL_BYTES - piece) // width)
            file.write(pool[begin:begin + piece])


def write_shard(path, tensors, payload):
    """`payload` None: zeros that take no room on the disk."""
    with open(path, "wb", buffering=1 << 16) as file:
        file.write(header(tensors))
        if payload is None:
            file.truncate(file.tell() + sum(tensor.bytes for tensor in tensors))
            return
        for tensor in tensors:
            payload.write(file, tensor)


def write_checkpoint(folder, config, shards, payload=None):
    """Shards, index and config.json in `folder`, which is made; files of these names are replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, tensors in enumerate(shards, 1):
        name = "model-%05d-of-%06d.safetensors" % (number, len(shards))  # six digits: so they are
        write_shard(folder / name, tensors, payload)
        weight_map.update({tensor.name: name for tensor in tensors})
    total = COUNTED_BYTES * sum(tensor.elements for tensors in shards for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


# The command line ------------------------------------------------------------------------------------------------

def parse_parts(text):
    """"embed,0-2,61,head" -> {"embed", 0, 1, 2, 61, "head"}."""
    parts = set()
    for word in text.split(","):
        if word in ("embed", "head"):
            parts.add(word)
            continue
        first, _, last = word.partition("-")
        parts.update(range(int(first), int(last or first) + 1))
    return parts


def parse_setting(text):
    key, _, value = text.partition("=")
    return key, json.loads(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path, help="a config.json (default: DeepSeek-V3's own)")
    parser.add_argument("--sparse", action="store_true", help="with the indexers of DeepSeek-V3.2")
    parser.add_argument("--set", action="append", default=[], type=parse_setting, metavar="KEY=JSON", dest="settings",
                        help="replaces a field of the config")
    parser.add_argument("--layers", type=parse_parts, metavar="LIST",
                        help="only these, as in embed,0-2,61,head (config.json still describes the whole model)")
    parser.add_argument("--experts", type=int, help="routed experts a layer; the same as --set n_routed_experts=N")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--shards", type=int, help="so many, of equal size")
    how.add_argument("--shard-bytes", type=int, help="each ends with the tensor that reaches this")
    parser.add_argument("--payload", choices=("zeros", "random"), default="zeros", help="zeros are sparse files")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text()) if arguments.config else dict(V3)
    if arguments.sparse:
        config.update(V32)
    config.update(arguments.settings)
    if arguments.experts is not None:
        config["n_routed_experts"] = arguments.experts
    try:
        shards = make_shards(config, arguments.layers, arguments.shards, arguments.shard_bytes)
    except ValueError as error:
        sys.exit(f"v3_checkpoint.py: {error}")
    payload = RandomPayload(arguments.seed) if arguments.payload == "random" else None
    write_checkpoint(arguments.folder, config, shards, payload)
    tensors = [tensor for shard in shards for tensor in shard]
    size = sum(os.stat(path).st_size for path in arguments.folder.glob("model-*.safetensors"))
    print(f"{arguments.folder}: {len(shards)} shards of {size} bytes, {len(tensors)} tensors of "
          f"{sum(tensor.bytes for tensor in tensors)} bytes")


if __name__ == "__main__":
    main()
