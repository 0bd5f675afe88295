"""What `dsrun` reads beside weights: config.json, tokenizer, chat template, conversations, routes, recordings."""

import json
import os
from pathlib import Path

import safetensors_io
from hostile.cases import DSRUN, NUMBERS, Case, compact, is_number, places, replaced, title, value_at, without

# Sizes and counts of config.json that shape the model. None of them may be any of NUMBERS, or these.
SIZES = ("first_k_dense_replace", "hidden_size", "intermediate_size", "kv_lora_rank", "max_position_embeddings",
         "moe_intermediate_size", "n_group", "n_routed_experts", "n_shared_experts", "num_attention_heads",
         "num_experts_per_tok", "num_hidden_layers", "num_nextn_predict_layers", "q_lora_rank", "qk_nope_head_dim",
         "qk_rope_head_dim", "topk_group", "v_head_dim", "vocab_size")
EVEN_ZERO = set(SIZES) - {"first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers", "n_group", "topk_group"}
REALS = {"rms_norm_eps": ("x", -1.0, [], None), "rope_theta": ("x", -1.0, 0, []), "routed_scaling_factor": ("x", [], {}),
         "scoring_func": (5, "x", [], ""), "topk_method": (5, "x", []), "hidden_act": (5, "x", []),
         "model_type": (5, "x", [], "", None, "deepseek_v3\x1b[2J", "x" * 100_000), "norm_topk_prob": ("x", 5, []),
         "attention_bias": (True, "x"), "quantization_config": (5, [], "x", {"quant_method": "hqq"}, {"quant_method": 5}),
         "rope_scaling": (5, [], "x", {"type": "x"}, {"type": "yarn"}, {"type": "yarn", "factor": -1})}


def model(folder, changed):
    """A copy of the trained checkpoint by links, with other contents for some of its files. Returns the folder."""
    folder = folder / "model"
    folder.mkdir()
    for path in sorted(Path(model.source).iterdir()):
        if path.is_file() and path.name not in changed:
            os.link(path, folder / path.name)
    for name, content in changed.items():
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def generate(folder):
    return (DSRUN, [folder, "--tokens", "0,5", "-n", "1", "--ctx", "16", "--device", "cpu", "--threads", "1"])


def config_case(name, content, *more):
    def prepare(folder):
        at = model(folder, {"config.json": content})
        return [generate(at), (DSRUN, ["plan", at, "--ram", "1GB"])][:1 + len(more)]
    return Case("config: " + name, prepare)


def configs(config):
    for key in SIZES:
        for name, number in NUMBERS.items():
            yield config_case("%s is %s" % (key, name), dict(config, **{key: number}))
        if key in EVEN_ZERO:
            yield config_case("%s is 0" % key, dict(config, **{key: 0}))
        yield config_case("%s is 2^31" % key, dict(config, **{key: 2**31}), "plan")
    for key, values in REALS.items():
        for value in values:
            yield config_case("%s is %.40r" % (key, value), dict(config, **{key: value}))
    for number in (0, -1, 2**31, 2**63, "x", None):
        for at in (0, 1):
            yield config_case("weight_block_size[%d] is %r" % (at, number),
                              replaced(config, ("quantization_config", "weight_block_size", at), number))
    texts = {"empty": b"", "open": b"{", "an array": b"[]", "no UTF-8": b'{"model_type":"\xff"}', "missing": None,
             "twice the same": b'{"model_type":"deepseek_v3","model_type":"x"}', "deep": b'{"a":' * 50_000,
             "40 MB of numbers": b'{"a":[' + b"1," * 20_000_000 + b"1]}"}
    for name, text in texts.items():
        yield config_case(name, text)


def tokenizer_case(name, content, text="Hello, what is the capital of France?"):
    def prepare(folder):
        return [(DSRUN, ["tokenize", model(folder, {"tokenizer.json": content}), "-p", text])]
    return Case("tokenizer: " + name, prepare)


def with_pattern(tokenizer, pattern):
    return dict(tokenizer, pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                                          "invert": False})


