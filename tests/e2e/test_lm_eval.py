"""lm-evaluation-harness itself against dsrun serve, on 200 questions that need no network: the accuracy, and every
log-likelihood, are those that `dsrun logits` gives.

It is heavy, so scripts/test does not install it. DSPACK_TEST_LM_EVAL names a Python that has it
(tests/tools/lm_eval/README.md); without it this file ends as one that did not run. test_evaluators.py sends requests of
the same form.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from common import SKIPPED, clean_environment, main
from scoring import Scoring
from test_serve import chat

TOOL = Path(__file__).resolve().parent.parent / "tools" / "lm_eval" / "evaluate.py"
PYTHON = os.environ.get("DSPACK_TEST_LM_EVAL", "")
SECONDS = 900  # ends what hangs: importing and asking take two minutes
# The harness counts tokens with transformers, which (5.24) puts no BOS before a text of this tokenizer; the server does,
# as its tokenizer_config.json says, unless the text begins with it.
BEGIN, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"

LIKELIHOODS = """task: dspack_likelihoods
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
description: "<｜begin▁of▁sentence｜>"
doc_to_text: "<｜User｜>{{question}}<｜Assistant｜>"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""
ANSWERS = """task: dspack_answers
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def questions():
    """100 sums and 100 differences, half of them of numbers that the model has never seen; each with the right answer and a
    wrong one, now first, now second."""
    for number in range(200):
        a, b, which = (1 if number % 4 < 2 else 51) + number // 2 % 25, 1 + number // 50, number % 2
        if which == 0:
            words, value = "%d plus %d" % (a, b), a + b
        else:
            words, value = "%d minus %d" % (a + b, b), a
        choices = ["%s is %d." % (words, value), "%s is %d." % (words, value + 1 + number % 5)]
        answer = number // 4 % 2
        yield {"question": "What is %s?" % words, "choices": choices[::-1] if answer else choices, "answer": answer}


class LmEval(Scoring):
    def evaluate(self, *asked):
        process = subprocess.Popen(
            [PYTHON, "-B", str(TOOL), str(self.scratch / "tasks")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=clean_environment(self.scratch, {
                "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OPENAI_API_KEY": "none",
                "HF_HOME": str(self.scratch / "hf-home"), "TOKENIZERS_PARALLELISM": "false"}))
        self.addCleanup(self.stop, process)
        said, errors = process.communicate(json.dumps(asked).encode(), timeout=SECONDS)
        self.assertEqual(process.returncode, 0, errors.decode("utf-8", "replace")[-4000:])
        results = [json.loads(line[10:]) for line in said.decode().splitlines() if line.startswith("EVALUATED ")]
        self.assertEqual(len(results), len(asked))
        return results

    def setUp(self):
        super().setUp()
        self.questions = list(questions())
        self.assertEqual(len({question["question"] for question in self.questions}), 200)
        folder = self.scratch / "tasks"
        folder.mkdir()
        data = self.scratch / "questions.jsonl"
        data.write_text("".join(json.dumps(question) + "\n" for question in self.questions))
        (folder / "likelihoods.yaml").write_text(LIKELIHOODS % data)
        (folder / "answers.yaml").write_text(ANSWERS % data)

    def test_likelihoods(self):
        self.start_server("--parallel", "4")
        arguments = "base_url=http://127.0.0.1:%d/v1/completions,model=tiny-v3,tokenizer=%s,max_retries=1,max_length=512" % (
            self.port, self.data())
        asked = [{"model": "local-completions", "task": "dspack_likelihoods", "batch_size": size, "chat": False,
                  "model_args": arguments + ",tokenizer_backend=huggingface,tokenized_requests=%s,num_concurrent=%d" % (
                      is_tokenized, concurrent)}
                 for is_tokenized in (True, False) for size, concurrent in ((1, 4), (7, 1), (128, 2))]
        results = self.evaluate(*asked)
        wanted, right = [], 0
        for question in self.questions:
            context = self.ids_of(BEGIN + USER + question["question"] + ASSISTANT)
            scores = []
            for choice in question["choices"]:
                ids = self.ids_of(BEGIN + USER + question["question"] + ASSISTANT + choice)
                self.assertEqual(ids[:len(context)], context)
                rows = self.rows(ids)[len(context) - 1:-1]
                said = ids[len(context):]
                scores.append((sum(row[token] for row, token in zip(rows, said)),
                               all(row[token] == max(row) for row, token in zip(rows, said))))
            wanted.append(scores)
            right += scores[question["answer"]] == max(scores)
        print("accuracy by dsrun logits: %d of 200" % right, flush=True)
        self.assertGreater(right, 120)  # of a model that tells some sums from others
        self.assertLess(right, 200)
        for result, how in zip(results, asked):
            with self.subTest(how=how):
                self.assertEqual(result["metrics"]["acc,none"], right / 200)
                self.assertEqual([[(float(score), str(is_greedy) == "True") for score, is_greedy in answers]
                                  for answers in result["answers"]], wanted)

    def test_answers(self):
        """Also of chats, which have no likelihoods of prompts. What the server says is what its command says:
        test_serve.py."""
        self.start_server("--parallel", "4")
        base = "base_url=http://127.0.0.1:%d/v1/%s,model=tiny-v3,max_retries=1,num_concurrent=%d"
        chats, texts = self.evaluate(
            {"model": "local-chat-completions", "task": "dspack_answers", "batch_size": 1, "chat": True,
             "model_args": base % (self.port, "chat/completions", 4)},
            {"model": "local-completions", "task": "dspack_answers", "batch_size": 32, "chat": False,
             "model_args": base % (self.port, "completions", 1) + ",tokenizer_backend=none,tokenized_requests=False"})
        wanted = [self.answer("/v1/chat/completions", chat(question["question"], max_tokens=16))
                  ["choices"][0]["message"]["content"] for question in self.questions]
        self.assertEqual(chats["answers"], [[text] for text in wanted])
        right = sum(text == question["choices"][question["answer"]] for text, question in zip(wanted, self.questions))
        self.assertEqual(chats["metrics"]["exact_match,none"], right / 200)
        self.assertGreater(right, 80)
        self.assertEqual(texts["answers"], [[self.answer("/v1/completions", {
            "prompt": question["question"], "max_tokens": 16, "temperature": 0, "stop": ["\n"]})["choices"][0]["text"]]
            for question in self.questions])


if __name__ == "__main__":
    if not PYTHON:
        print("DID NOT RUN: lm-evaluation-harness against dsrun serve: DSPACK_TEST_LM_EVAL names no Python that has it; "
              "tests/tools/lm_eval/README.md says how to make one", flush=True)
        sys.exit(SKIPPED)
    main()
