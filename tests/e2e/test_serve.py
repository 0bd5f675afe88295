"""dsrun serve: the forms of its answers, event by event; errors; many clients at once, some of whom leave; and clients
that mean no good."""

import http.client
import json
import re
import shutil
import socket
import time
from pathlib import Path

from common import EndToEnd, is_sanitized, main, seeded_random

QUESTIONS = ["What is the capital of France?", "My name is Anna.", "Once upon a time", "What is 2+2?", "hello"]


def chat(question, **options):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **options}


def events(body):
    """Of a stream: (name or None, data) each; comments are left out."""
    for block in body.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        yield fields.get("event"), fields["data"]


class Serving(EndToEnd):
    """A server of the small model, and what tests ask it."""

    def start_server(self, *arguments, folder=None, env=None):
        self.process = self.start("serve", folder or self.data(), "--port", "0", "--device", "cpu", *arguments,
                                  program="DSPACK_DSRUN", env=env)
        said = self.process.stderr.readline().decode()
        self.assertRegex(said, r"http://[0-9.]+:[0-9]+/v1")
        self.port = int(re.search(r":([0-9]+)/v1", said)[1])

    def ask(self, path, body=None, method=None, headers=None):
        """Status, headers and text of an answer."""
        # A server under the thread sanitizer takes minutes for what some answers wait for.
        patience = 600 if is_sanitized("DSPACK_DSRUN") else 120
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience)
        try:
            data = body if isinstance(body, (str, bytes)) or body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data,
                               {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def answer(self, path, body):
        status, _, text = self.ask(path, body)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def counts(self):
        text = self.ask("/metrics")[2]
        return {name: float(value) for name, value in re.findall(r"^dspack_(\w+) (\S+)$", text, re.M)}

    def state(self):
        """Answers under way, and those that wait for a place, at one moment."""
        counts = self.counts()
        return counts["requests_running"], counts["requests_waiting"]

    def wait_for(self, is_so):
        """Fails where it does not come true in a minute."""
        end = time.monotonic() + 60
        while not is_so():
            self.assertLess(time.monotonic(), end, "it has not come true in a minute")
            time.sleep(0.005)

    def assert_ok_after_stop(self, log=None):
        """`log`: what each line on stderr matches; without it there is none."""
        self.process.terminate()
        result = self.finish(self.process, 60)
        self.assertEqual((result.code, result.stdout), (0, ""), str(result))
        self.assertEqual([line for line in result.stderr.splitlines() if not (log and re.fullmatch(log, line))], [])


class Serve(Serving):
    def test_whole_answers_and_streams_say_the_same(self):
        self.start_server()
        whole = self.answer("/v1/chat/completions", chat(QUESTIONS[0]))
        self.assertEqual(whole["choices"][0]["message"]["content"], "The capital of France is Paris.")
        self.assertEqual(whole["choices"][0]["finish_reason"], "stop")
        self.assertEqual(whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"],
                         whole["usage"]["total_tokens"])
        status, headers, text = self.ask("/v1/chat/completions", chat(
            QUESTIONS[0], stream=True, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}))
        self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/event-stream"))
        datas = [data for _, data in events(text)]
        self.assertEqual(datas.pop(), "[DONE]")
        chunks = [json.loads(data) for data in datas]
        self.assertEqual({chunk["id"] for chunk in chunks}, {chunks[0]["id"]})
        usage = chunks.pop()
        self.assertEqual((usage["choices"], usage["usage"]["prompt_tokens_details"]["cached_tokens"]),
                         ([], whole["usage"]["prompt_tokens"] - 1))
        choices = [chunk["choices"][0] for chunk in chunks]
        self.assertEqual(choices[0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual((choices[-1]["delta"], choices[-1]["finish_reason"]), ({}, "stop"))
        self.assertEqual("".join(choice["delta"].get("content", "") for choice in choices), "The capital of France is Paris.")
        told = [token for choice in choices[1:-1] for token in choice["logprobs"]["content"]]
        self.assertEqual(len(told), usage["usage"]["completion_tokens"])
        for token in told:
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["logprob"], token["top_logprobs"][0]["logprob"])  # greedy
            self.assertLessEqual(token["logprob"], 0)

    def test_the_text_is_that_of_the_command(self):
        self.start_server("--parallel", "2")
        for question in QUESTIONS[:3]:
            alone = self.assert_ok(self.run_program(self.data(), "-p", question, "-n", "24", "--device", "cpu",
                                                    program="DSPACK_DSRUN")).stdout
            served = self.answer("/v1/chat/completions", chat(question))["choices"][0]["message"]["content"]
            self.assertEqual(served, alone.rstrip("\n"))

    def test_completions_stop_strings_and_lengths(self):
        self.start_server()
        body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
        whole = self.answer("/v1/completions", body)
        text = whole["choices"][0]["text"]
        self.assertEqual((whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]), ("length", 12))
        word = text.split()[3]
        cut = self.answer("/v1/completions", dict(body, stop=[word]))["choices"][0]
        self.assertEqual((cut["text"], cut["finish_reason"]), (text[:text.index(word)], "stop"))
        echoed = self.answer("/v1/completions", dict(body, echo=True))["choices"][0]["text"]
        self.assertEqual(echoed, "Once upon a time" + text)
        ids = self.answer("/tokenize", {"prompt": "Once upon a time"})["tokens"]
        self.assertEqual(self.answer("/v1/completions", dict(body, prompt=ids))["choices"][0]["text"], text)
        self.assertIn("Once upon a time", self.answer("/detokenize", {"tokens": ids})["content"])

    def test_anthropic_messages(self):
        self.start_server()
        body = {"model": "m", "max_tokens": 24, "temperature": 0,
                "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTIONS[0]}]}]}
        whole = self.answer("/v1/messages", body)
        self.assertEqual(whole["content"], [{"type": "text", "text": "The capital of France is Paris."}])
        self.assertEqual(whole["stop_reason"], "end_turn")
        cut = self.answer("/v1/messages", dict(body, stop_sequences=["of", " France"]))
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", "of"))
        self.assertEqual(cut["content"], [{"type": "text", "text": "The capital "}])
        parts = list(events(self.ask("/v1/messages", dict(body, stream=True))[2]))
        names = [name for name, _ in parts if name != "ping"]
        self.assertEqual(names[:2] + names[-3:], ["message_start", "content_block_start", "content_block_stop",
                                                  "message_delta", "message_stop"])
        self.assertEqual(set(names[2:-3]), {"content_block_delta"})
        self.assertEqual("".join(json.loads(data)["delta"]["text"] for name, data in parts
                                 if name == "content_block_delta"), "The capital of France is Paris.")
        for name, data in parts:
            self.assertEqual(json.loads(data)["type"], name)
        count = self.answer("/v1/messages/count_tokens", {key: body[key] for key in ("model", "messages")})
        self.assertEqual(count["input_tokens"],
                         whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"])

    def test_several_choices(self):
        """The first is the answer without `n`; each has its own seed; the prompt is read once."""
        self.start_server("--parallel", "2")
        body = chat(QUESTIONS[2], temperature=0.9, seed=3)
        alone = [self.answer("/v1/chat/completions", dict(body, seed=seed))["choices"][0] for seed in (3, 4, 5)]
        before = self.counts()
        whole = self.answer("/v1/chat/completions", dict(body, n=3))
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2])
        self.assertEqual([choice["message"] for choice in whole["choices"]], [choice["message"] for choice in alone])
        self.assertLessEqual(self.counts()["prompt_tokens_total"] - before["prompt_tokens_total"], 3)
        datas = [data for _, data in events(self.ask("/v1/chat/completions", dict(
            body, n=3, stream=True, stream_options={"include_usage": True}))[2])]
        self.assertEqual(datas.pop(), "[DONE]")
        chunks = [json.loads(data) for data in datas]
        self.assertEqual(chunks.pop()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        texts, ends = ["", "", ""], []
        for choice in (chunk["choices"][0] for chunk in chunks):
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                ends.append(choice["index"])
        self.assertEqual(texts, [choice["message"]["content"] for choice in alone])
        self.assertEqual(sorted(ends), [0, 1, 2])
        texts = self.answer("/v1/completions", {"prompt": "Once", "max_tokens": 5, "temperature": 0, "n": 2})["choices"]
        self.assertEqual(texts[0]["text"], texts[1]["text"])
        self.assertEqual(len(self.answer("/v1/chat/completions", dict(body, n=100, max_tokens=1))["choices"]), 100)

    def test_drafts_change_nothing_but_speed(self):
        self.start_server()
        bodies = [chat(question) for question in QUESTIONS]
        alone = [self.answer("/v1/chat/completions", body)["choices"] for body in bodies]
        self.assert_ok_after_stop()
        self.start_server("--mtp", "2", "--parallel", "2")
        for body, choices in zip(bodies, alone):
            answer = self.answer("/v1/chat/completions", body)
            self.assertEqual(answer["choices"], choices)
            self.assertGreater(answer["timings"]["draft_n"], 0)
            self.assertLessEqual(answer["timings"]["draft_n_accepted"], answer["timings"]["draft_n"])
        self.assertGreater(self.counts()["drafted_tokens_total"], 0)

    def test_penalties(self):
        self.start_server()
        body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 2, "seed": 1,
                "logit_bias": {"1": -100}}  # which ends answers
        plain = self.answer("/v1/completions", body)["choices"][0]["text"]
        ids = self.answer("/tokenize", {"content": plain})["tokens"]
        self.assertLess(len(set(ids)), len(ids), "the text repeats nothing: a test that cannot fail")
        for name in ("presence_penalty", "frequency_penalty"):
            text = self.answer("/v1/completions", {**body, name: 2})["choices"][0]["text"]
            self.assertNotEqual(text, plain)  # the same noise, other probabilities
            self.assertEqual(self.answer("/v1/completions", {**body, name: 0})["choices"][0]["text"], plain)

    def test_heads_and_pages_of_others(self):
        self.start_server("--allow-origin", "https://chat.example.org")
        status, headers, text = self.ask("/v1/models", method="HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertEqual(int(headers["Content-Length"]), len(self.ask("/v1/models")[2]))
        for origin, status in (("https://chat.example.org", 200), ("https://evil.example.org", 403)):
            got, headers, _ = self.ask("/v1/models", headers={"Origin": origin})
            self.assertEqual((got, headers["Access-Control-Allow-Origin"]), (status, "https://chat.example.org"))
        status, headers, _ = self.ask("/v1/chat/completions", method="OPTIONS", headers={"Origin": "https://chat.example.org"})
        self.assertEqual(status, 200)
        self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
        _, headers, text = self.ask("/v1/chat/completions", chat(QUESTIONS[0], stream=True))
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://chat.example.org")

    def test_responses(self):
        self.start_server()
        body = {"model": "m", "temperature": 0, "input": QUESTIONS[0]}
        whole = self.answer("/v1/responses", body)
        self.assertEqual((whole["status"], [item["type"] for item in whole["output"]]), ("completed", ["message"]))
        self.assertEqual(whole["output"][0]["content"][0]["text"], "The capital of France is Paris.")
        parts = list(events(self.ask("/v1/responses", dict(
            body, stream=True, input=[{"role": "user", "content": [{"type": "input_text", "text": QUESTIONS[0]}]}]))[2]))
        names = [name for name, _ in parts]
        self.assertEqual(names[:4] + names[-4:], [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"])
        datas = [json.loads(data) for _, data in parts]
        self.assertEqual([data["response"]["output"] for data in datas[:2]], [[], []])
        self.assertEqual([data["sequence_number"] for data in datas], list(range(len(datas))))
        self.assertEqual([data["type"] for data in datas], names)
        self.assertEqual("".join(data["delta"] for data in datas if data["type"] == "response.output_text.delta"),
                         "The capital of France is Paris.")
        self.assertEqual(datas[-1]["response"]["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        status, _, text = self.ask("/v1/responses", dict(body, previous_response_id="resp_1"))
        self.assertEqual(status, 400)
        self.assertIn("previous_response_id", text)

    def test_mistakes_are_named(self):
        self.start_server()
        for body, word in (("{", "JSON"), ("[]", "object"), ({}, "messages"), (chat("x", temperature=-1), "temperature"),
                           (chat("x", n=0), '"n"'), (chat("x", presence_penalty=3), "presence_penalty"), (chat("x", response_format={"type": "grammar"}), "response_format"),
                           (chat("x", max_tokens=0), "max_tokens"), (chat("x", logit_bias={"a": 1}), "logit_bias"),
                           (chat("x " * 3000), "--ctx"), (chat("x", tool_choice="required"), "tool_choice"),
                           ({"messages": [{"role": "x", "content": "x"}]}, "role")):
            status, _, text = self.ask("/v1/chat/completions", body)
            self.assertEqual(status, 400, text)
            error = json.loads(text)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertIn(word, error["message"])
            self.assertNotIn(str(self.data()), text)
        for path, body, word in (
                ("/v1/responses", {"input": "x", "tool_choice": "required"}, "tool_choice"),
                ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "schema"),
                ("/v1/responses", {"input": "x", "text": {"format": {"type": 5}}}, "type"),
                ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                                  "tool_choice": {"type": "any"}}, "tool_choice")):
            status, _, text = self.ask(path, body)
            self.assertEqual(status, 400, text)
            self.assertIn(word, text)
        self.assertEqual(self.ask("/v1/nothing")[0], 404)
        self.assertEqual(json.loads(self.ask("/v1/messages", {})[2])["type"], "error")

    def test_keys_hosts_and_origins(self):
        self.start_server("--api-key", "secret")
        self.assertEqual(self.ask("/health")[0], 200)
        for headers, status in (({}, 401), ({"Authorization": "Bearer secrets"}, 401), ({"Authorization": "Bearer secret"}, 200),
                                ({"x-api-key": "secret"}, 200)):
            self.assertEqual(self.ask("/v1/models", headers=headers)[0], status, headers)
        self.assert_ok_after_stop()
        self.start_server()
        here = "127.0.0.1:%d" % self.port
        for headers, status in (({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403),
                                ({"Origin": "http://" + here}, 200), ({"Host": "localhost:1"}, 200),
                                ({"Host": "[::1]evil"}, 403), ({"Host": "localhost:80:evil"}, 403),
                                ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
                                ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"}, 403),
                                ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 403),
                                ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
                                ({"Sec-Fetch-Site": "same-origin", "Origin": "http://" + here}, 200)):
            self.assertEqual(self.ask("/v1/models", headers=headers)[0], status, headers)
        # A link to the page may be followed, but the page not be shown within another.
        for destination, status in (("document", 200), ("iframe", 403)):
            headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": destination}
            self.assertEqual(self.ask("/", headers=headers)[0], status, destination)
        self.assert_ok_after_stop()
        self.start_server("--allow-origin", "https://chat.example")
        for headers, status in (({"Origin": "https://chat.example", "Sec-Fetch-Site": "cross-site"}, 200),
                                ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
                                ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403)):
            self.assertEqual(self.ask("/v1/models", headers=headers)[0], status, headers)
        refused = self.run_program("serve", self.data(), "--host", "0.0.0.0", program="DSPACK_DSRUN")
        self.assertEqual(refused.code, 1)
        self.assertIn("--api-key", refused.stderr)

    def test_where_a_key_comes_from_and_who_sees_it(self):
        file = self.scratch / "key"
        for text in ("secret\n", " secret \r\n\r\n"):
            file.write_text(text, newline="")
            self.start_server("--api-key", "@%s" % file)
            self.assert_key_is("secret")
        for arguments, shown in ((["--api-key", "secret"], ["--api-key", "xxxxxx"]), (["--api-key=secret"], ["--api-key=xxxxxx"]),
                                 (["--api-key", "@%s" % file], ["--api-key", "@%s" % file])):
            self.start_server(*arguments)
            words = Path("/proc/%d/cmdline" % self.process.pid).read_bytes().decode().split("\0")[:-1]
            self.assertEqual(words[-len(shown):], shown)
            self.assert_key_is("secret")
        self.start_server(env={"DSPACK_API_KEY": "secret\n"})
        self.assert_key_is("secret")
        self.start_server("--api-key", "other", env={"DSPACK_API_KEY": "secret"})
        self.assert_key_is("other")
        for text, word in (("", "blank"), (" \r\n\t", "blank"), ("one\ntwo\n", "more than a line"), ("a\x7fb", "control")):
            file.write_text(text, newline="")
            for arguments, env in ((["--api-key", "@%s" % file], {}), (["--api-key", text], {}), ([], {"DSPACK_API_KEY": text})):
                refused = self.run_program("serve", self.data(), "--port", "0", "--device", "cpu", *arguments, env=env,
                                           program="DSPACK_DSRUN")
                place = "DSPACK_API_KEY: " if env else "--api-key" if text in arguments else "--api-key @%s: " % file
                self.assert_refused(refused, place, word, program="dsrun")

    def assert_key_is(self, key):
        """Of the server, which is stopped then."""
        for headers, status in (({}, 401), ({"Authorization": "Bearer x" + key}, 401), ({"x-api-key": key}, 200)):
            self.assertEqual(self.ask("/v1/models", headers=headers)[0], status, headers)
        self.assert_ok_after_stop()

    def test_clients_that_mean_no_good(self):
        self.start_server()
        silent = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(300)]
        self.addCleanup(lambda: [each.close() for each in silent])
        self.assertEqual(self.ask("/health")[0], 200)
        for raw, status in ((b"nonsense\r\n\r\n", b"400"), (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000 + b"\r\n", b"431"),
                            (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n", b"413"),
                            (b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", b"200")):
            with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                connection.sendall(raw)
                self.assertIn(status, connection.recv(100), raw[:40])
        for body in ("[" * 100_000, '{"messages":' * 50_000, "\x00" * 1000, '{"prompt":"\\ud800"}'):
            self.assertEqual(self.ask("/v1/completions", body.encode("utf-8", "surrogatepass"))[0], 400)
        mine = seeded_random()
        good = json.dumps(chat("hello", max_tokens=2)).encode()
        for _ in range(300):
            data = bytearray(good)
            for _ in range(mine.randrange(1, 4)):
                data[mine.randrange(len(data))] = mine.randrange(256)
            self.assertIn(self.ask("/v1/chat/completions", bytes(data))[0], (200, 400))
        self.assertEqual(self.answer("/v1/chat/completions", chat(QUESTIONS[0]))["choices"][0]["message"]["content"],
                         "The capital of France is Paris.")

    def test_too_many_wait(self):
        folder = shutil.copytree(self.data(), self.scratch / "patient")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=1 << 16)))
        self.start_server("--parallel", "1", "--waiting", "1", "--ctx", "32k", folder=folder)
        body = {"prompt": "Once", "temperature": 0, "logit_bias": {"1": -100}}  # which ends answers
        # One has the place and one waits, both for much longer than the test takes. Until it has the place the first
        # waits itself, and a second would be refused.
        held = [http.client.HTTPConnection("127.0.0.1", self.port, timeout=120) for _ in range(2)]
        for connection, state in zip(held, ((1, 0), (1, 1))):
            connection.request("POST", "/v1/completions", json.dumps(dict(body, max_tokens=30000)))
            self.wait_for(lambda state=state: self.state() == state)
        status, headers, text = self.ask("/v1/completions", dict(body, max_tokens=1))
        self.assertEqual((status, headers["Retry-After"]), (429, "10"))
        self.assertIn("requests are waiting already", text)
        # Nothing of it has been told before: no stream has begun, with its prompt.
        status, _, text = self.ask("/v1/completions", dict(body, max_tokens=1, echo=True, stream=True))
        self.assertEqual(status, 429)
        self.assertIn("requests are waiting already", text)
        # One who leaves while it waits makes room at once, whatever is under way.
        held[1].close()
        self.wait_for(lambda: self.state() == (1, 0))
        held[1] = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        held[1].request("POST", "/v1/completions", json.dumps(dict(body, max_tokens=30000)))
        self.wait_for(lambda: self.state() == (1, 1))
        for connection in held:
            connection.close()
        # Whoever has left holds no place.
        self.wait_for(lambda: self.ask("/v1/completions", dict(body, max_tokens=1))[0] == 200)


if __name__ == "__main__":
    main()