def tokenizers(tokenizer):
    for key in ("model", "added_tokens", "pre_tokenizer", "decoder", "normalizer"):
        for value in (5, "x", {"type": "x"}, {"type": 5}, [5], [[]]):
            yield tokenizer_case("%s is %r" % (key, value), dict(tokenizer, **{key: value}))
    vocabulary = tokenizer["model"]["vocab"]
    some = sorted(vocabulary)[100]
    for name, number in dict(NUMBERS, null=None).items():
        changed = dict(tokenizer, model=dict(tokenizer["model"], vocab=dict(vocabulary, **{some: number})))
        yield tokenizer_case("an id of the vocabulary is " + name, changed)
        yield tokenizer_case("an added id is " + name, replaced(tokenizer, ("added_tokens", 0, "id"), number))
    for merge in ("x", "", "a b c", 5, None, ["a"], ["a", 5], ["a", "b", "c"], "\u0000 \u0000", "zzzz qqqq"):
        yield tokenizer_case("a merge is %r" % (merge,), replaced(tokenizer, ("model", "merges", 0), merge))
    patterns = {"alternatives": "(?:a|a|a|a|a|a|a|a|a|a|a|a)*b", "nested repeats": "(?:(?:(?:a+)+)+)+$", "a look ahead":
                "(?=(?:a+)+b)", "10,000 alternatives": "|".join(["a{1,50}"] * 10_000), "open": "(", "behind it": "a)",
                "a back reference": r"(a)\1", "recursion": "(?R)", "code": "(?{1})", "a callout": "(?C1)",
                "a repeat of 10^9": "(?:a{1,60000}){1,60000}", "deep": "(" * 20_000 + "a" + ")" * 20_000,
                "a verb": "(*ACCEPT)", "UTF off": "(*UTF)a", "the match limit": "(*LIMIT_MATCH=4000000000)a", "a conditional": "(?(1)a|b)",
                "a look behind": "(?<=a{1,9000}b{1,9000})c"}
    for name, pattern in patterns.items():
        yield tokenizer_case("a pattern with " + name, with_pattern(tokenizer, pattern), "a" * 6000)
    texts = {"empty": b"", "open": b"{", "an array": b"[]", "deep": b'{"a":' * 50_000, "no UTF-8": b'{"model":"\xff"}',
             "60 MB of numbers": b'{"a":[' + b"1," * 30_000_000 + b"1]}"}
    for name, text in texts.items():
        yield tokenizer_case(name, text)


def template_case(name, template):
    def prepare(folder):
        config = json.loads((Path(model.source) / "tokenizer_config.json").read_text())
        at = model(folder, {"tokenizer_config.json": dict(config, chat_template=template)})
        return [(DSRUN, [at, "-p", "Hello", "-n", "1", "--ctx", "64", "--device", "cpu"])]
    return Case("chat template: " + name, prepare)


def templates():
    for name, template in {"a number": 5, "a call of no function": "{{ messages() }}",
                           "a loop": "{% for i in range(10**9) %}x{% endfor %}", "open": "{% if",
                           "an escape": "{{ raise_exception('\x1b]0;x\x07') }}", "another file": "{% include '/etc/passwd' %}",
                           "a call of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                           "a text doubled": "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
                           "2 MB of brackets": "{{ " + "(" * 2_000_000, "brackets": "{{ " + "[" * 100_000,
                           "8 MB": "x" * 8_000_000, "an object": {"a": "b"}, "a list of numbers": [1, 2]}.items():
        yield template_case(name, template)


