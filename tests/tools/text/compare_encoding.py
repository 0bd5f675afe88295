"""Compares the built-in template deepseek-v3.2, and the parser of answers, with the program that DeepSeek-V3.2's
repository has instead of a template.

    python compare_encoding.py ENCODER BENCH_TEMPLATES [--count N] [--seed N] [--show N] [--published FOLDER]
                               [--golden FILE]

ENCODER is encoding/encoding_dsv32.py of deepseek-ai/DeepSeek-V3.2 (MIT licence), which is not copied here,
BENCH_TEMPLATES the program of tests/bench. Each of N random conversations (encoding_conversations.py) is written with
and without reasoning and with drop_thinking on and off; then answers as the encoder writes them are parsed. --published: the folder with
test_input*.json and test_output*.txt that lies beside the encoder; of the first, the text may be missing. --golden writes the cases that the unit tests
read instead of comparing. Prints counts and the first differences; exits 1 if there is one.

What dsrun does otherwise, and is therefore done to the encoder's input as well:
- the conversation's own tools go to the first message, or into an empty system message in front;
- results that bear the ids of their calls are put into the order of the calls;
- arguments that are objects become text.
A conversation that begins with a tool's result is left out: the encoder looks for its call at the conversation's end.
"""
import argparse
import collections
import copy
import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys

from encoding_conversations import Conversations

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PUBLISHED = ("test_input.json", "test_input_search_w_date.json", "test_input_search_wo_date.json")
MODES = tuple({"thinking": thinking, "drop_thinking": drop} for thinking in (False, True) for drop in (True, False))


