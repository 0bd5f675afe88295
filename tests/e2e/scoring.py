"""What `dsrun logits` says of a prompt's tokens, for those who compare what a server tells of them: every bit."""

import array
import json
import math

import safetensors_io
from test_serve import Serving, events


def log_softmax(row):
    """In double precision, summed in the order of the ids; `row` is of FP32 logits. Python's exp and log are the C
    library's, as the server's are."""
    highest, total = max(row), 0.0
    for logit in row:
        total += math.exp(logit - highest)
    of_all = highest + math.log(total)
    return [logit - of_all for logit in row]


class Scoring(Serving):
    def setUp(self):
        super().setUp()
        self.known = {}

    def rows(self, ids, folder=None):
        """The log-probabilities after each of the tokens."""
        key = (tuple(ids), folder)
        if key not in self.known:
            path = self.scratch / "logits.safetensors"
            self.assert_ok(self.run_program("logits", folder or self.data(), "--tokens", ",".join(map(str, ids)), "--out",
                                            path, "--device", "cpu", "--precision", "auto", program="DSPACK_DSRUN"))
            _, (count, vocab), data = safetensors_io.parse(path.read_bytes())[0]["logits"]
            path.unlink()
            values = array.array("f")
            values.frombytes(data)
            self.assertEqual(count, len(ids))
            self.known[key] = [log_softmax(values[i * vocab:(i + 1) * vocab]) for i in range(count)]
        return self.known[key]

    def token_logprobs(self, ids, folder=None):
        """Of each token after those before it; the first has none."""
        return [None] + [row[token] for row, token in zip(self.rows(ids, folder), ids[1:])]

    def ids_of(self, text):
        return self.answer("/tokenize", {"prompt": text})["tokens"]

    def stream(self, body):
        """The choices of a streamed completion, put together as a whole answer has them, and its usage."""
        datas = [data for _, data in events(self.ask("/v1/completions", dict(
            body, stream=True, stream_options={"include_usage": True}))[2])]
        self.assertEqual(datas.pop(), "[DONE]")
        chunks = [json.loads(data) for data in datas]
        usage, choices = chunks.pop()["usage"], {}
        for chunk in chunks:
            part = chunk["choices"][0]
            choice = choices.setdefault(part["index"], {"index": part["index"], "text": "", "finish_reason": None})
            self.assertIsNone(choice["finish_reason"])
            choice["text"] += part["text"]
            choice["finish_reason"] = part["finish_reason"]
            for name, values in part.get("logprobs", {}).items():
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
        return [choices[index] for index in sorted(choices)], usage
