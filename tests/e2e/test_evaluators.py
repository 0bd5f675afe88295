"""dsrun serve as evaluators ask it: likelihoods of a prompt's tokens, several prompts in a request, no answer at all.
Every likelihood is compared with what `dsrun logits` says, to the last bit."""

import http.client
import json
import shutil

from common import main
from scoring import Scoring
from test_serve import QUESTIONS, chat

PATH = "/v1/completions"
FRANCE = "The capital of France is"
MIXED = "Anna said né 漢字 🙂!"  # characters of one to four bytes, most of several tokens
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def scored(prompt, **options):
    return {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 1, **options}


class Evaluators(Scoring):
    def bytes_of(self, token):
        return bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:\\x") else token.encode()

    def check_choice(self, choice, ids, most, answered, folder=None):
        """Of a prompt of `ids` and an answer of `answered` tokens, the likeliest at every step."""
        logprobs = choice["logprobs"]
        self.assertEqual(set(logprobs), set(LISTS))
        count = len(ids) + answered
        self.assertEqual([len(logprobs[name]) for name in LISTS], [count] * 4)
        every = list(ids)
        while len(every) < count:
            row = self.rows(every, folder)[-1]
            every.append(row.index(max(row)))
        self.assertEqual(logprobs["token_logprobs"], self.token_logprobs(every, folder))
        self.assertIsNone(logprobs["top_logprobs"][0])
        for row, token, told in zip(self.rows(every, folder), every[1:], logprobs["top_logprobs"][1:]):
            likeliest = sorted(range(len(row)), key=lambda i: (-row[i], i))[:most]
            self.assertEqual(list(told.values()), [row[i] for i in (*likeliest, *({token} - {*likeliest}))])
        return every

    def test_every_token_of_a_prompt_has_the_likelihood_of_its_logits(self):
        self.start_server()
        ids = self.ids_of(MIXED)
        self.assertGreater(len(ids), len(MIXED) // 2)
        for most in (0, 1, 5, 20):
            body = scored(MIXED, logprobs=most, max_tokens=3)
            whole = self.answer(PATH, body)
            choice = whole["choices"][0]
            self.check_choice(choice, ids, most, 3)
            self.assertEqual(choice["finish_reason"], "length")
            self.assertTrue(choice["text"].startswith(MIXED))
            self.assertEqual(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            parts, usage = self.stream(body)
            self.assertEqual((parts[0], usage), (dict(choice), whole["usage"]))
            self.assertEqual(self.answer(PATH, dict(body, prompt=ids))["choices"], whole["choices"])
        # Only the answer's, where the prompt is not echoed; only the text, where none are asked for.
        plain = self.answer(PATH, {**body, "echo": False})["choices"][0]
        self.assertEqual(plain["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"][-3:])
        self.assertEqual(plain["logprobs"]["text_offset"][0], 0)
        self.assertEqual(MIXED + plain["text"], choice["text"])
        self.assertEqual(self.answer(PATH, {**body, "logprobs": None})["choices"][0],
                         {"index": 0, "text": choice["text"], "finish_reason": "length"})
        # The chat's likelihoods are of the same kind.
        prompt = self.ids_of(self.answer("/apply-template", chat(QUESTIONS[0]))["prompt"])
        told = self.answer("/v1/chat/completions", chat(QUESTIONS[0], logprobs=True, max_tokens=2))["choices"][0]
        row = self.rows(prompt)[-1]
        self.assertEqual(told["logprobs"]["content"][0]["logprob"], max(row))

    def test_offsets_are_characters_of_the_text(self):
        self.start_server()
        ids = self.ids_of(MIXED)
        for prompt in (ids, ids[:-2], ids[:len(ids) // 2], ids + [0] + ids):  # cut within a character; BOS, not in the text
            choice = self.answer(PATH, scored(prompt, max_tokens=2))["choices"][0]
            text, logprobs = choice["text"], choice["logprobs"]
            data = b""
            for token, offset, name in zip(prompt, logprobs["text_offset"], logprobs["tokens"]):
                whole = data.decode("utf-8", "ignore")  # a character that has begun counts from its start
                self.assertEqual((offset, text[:offset]), (len(whole), whole))
                if token != 0:
                    data += self.bytes_of(name)
            self.assertEqual(logprobs["tokens"][0], "<｜begin▁of▁sentence｜>")
            self.assertEqual(choice, self.stream(scored(prompt, max_tokens=2))[0][0])

    def test_an_end_token_is_told_last(self):
        """An evaluator asks for one token and leaves the last likelihood out, whatever it was."""
        self.start_server()
        text = self.answer("/apply-template", chat(QUESTIONS[0]))["prompt"] + "The capital of France is Paris."
        ids = self.ids_of(text)
        for stop in (None, ["x"]):
            whole = self.answer(PATH, scored(ids, stop=stop))
            every = self.check_choice(whole["choices"][0], ids, 1, 1)
            self.assertEqual(every[-1], 1)
            self.assertEqual(whole["choices"][0]["logprobs"]["tokens"][-1], "<｜end▁of▁sentence｜>")
            self.assertEqual((whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]), ("stop", 0))
            self.assertEqual(self.stream(scored(ids, stop=stop))[0], whole["choices"])

    def test_forms_of_prompts(self):
        self.start_server("--parallel", "2")
        texts = [FRANCE, "Once upon a time", MIXED]
        ids = [self.ids_of(text) for text in texts]
        body = {"max_tokens": 3, "temperature": 0}
        alone = [self.answer(PATH, dict(body, prompt=text)) for text in texts]
        for prompt, wanted in ((texts[0], alone[:1]), (ids[0], alone[:1]), (texts[:1], alone[:1]), (ids[:1], alone[:1]),
                               (texts, alone), (ids, alone)):
            for is_scored in (False, True):
                asked = dict(body, prompt=prompt, **({"echo": True, "logprobs": 2} if is_scored else {}))
                whole = self.answer(PATH, asked)
                self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(len(wanted))))
                for choice, one, text, tokens in zip(whole["choices"], wanted, texts, ids):
                    self.assertEqual(choice["text"], (text if is_scored else "") + one["choices"][0]["text"])
                    if is_scored:
                        self.check_choice(choice, tokens, 2, 3)
                for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                    self.assertEqual(whole["usage"][name], sum(one["usage"][name] for one in wanted))
                choices, usage = self.stream(asked)
                self.assertEqual(choices, whole["choices"])
                self.assertEqual(usage["total_tokens"], whole["usage"]["total_tokens"])

    def test_several_answers_to_each_of_several_prompts(self):
        """A prompt is answered as if it had come alone, with the seeds that follow its own."""
        self.start_server("--parallel", "3")
        texts = ["Once upon a time", FRANCE]
        body = {"max_tokens": 6, "temperature": 0.9, "seed": 7, "n": 3}
        alone = [self.answer(PATH, dict(body, prompt=text)) for text in texts]
        whole = self.answer(PATH, dict(body, prompt=texts))
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(6)))
        self.assertEqual([choice["text"] for choice in whole["choices"]],
                         [choice["text"] for one in alone for choice in one["choices"]])
        self.assertGreater(len({choice["text"] for choice in whole["choices"]}), 3)
        self.assertEqual(whole["usage"]["prompt_tokens"], sum(one["usage"]["prompt_tokens"] for one in alone))
        self.assertEqual(whole["usage"]["completion_tokens"], sum(one["usage"]["completion_tokens"] for one in alone))
        echoed = self.answer(PATH, dict(body, prompt=texts, echo=True, logprobs=1))
        for choice, plain in zip(echoed["choices"], whole["choices"]):
            text = texts[choice["index"] // 3]
            ids = self.ids_of(text)
            self.assertEqual(choice["text"], text + plain["text"])
            self.assertEqual(choice["logprobs"]["token_logprobs"][:len(ids)], self.token_logprobs(ids))
        self.assertEqual(self.stream(dict(body, prompt=texts, echo=True, logprobs=1))[0], echoed["choices"])

    def test_no_answer_at_all(self):
        self.start_server()
        ids = self.ids_of(FRANCE)
        for prompt, count in ((FRANCE, 1), ([ids, ids[:1]], 2)):
            for options, text in (({}, ""), ({"echo": True}, FRANCE), ({"logprobs": 3}, ""),
                                  ({"echo": True, "logprobs": 3}, FRANCE)):
                body = {"prompt": prompt, "max_tokens": 0, **options}
                whole = self.answer(PATH, body)
                self.assertEqual(len(whole["choices"]), count)
                choice = whole["choices"][0]
                self.assertEqual((choice["text"], choice["finish_reason"]), (text, "length"))
                self.assertEqual((whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]),
                                 (len(ids) + count - 1, 0))
                if "logprobs" in options and text:
                    self.check_choice(choice, ids, 3, 0)
                elif "logprobs" in options:
                    self.assertEqual(choice["logprobs"], {name: [] for name in LISTS})
                choices = self.stream(body)[0]
                self.assertEqual([each["text"] for each in choices], [each["text"] for each in whole["choices"]])
                self.assertEqual(choices[0].get("logprobs", choice.get("logprobs")), choice.get("logprobs"))
        self.assertEqual(self.ask("/v1/chat/completions", chat("x", max_tokens=0))[0], 400)

    def test_prompts_share_passes_beside_others_and_caches_change_nothing(self):
        """Answers, drafts, and conversations that begin as the prompts do."""
        texts = ["One day the fog came " * count + FRANCE for count in range(12)]
        for options in (("--parallel", "4", "--cache-ram", "16M"), ("--parallel", "3", "--mtp", "2")):
            self.start_server(*options)
            ids = [self.ids_of(text) for text in texts]
            self.answer(PATH, {"prompt": texts, "max_tokens": 2, "temperature": 0})  # they are in caches now
            with self.subTest(options=options):
                other = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                self.addCleanup(other.close)
                idle = self.counts()
                other.request("POST", PATH, json.dumps({"prompt": "Once", "max_tokens": 60, "logit_bias": {"1": -100}}))
                self.wait_for(lambda: self.counts()["prompt_tokens_total"] > idle["prompt_tokens_total"])
                before = self.counts()
                whole = self.answer(PATH, scored(ids, logprobs=0, max_tokens=0))
                after = self.counts()
                self.assertEqual(json.loads(other.getresponse().read())["usage"]["completion_tokens"], 60)
                for choice, tokens in zip(whole["choices"], ids):
                    self.assertEqual(choice["logprobs"]["token_logprobs"], self.token_logprobs(tokens))
                self.assertEqual(after["prompt_tokens_total"] - before["prompt_tokens_total"], sum(map(len, ids)))
                self.assertEqual(after["prompt_tokens_cached_total"], before["prompt_tokens_cached_total"])
                again = self.answer(PATH, scored(texts[-1]))
                self.check_choice(again["choices"][0], ids[-1], 1, 1)
            self.assert_ok_after_stop()
        self.start_server("--parallel", "4")
        self.answer(PATH, scored(ids, max_tokens=0))
        self.assertLess(self.counts()["passes_total"], len(ids))
        self.assert_ok_after_stop()

    def test_other_families(self):
        """By token ids: these models have no tokenizer of their own, and get one of a few characters."""
        for name in ("glm-5", "kimi-k2"):
            folder = shutil.copytree(self.data("family") / name, self.scratch / name)
            tokenizer = json.loads((self.data() / "tokenizer.json").read_text())
            tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < 3]
            tokenizer["model"].update(merges=[], vocab={text: number for text, number in tokenizer["model"]["vocab"].items()
                                                        if number < 64})
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
            self.start_server("--parallel", "2", folder=folder)
            ids = [[(7 * i * i + 3 * i) % 60 for i in range(count)] for count in (1, 9, 40)]
            whole = self.answer(PATH, scored(ids, logprobs=4, max_tokens=0))
            for choice, tokens in zip(whole["choices"], ids):
                self.check_choice(choice, tokens, 4, 0, folder)
            self.assert_ok_after_stop()

    def test_forms_and_stop_strings_hold_for_answers_alone(self):
        self.start_server()
        text = self.answer(PATH, {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0})["choices"][0]["text"]
        word = text.split()[3]
        prompt = "Once upon a time " + word  # the stop string is in the prompt as well
        ids = self.ids_of(prompt)
        plain = self.answer(PATH, {"prompt": prompt, "max_tokens": 40, "temperature": 0, "stop": word})["choices"][0]
        choice = self.answer(PATH, scored(prompt, stop=word, max_tokens=40))["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (prompt + plain["text"], plain["finish_reason"]))
        self.assertEqual(choice["logprobs"]["token_logprobs"][:len(ids)], self.token_logprobs(ids))

    def test_what_may_not_be_asked_is_named(self):
        self.start_server("--waiting", "2")
        for prompt in (None, [], {}, 5, True, ["a", [1]], [[1], 2], [1, "a"], [[1], "a"], [None], [-1], [1.5], [[[1]]],
                       [[-1]], [2 ** 32]):
            status, _, text = self.ask(PATH, {"prompt": prompt, "max_tokens": 1})
            self.assertEqual((status, '\\"prompt\\"' in text), (400, True), (prompt, text))
        for options, word in (({"prompt": [[]]}, "no token"), ({"prompt": [[1], []]}, "no token"),
                              ({"prompt": [[1], [5000]]}, "vocabulary"), ({"prompt": [[1], [1] * 2000]}, "--ctx"),
                              ({"prompt": "x", "logprobs": 21}, "logprobs"), ({"prompt": "x", "logprobs": -1}, "logprobs"),
                              ({"prompt": "x", "logprobs": True}, "logprobs"), ({"prompt": "x", "max_tokens": -2}, "max_tokens"),
                              ({"prompt": [[1]] * 1025}, "1024"), ({"prompt": [[1]] * 9, "n": 128}, "1024"),
                              ({"prompt": [[1] * 900] * 1024, "n": 1, "logprobs": 2, "echo": True}, "2097152"),
                              ({"prompt": [[1] * 9000] * 8, "n": 128}, "4194304"),
                              ({"prompt": [[1] * 900_000, [1] * 100_000]}, "1000000 keys and values")):
            status, _, text = self.ask(PATH, {"max_tokens": 0, **options})
            self.assertEqual((status, word in text), (400, True), (str(options)[:80], text))
        # A batch waits as one request.
        whole = self.answer(PATH, scored([[0, 5, 17]] * 300, max_tokens=0))
        self.assertEqual({json.dumps(choice["logprobs"]) for choice in whole["choices"]},
                         {json.dumps(whole["choices"][0]["logprobs"])})
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(300)))

    def test_requests_of_lm_evaluation_harness(self):
        """Its bodies (0.4.13), with texts and with ids, one and several in a request, read as it reads them: the sum of
        likelihoods of a continuation, and whether each of its tokens was the likeliest."""
        self.start_server("--parallel", "4")
        pairs = [(FRANCE, " " + city) for city in ("Paris.", "Rome.", "Berlin.")]
        pairs += [("Once upon a time there was", " an owl named"), (MIXED, " 字")]
        contexts = [self.ids_of(context) for context, _ in pairs]
        tokens = [self.ids_of(context + continuation) for context, continuation in pairs]
        wanted = []
        for context, every in zip(contexts, tokens):
            rows = self.rows(every)[len(context) - 1:-1]
            said = every[len(context):]
            wanted.append((sum(row[token] for row, token in zip(rows, said)),
                           all(row[token] == max(row) for row, token in zip(rows, said))))
        self.assertEqual({is_greedy for _, is_greedy in wanted}, {False, True})
        texts = ["".join(pair) for pair in pairs]
        for batch in ([texts], [tokens], texts, [[each] for each in tokens]):
            said = []
            for prompt in batch:
                body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
                        "echo": True}
                for choice in sorted(self.answer(PATH, body)["choices"], key=lambda choice: choice["index"]):
                    start = len(contexts[len(said)])
                    values = choice["logprobs"]["token_logprobs"][start:-1]
                    tops = choice["logprobs"]["top_logprobs"][start:-1]
                    said.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops))))
            self.assertEqual(said, wanted)
        generated = self.answer(PATH, {"prompt": texts, "model": "m", "max_tokens": 8, "temperature": 0, "stop": ["\n\n"],
                                       "seed": 1234})
        self.assertEqual([choice["text"] for choice in generated["choices"]],
                         [self.answer(PATH, {"prompt": text, "max_tokens": 8, "temperature": 0, "stop": ["\n\n"]})
                          ["choices"][0]["text"] for text in texts])


if __name__ == "__main__":
    main()
