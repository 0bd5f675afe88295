"""dsrun serve: clients in each other's company. Long texts, memory that is not there, full queues and clients that leave
cost those who bring them, and nobody else."""

import http.client
import json
import resource
import socket
import threading
import time

from common import is_sanitized, limit, main
from test_serve import QUESTIONS, Serving, chat

ANSWER = "The capital of France is Paris."


class ServeCompany(Serving):
    def post(self, path, body, address="127.0.0.1", timeout=120):
        """Status and text of an answer to a client of this address; None where the connection ends without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=(address, 0))
        try:
            connection.request("POST", path, body if isinstance(body, (str, bytes)) else json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (ConnectionError, http.client.BadStatusLine):
            return None
        finally:
            connection.close()

    def first_token_seconds(self):
        """Until a stream has its first token; the whole answer must be the right one."""
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(QUESTIONS[0], stream=True)))
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        text, first = "", None
        while line := response.readline():
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"].get("content")
                if delta and first is None:
                    first = time.monotonic() - begun
                text += delta or ""
        connection.close()
        self.assertEqual(text, ANSWER)
        return first

    def during(self, *work):
        """Threads that do this at the same time, and the list of what they return."""
        done = []
        threads = [threading.Thread(target=lambda each=each: done.append(each())) for each in work]
        for thread in threads:
            thread.start()
        return threads, done

    def test_long_texts_keep_nobody_else_waiting(self):
        self.start_server("--parallel", "2")
        alone = self.first_token_seconds()
        spaces = json.dumps(chat(" " * 20_000_000))
        # As /tokenize takes texts of any length, these are encoded: a word of megabytes, which takes a second or more.
        word = json.dumps({"content": "a" * 2_000_000})
        for path, body, statuses in (("/v1/chat/completions", spaces, {400}), ("/tokenize", word, {200, 503})):
            threads, done = self.during(*[lambda: self.post(path, body)] * 2)
            beside = []
            while any(thread.is_alive() for thread in threads):
                begun = time.monotonic()
                self.assertEqual(self.ask("/health")[0], 200)
                self.assertIn("dspack_requests_running", self.ask("/metrics")[2])
                self.assertLess(time.monotonic() - begun, 1)
                beside.append(self.first_token_seconds())
            self.assertGreater(len(beside), 0)
            self.assertLess(max(beside), alone + 1)
            self.assertEqual({status for status, _ in done} | statuses, statuses)
            print("%s: a chat's first token after %.3f s at most, %.3f s alone" % (path, max(beside), alone))
        error = json.loads(self.post("/v1/chat/completions", spaces)[1])["error"]
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertRegex(error["message"], r"^prompt is too long: [0-9]+ tokens > 1024 maximum at least")
        self.assert_ok_after_stop()

    def test_encoding_ends_when_its_client_leaves(self):
        self.start_server()
        body = json.dumps({"content": "a" * 2_000_000}).encode()
        begun = time.monotonic()
        self.assertEqual(self.post("/tokenize", body)[0], 200)
        whole = time.monotonic() - begun
        for _ in range(8):  # of which one has the worker, and none of those that left waits for it
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
                client.sendall(body)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        begun = time.monotonic()
        self.assertEqual(self.post("/tokenize", body)[0], 200)
        self.assertLess(time.monotonic() - begun, 3 * whole + 1)
        self.wait_for(lambda: self.counts()["request_memory_bytes"] == 0)
        self.assert_ok_after_stop()

    def test_a_full_queue_of_one_client_has_room_for_another(self):
        self.start_server("--parallel", "1", "--waiting", "3")
        slow = dict(chat(QUESTIONS[2]), max_tokens=900, ignore_eos=True)
        first, done = self.during(lambda: self.post("/v1/chat/completions", slow))
        self.wait_for(lambda: self.state() == (1, 0))
        waiting, others = self.during(*[lambda: self.post("/v1/chat/completions", slow)] * 3)
        self.wait_for(lambda: self.state() == (1, 3))
        status, text = self.post("/v1/chat/completions", slow)
        self.assertEqual((status, "waiting already" in text), (429, True), text)
        status, text = self.post("/v1/chat/completions", chat(QUESTIONS[0]), address="127.0.0.2")
        self.assertEqual((status, json.loads(text)["choices"][0]["message"]["content"]), (200, ANSWER))
        self.assertGreater(sum(self.state()), 0)  # it did not wait for all of the others
        for thread in first + waiting:
            thread.join()
        self.assertEqual(sorted(status for status, _ in done + others), [200, 200, 200, 429])
        self.assert_ok_after_stop()

    def test_a_conversation_finds_its_cache_after_others_of_the_same_beginning(self):
        self.start_server("--parallel", "2")
        rules = {"role": "system", "content": "Answer briefly and kindly. " * 8}
        messages = [rules, {"role": "user", "content": "I live in Rome, and I like the sea. " * 3}]
        ask = lambda messages: self.answer("/v1/chat/completions", dict(chat(""), messages=messages, max_tokens=8))
        first = ask(messages)
        for question in QUESTIONS + ["What is my name?", "Where is Rome?"]:
            ask([rules, {"role": "user", "content": question + " Say it in a word, please."}])
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And what is my name?"}]
        usage = ask(messages)["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"])
        self.assert_ok_after_stop()

    def test_what_never_fits_is_told_so(self):
        self.start_server("--ram", "350MB" if is_sanitized("DSPACK_DSRUN") else "250MB")
        for body in ({"messages": [], "x": [[]] * 500_000}, dict(chat("x"), tools=[{"a": {}}] * 300_000)):
            status, text = self.post("/v1/chat/completions", body)
            self.assertEqual(status, 400, text)
            self.assertRegex(json.loads(text)["error"]["message"], "may take .* more than .* that all requests have")
        self.assertEqual(self.post("/v1/chat/completions", b" " * 20_000_000)[0], 413)
        self.assertEqual(self.post("/v1/chat/completions", chat(QUESTIONS[0]))[0], 200)
        self.wait_for(lambda: self.counts()["request_memory_bytes"] == 0)  # given back after the answer's last byte
        self.assert_ok_after_stop()

    def test_memory_that_is_not_there_is_the_end_of_one_request(self):
        if is_sanitized("DSPACK_DSRUN"):
            self.skipTest("no limit on memory fits a sanitizer")
        self.start_limited(700 << 20)
        bodies = []
        for megabytes in (1, 8, 30, 60):
            bodies.append(json.dumps(chat("x" * (megabytes * 1_000_000))))
            bodies.append(json.dumps({"content": "a b" * (megabytes * 330_000)}))
            bodies.append('{"messages":[' + ",".join(['{"role":"user","content":"x"}'] * (megabytes * 34_000)) + "]}")
        paths = {0: "/v1/chat/completions", 1: "/tokenize", 2: "/apply-template"}
        threads, done = self.during(*[lambda i=i, body=body: self.post(paths[i % 3], body)
                                      for i, body in enumerate(bodies)])
        for thread in threads:
            thread.join()
        print("statuses:", sorted(answer[0] for answer in done if answer), "without:", done.count(None))
        self.assertEqual(len(done), len(bodies))
        self.assertEqual({answer[0] for answer in done if answer} - {200, 400, 413, 503}, set())
        for _ in range(3):
            status, text = self.post("/v1/chat/completions", chat(QUESTIONS[0]))
            self.assertEqual((status, json.loads(text)["choices"][0]["message"]["content"]), (200, ANSWER))
        self.wait_for(lambda: self.counts()["request_memory_bytes"] == 0)
        self.assertEqual(self.state(), (0, 0))
        self.process.terminate()
        self.assertEqual(self.finish(self.process, 60).code, 0)

    def start_limited(self, bytes_of_address_space):
        start = self.start
        self.start = lambda *arguments, **options: start(
            *arguments, before=limit(resource.RLIMIT_AS, bytes_of_address_space), **options)
        self.start_server("--ram", "400MB")
        self.start = start


if __name__ == "__main__":
    main()