def conversations():
    messages = {"a number": 5, "no list": {"role": "user", "content": "x"}, "no role": [{"content": "x"}], "no content":
                [{"role": "user"}], "a role that is a number": [{"role": 5, "content": "x"}], "an unknown role":
                [{"role": "x\x1b[2J", "content": "x"}], "content is a number": [{"role": "user", "content": 5}],
                "a picture": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
                "empty": [], "a message is a text": ["x"], "tools are a text": {"messages": [{"role": "user", "content": "x"}],
                                                                             "tools": "x"}}
    texts = {"open": b"[{", "no UTF-8": b'[{"role":"user","content":"\xff"}]', "deep": b"[" * 100_000, "empty": b"",
             "40 MB of numbers": b"[" + b"1," * 20_000_000 + b"1]"}
    for name, content in {**messages, **texts}.items():
        def prepare(folder, content=content):
            (folder / "talk.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
            return [(DSRUN, ["tokenize", model(folder, {}), "--chat", folder / "talk.json", "--text"])]
        yield Case("conversation: " + name, prepare)


HEADER = {"format": "dspack-routes", "version": 1, "model_type": "deepseek_v3", "top_k": 2,
          "layers": [{"layer": 1, "experts": 4, "expert_bytes": 100}]}
LINES = [{"pass": 0, "phase": "prefill", "layer": 1, "ids": [[0, 1], [2, 3]]},
         {"pass": 1, "phase": "decode", "layer": 1, "ids": [[1, 2]]}]


def routes_case(name, content):
    def prepare(folder):
        (folder / "routes.jsonl").write_bytes(content)
        return [(DSRUN, ["replay", folder / "routes.jsonl", "--slots", "50%"])]
    return Case("routes: " + name, prepare)


def lines(*documents):
    return b"".join(compact(document).encode() + b"\n" for document in documents)


def traces():
    for document, rest in ((HEADER, False), (LINES[0], True)):
        for place in places(document):
            if not place:
                continue
            value = value_at(document, place)
            others = dict(NUMBERS) if is_number(value) else {"null": None, "a number": 5, "a text": "x", "empty": []}
            for name, other in others.items():
                if place == ("model_type",) and other == "x":
                    continue  # any text will do
                changed = replaced(document, place, other)
                yield routes_case("%s is %s" % (title(place), name), lines(HEADER, changed, LINES[1]) if rest else
                                  lines(changed, *LINES))
            if len(place) == 1:
                changed = without(document, place)
                yield routes_case("%s is missing" % title(place), lines(HEADER, changed) if rest else lines(changed, *LINES))
    good = lines(HEADER, *LINES)
    texts = {"empty": b"", "no header": lines(*LINES), "two headers": lines(HEADER, HEADER), "cut": good[:-5],
             "a line of 9 MB": good + b'{"x":"' + b"a" * 9_000_000 + b'"}\n', "passes descend": lines(HEADER, LINES[1], LINES[0]),
             "no UTF-8": good + b'{"\xff":1}\n', "NULs": bytes(1000), "deep": lines(HEADER) + b"[" * 100_000 + b"\n",
             "an expert twice": lines(HEADER, dict(LINES[0], ids=[[1, 1]])), "an expert too high":
             lines(HEADER, dict(LINES[0], ids=[[1, 4]])), "4 MB of empty rows": lines(HEADER, dict(LINES[0], ids=[[]] * 1_000_000))}
    for name, text in texts.items():
        yield routes_case(name, text)


def recordings():
    ids = ("I64", [2], (0).to_bytes(8, "little") + (5).to_bytes(8, "little"))
    files = {"no ids": {"a": ("F32", [1], bytes(4))}, "ids that are text": {"input_ids": ("U8", [2], b"ab")},
             "ids of no number": {"input_ids": ("I64", [0], b"")}, "ids below zero": {"input_ids": ("I64", [1], b"\xff" * 8)},
             "ids beyond the vocabulary": {"input_ids": ("I64", [1], (2**40).to_bytes(8, "little"))},
             "only ids": {"input_ids": ids}, "a module of no model": {"input_ids": ids, "x.output": ("F32", [2, 1], bytes(8))},
             "rows of another length": {"input_ids": ids, "model.norm.output": ("F32", [2, 3], bytes(24))},
             "rows of another number": {"input_ids": ids, "model.norm.output": ("F32", [3, 192], bytes(2304))}}
    for name, tensors in files.items():
        yield recording_case(name, safetensors_io.with_length(safetensors_io.header_of(tensors)) +
                             b"".join(raw for _, _, raw in tensors.values()))
    for name, content in {"empty": b"", "text": b"hello" * 100, "a header of 60 MB":
                          safetensors_io.with_length(b'{"a":[' + b"1," * 30_000_000 + b"1]}")}.items():
        yield recording_case(name, content)


def recording_case(name, content):
    def prepare(folder):
        (folder / "run.safetensors").write_bytes(content)
        return [(DSRUN, ["compare", model(folder, {}), "--reference", folder / "run.safetensors"])]
    return Case("recording: " + name, prepare)


def cases(source):
    """`source` is a copy of the trained checkpoint on the file system of the scratch folders."""
    model.source = source
    yield from configs(json.loads((source / "config.json").read_text()))
    yield from tokenizers(json.loads((source / "tokenizer.json").read_text()))
    yield from templates()
    yield from conversations()
    yield from traces()
    yield from recordings()