def load(path):
    spec = importlib.util.spec_from_file_location("encoding_dsv32", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def order_results(messages):
    """Results in the order of their calls, where each bears the id of one."""
    index = 0
    while index < len(messages):
        ids = [call.get("id") for call in messages[index].get("tool_calls") or []]
        index += 1
        results = messages[index:index + len(ids)]
        given = [message.get("tool_call_id") for message in results]
        tells_apart = None not in ids and len(set(ids)) == len(ids) and set(given) == set(ids)
        if tells_apart and all(message["role"] == "tool" for message in results):
            messages[index:index + len(ids)] = sorted(results, key=lambda message: ids.index(message["tool_call_id"]))


def lower(conversation):
    """The conversation as the encoder takes it."""
    messages = copy.deepcopy(conversation["messages"])
    if conversation.get("tools"):
        if not messages or messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system"})
        elif messages[0].get("tools"):
            raise ValueError("tools in two places")
        messages[0]["tools"] = conversation["tools"]
    order_results(messages)
    for message in messages:
        for call in message.get("tool_calls") or []:
            if isinstance(call["function"]["arguments"], dict):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return messages


def encode(encoder, conversation, mode):
    """The text and no reason, or None and why there is none."""
    try:
        return encoder.encode_messages(lower(conversation), thinking_mode="thinking" if mode["thinking"] else "chat",
                                       drop_thinking=mode["drop_thinking"]), ""
    except Exception as error:  # its assertions, and whatever Python says of what it did not expect
        return None, repr(error)


def ask(program, lines):
    text = "\n".join(json.dumps(line) for line in lines)
    said = subprocess.run([program], input=text, stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
    return [json.loads(line) for line in said.split("\n") if line]


def render(program, cases):
    return ask(program, [{"template": "deepseek-v3.2", "messages": each["messages"], "tools": each["tools"],
                          "chat_template_kwargs": mode, "bos_token": BOS, "eos_token": EOS} for each, mode in cases])


def conversations(seed, count, is_wild=True):
    source = Conversations(seed, is_wild)
    found = []
    while len(found) < count:
        each = source.conversation()
        if not each["messages"] or each["messages"][0]["role"] != "tool":
            found.append(each)
    return found


def published(encoder, folder):
    """The published cases: their conversations, and their texts. The encoder itself must give these texts."""
    for file in (folder / name for name in PUBLISHED):
        content = json.loads(file.read_text(encoding="utf-8"))
        each = {"messages": content["messages"], "tools": content.get("tools")}
        expected = file.with_name(file.name.replace("input", "output")).with_suffix(".txt")
        text, why = encode(encoder, each, MODES[2])
        if expected.exists() and text != expected.read_text(encoding="utf-8").strip():
            sys.exit(f"{file}: the encoder's text is not that of {expected.name} {why}")
        yield f"{file.name}, " + (f"as {expected.name}" if expected.exists() else "as the encoder has it"), each, text


def replies(encoder, seed, count):
    """Answers as the model is taught to write them: (text, reasons, what the encoder reads)."""
    source = Conversations(seed, is_wild=False)
    while count:
        message = source.random.choice((source.calls, source.answer))()
        for call in message.get("tool_calls") or []:
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        reasons = source.chance(0.5)
        context = [{"role": "user", "content": "q"}]
        try:
            text = encoder.encode_messages([message], context=context, thinking_mode="thinking" if reasons else "chat")
            told = encoder.parse_message_from_completion_text(text, thinking_mode="thinking" if reasons else "chat")
        except Exception:  # reasoning that is asked for and missing
            continue
        count -= 1
        yield text.removesuffix(EOS), reasons, told


def normal(reasoning, content, calls):
    """An answer's parts. White space at the edge of reasoning and content belongs to the form, for dsrun."""
    return {"reasoning": reasoning.strip(" \t\r\n"), "content": content.strip(" \t\r\n"),
            "calls": [[name, json.loads(arguments)] for name, arguments in calls]}


def read(told):
    """What the encoder read of an answer."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in told["tool_calls"]]
    return normal(told["reasoning_content"], told["content"], calls)


def same(ours, theirs):
    return json.dumps(ours) == json.dumps(theirs)


def compare_texts(encoder, options):
    cases = [(each, mode) for each in conversations(options.seed, options.count) for mode in MODES]
    counts = collections.Counter()
    for (each, mode), said in zip(cases, render(options.program, cases), strict=True):
        expected, why = encode(encoder, each, mode)
        got = said.get("text")
        kind = "both fail" if got is None and expected is None else "equal" if got == expected else "different"
        counts[kind] += 1
        if kind == "different" and counts[kind] <= options.show:
            print(f"{json.dumps(each, ensure_ascii=False)} {mode}\n  encoder: {expected!r} {why}\n  dsrun: {got!r} {said.get('error')}")
    print(f"{options.count} conversations, {len(cases)} texts;", ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    return counts["different"]


def compare_published(encoder, options):
    cases = list(published(encoder, options.published))
    failures = 0
    for (name, _, expected), said in zip(cases, render(options.program, [(each, MODES[2]) for _, each, _ in cases]), strict=True):
        failures += said.get("text") != expected
        print(f"{name}: {'equal' if said.get('text') == expected else 'DIFFERENT'}, {len(expected)} characters")
    return failures


def compare_replies(encoder, options):
    cases = list(replies(encoder, options.seed, options.count))
    tools = lambda told: [name for name, _ in read(told)["calls"]]
    said = ask(options.program, [{"reply": text, "reasons": reasons, "tools": tools(told)} for text, reasons, told in cases])
    counts = collections.Counter()
    for (text, reasons, told), got in zip(cases, said, strict=True):
        ours = normal(**got)
        kind = "equal" if same(ours, read(told)) else "different"
        counts[kind] += 1
        if kind == "different" and counts[kind] <= options.show:
            print(f"{text!r}, reasons {reasons}\n  encoder: {read(told)}\n  dsrun: {ours}")
    print(f"{len(cases)} answers;", ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    return counts["different"]


def abridged(conversation, most=60, messages=9):
    """The first messages, the texts of tools' results and answers cut: pages of the web, which are others' and long."""
    short = copy.deepcopy(conversation)
    del short["messages"][messages:]
    for message in short["messages"]:
        for name in ("content", "reasoning_content"):
            if message["role"] in ("tool", "assistant") and message.get(name):
                message[name] = message[name][:most]
    return short


def write_golden(encoder, options):
    line = lambda value: json.dumps(value, ensure_ascii=False)
    cases = []
    for name, each, _ in published(encoder, options.published) if options.published else ():
        short = abridged(each) if "search" in name else each
        cases.append({"name": name.split(",")[0] + (", abridged" if short is not each else ""), **short, **MODES[2],
                      "text": encode(encoder, short, MODES[2])[0]})
    for index, each in enumerate(conversations(options.seed, options.count)):
        mode = MODES[index % len(MODES)]
        cases.append({"name": f"generated {index}", **each, **mode, "text": encode(encoder, each, mode)[0]})
    answers = [{"reply": text, "reasons": reasons, **read(told)} for text, reasons, told in replies(encoder, options.seed, options.count)]
    digest = hashlib.sha256(options.encoder.read_bytes()).hexdigest()
    head = ('{\n"origin": "test_input*.json of encoding/ in deepseek-ai/DeepSeek-V3.2 (MIT licence), and generated ones; '
            f'texts by encoding_dsv32.py",\n"encoder_sha256": "{digest}",\n')
    options.golden.write_text(head + '"cases": [\n' + ",\n".join(map(line, cases)) + '\n],\n"replies": [\n' + ",\n".join(map(line, answers))
                              + "\n]\n}\n", encoding="utf-8")
    print(len(cases), "cases,", sum(each["text"] is None for each in cases), "of them refused;", len(answers), "answers")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("encoder", type=pathlib.Path)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--published", type=pathlib.Path)
    parser.add_argument("--golden", type=pathlib.Path)
    options = parser.parse_args()
    encoder = load(options.encoder)
    if options.golden:
        return write_golden(encoder, options)
    failures = compare_texts(encoder, options) + compare_replies(encoder, options)
    if options.published:
        failures += compare_published(encoder, options)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
