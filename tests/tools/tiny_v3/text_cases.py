"""Writes tokenizer_cases.json and chat_cases.json: what HF tokenizers and Jinja make of the exported files.

    python text_cases.py ../../data/tiny-v3 ../../data/tiny-v3-golden
"""
import json
import pathlib
import random
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

import corpus
import tokenizer

TEXTS = [
    "", " ", "a", "Hello, world!", "  leading and trailing  ", "What is the capital of France?", "What is 12 plus 7?",
    "12+7=19", "0", "00", "000", "0000", "100000000", "1234567890", "3.14159", "1,000,000", "2026-11-20T08:30:00Z",
    "x1y22z333w4444", "١٢٣٤٥", "½ ² Ⅷ", "I'm sure you're right; they've said it's fine, don't we'll?", "'s 't 're 've",
    "don’t “quote” ‘me’ — dash – dash…", "for (int i = 0; i < n; ++i) {\n    sum += a[i];\n}\n",
    "def main():\n\treturn None\n\n\n", "#include <vector>\r\n#include <string>\r\n", "a\nb\n\nc\n\n\nd", "line\r\n\r\nline",
    "\n", "\n\n\n", " \n \n ", "\t\t\ttabs", "    four", "a    b", "a  \n  b", "trailing spaces   ", "a \t \n\t b",
    "https://example.com/index.html?q=1&r=2#top", "user@example.com", "C:\\Windows\\System32", "{\"a\": [1, 2, 3]}",
    "```json\n{}\n```", "!!!???...", "...\n\n", "?!\n", "$100.00 + 5% = €105", "a_b-c.d/e", "_under __dunder__", "<b>&amp;</b>",
    "如果你喜欢这个故事，请告诉我。", "你好，世界！123", "中文English混合文本", "これは小さなモデルです。", "カタカナひらがな漢字", "ｶﾀｶﾅ", "한국어 문장입니다.",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया", "ไทย",
    "Café naïve Zürich señor façade", "e\u0301 cafe\u0301 a\u0308\u0323", "\u0301alone", "ﬁ ligature", "𝒳 𝔘𝔫𝔦", "😀😀 👍🏽 🎉", "👩‍👩‍👧‍👦 🏳️‍🌈",
    "a😀b", "zero\u200bwidth\u200djoin", "nbsp\u00a0here\u3000ideographic", "\ufeffbom", "\u0000nul\u0001", "\x7f\x80",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "supercalifragilisticexpialidocious", "ABCdefGHI", "iPhone15Pro",
    "Once upon a time there was a fox named Rosa.", "The  capital\tof\nFrance is Paris.", "，。！？、", "「」『』（）", "～·×÷≠≤", "word,word.word",
    " .", " ,x", "a .b", "(a)(b)", "[^\\r\\n]", "@#%^&*()", "~`|", "–—―", "\u2028line\u2029para", "\x0b\x0c", "mixed 中 文 1 2 3 あ ア",
    "<think>Let me see.</think>", "<｜User｜>Hi<｜Assistant｜>", "<｜User｜", "<|User|>", "<｜begin▁of▁sentence｜><｜begin▁of▁sentence｜>",
    "a<｜end▁of▁sentence｜>b", " <｜▁pad▁｜> ", "<|EOT|>", "<｜fim▁begin｜>a<｜fim▁hole｜><｜fim▁end｜>", "▁｜", "\n<｜User｜>\n",
]


def tokenizer_cases(folder):
    tok = tokenizer.load(folder)
    r = random.Random(3)
    specials = [t for t in tokenizer.FIRST] + [t for t, _ in tokenizer.LAST]
    texts = TEXTS + ["".join(specials), " ".join(specials)] + [corpus.sample(r) for _ in range(8)]
    alphabet = list("ab Z09\n\t.,'!") + ["é", "中", "あ", "😀", "\u0301", "  ", "the", " fox", "12", "<｜User｜>"]
    texts += ["".join(r.choice(alphabet) for _ in range(40)) for _ in range(20)]
    cases = []
    for text in texts:
        ids = tok.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                      "decoded_without_special": tok.decode(ids, skip_special_tokens=True)})
        assert cases[-1]["decoded"] == text
    # Byte tokens alone: decoding cuts inside characters, so U+FFFD appears.
    partial = []
    for text in ("😀", "中文", "é"):
        ids = tok.encode(text, add_special_tokens=False).ids
        for cut in range(1, len(ids)):
            partial.append({"ids": ids[:cut], "decoded": tok.decode(ids[:cut], skip_special_tokens=False)})
    return {"cases": cases, "partial": partial}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CHATS = [
    [user("What is the capital of France?")],
    [{"role": "system", "content": "You are a helpful assistant."}, user("Hello!")],
    [{"role": "system", "content": "One."}, user("Hi!"), {"role": "system", "content": "Two."}, assistant("Hello!"),
     user("What is 12 plus 7?")],
    [user("My name is Anna."), assistant("Nice to meet you, Anna."), user("What is my name?")],
    [user("a"), assistant("b"), user("c"), assistant("d")],
    [user("Line one\nLine two\n\n  indented {{ not a template }} <｜User｜>")],
    [user("Weather in Paris?"), {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Paris"})]}],
    [user("Weather in Paris?"), {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Paris"})]},
     {"role": "tool", "content": "{\"sky\": \"blue\"}"}],
    [user("Paris and Rome?"), {"role": "assistant", "content": None, "tool_calls":
        [call("get_weather", {"city": "Paris"}), call("get_weather", {"city": "Rome"})]},
     {"role": "tool", "content": "sun"}, {"role": "tool", "content": "rain"}, assistant("Sun in Paris, rain in Rome."),
     user("Thank you!")],
    [{"role": "system", "content": ""}, user("")],
    [assistant("I speak first."), user("Oh.")],
    [user("如果你喜欢 😀"), assistant(""), user("  spaces  ")],
]


def chat_cases(folder):
    config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text(encoding="utf-8"))
    # The environment that transformers uses for chat templates.
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    tok = tokenizer.load(folder)
    cases = []
    for messages in CHATS:
        for prompt in (True, False):
            text = template.render(messages=messages, add_generation_prompt=prompt,
                                   bos_token=config["bos_token"]["content"], eos_token=config["eos_token"]["content"])
            cases.append({"messages": messages, "add_generation_prompt": prompt, "text": text,
                          "ids": tok.encode(text, add_special_tokens=False).ids})
    return {"cases": cases}


def main(folder, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, value in (("tokenizer_cases.json", tokenizer_cases(folder)), ("chat_cases.json", chat_cases(folder))):
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        print(name, {k: len(v) for k, v in value.items()})


if __name__ == "__main__":
    main(*sys.argv[1:3])
