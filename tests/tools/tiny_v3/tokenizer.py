"""tokenizer.json, tokenizer_config.json: byte-level BPE with DeepSeek-V3's rules, trained on the corpus.

Same pre-tokenizer (three successive isolated splits, then bytes without a regex of its own), same special tokens in
the same order (three first, the others after the vocabulary), merges written as "a b" strings, as released.
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from corpus import tokenizer_corpus

SPLITS = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]
FIRST = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
# (text, special): V3 marks few of them special; the others stay visible when special tokens are skipped.
LAST = [("<think>", False), ("</think>", False), ("<｜fim▁hole｜>", False), ("<｜fim▁begin｜>", False),
        ("<｜fim▁end｜>", False), ("<｜User｜>", False), ("<｜Assistant｜>", False), ("<|EOT|>", True),
        ("<｜tool▁calls▁begin｜>", False), ("<｜tool▁calls▁end｜>", False), ("<｜tool▁call▁begin｜>", False),
        ("<｜tool▁call▁end｜>", False), ("<｜tool▁outputs▁begin｜>", False), ("<｜tool▁outputs▁end｜>", False),
        ("<｜tool▁output▁begin｜>", False), ("<｜tool▁output▁end｜>", False), ("<｜tool▁sep｜>", False)]
BPE_SIZE = 1100  # with the first three


def pre_tokenizer():
    splits = [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
    return pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizer()
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.train_from_iterator(tokenizer_corpus(), trainers.BpeTrainer(
        vocab_size=BPE_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=FIRST,
        min_frequency=2, show_progress=False))
    tok.add_tokens([AddedToken(t, normalized=False, special=s) for t, s in LAST])
    return tok


def save(tok, folder):
    folder = pathlib.Path(folder)
    data = json.loads(tok.to_str())
    data["normalizer"] = {"type": "Sequence", "normalizers": []}
    data["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    added = lambda t: {"__type": "AddedToken", "content": t, "lstrip": False, "normalized": True, "rstrip": False,
                       "single_word": False}
    config = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": added(FIRST[0]),
        "clean_up_tokenization_spaces": False, "eos_token": added(FIRST[1]), "legacy": True,
        "model_max_length": 1024, "pad_token": added(FIRST[1]), "sp_model_kwargs": {}, "unk_token": None,
        "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": chat_template(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n",
                                                  encoding="utf-8")


def chat_template():
    return (pathlib.Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def load(folder):
    return Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))


if __name__ == "__main__":
    import sys
    save(train(), sys.argv[1])
