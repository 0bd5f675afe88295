"""dsrun serve: where it listens, what it answers while its model is loaded, and clients that have ended their sending
side: those that wait get their answers, those that are gone get nothing."""

import concurrent.futures
import http.client
import json
import re
import shutil
import signal
import socket
import struct
import time

from common import EndToEnd, free_port, main
from test_serve import QUESTIONS, Serving, chat, events

ANSWER = "The capital of France is Paris."
LONG = {"prompt": "Once", "temperature": 0, "logit_bias": {"1": -100}}  # which ends answers


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


class Sockets(Serving):
    def connect(self, path, body, version="1.1", headers=""):
        """A connection on which a request was sent."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.addCleanup(connection.close)
        connection.sendall(("POST %s HTTP/%s\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (
            path, version, headers, len(data))).encode() + data)
        return connection

    def received(self, connection, method="POST"):
        """Status and body of the answer on it."""
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return response.status, response.read().decode()


class HalfClosed(Sockets):
    def ask_half(self, path, body, **options):
        connection = self.connect(path, body, **options)
        connection.shutdown(socket.SHUT_WR)
        status, text = self.received(connection)
        self.assertEqual(status, 200, text)
        self.assertEqual(connection.recv(1), b"", "the connection stays open")
        return text

    def test_whole_and_streamed_answers_of_all_apis(self):
        self.start_server()
        messages = chat(QUESTIONS[0])
        for version in ("1.1", "1.0"):
            said = json.loads(self.ask_half("/v1/chat/completions", messages, version=version))
            self.assertEqual(said["choices"][0]["message"]["content"], ANSWER)
            parts = [json.loads(data) for _, data in events(self.ask_half(
                "/v1/chat/completions", dict(messages, stream=True), version=version)) if data != "[DONE]"]
            self.assertEqual("".join(part["choices"][0]["delta"].get("content", "") for part in parts), ANSWER)
            said = json.loads(self.ask_half("/v1/messages", messages, version=version))
            self.assertEqual(said["content"], [{"type": "text", "text": ANSWER}])
            names = [name for name, _ in events(self.ask_half("/v1/messages", dict(messages, stream=True),
                                                              version=version))]
            self.assertEqual(names[-1], "message_stop")
            body = {"input": QUESTIONS[0], "temperature": 0}
            self.assertEqual(json.loads(self.ask_half("/v1/responses", body, version=version))["status"], "completed")
            names = [name for name, _ in events(self.ask_half("/v1/responses", dict(body, stream=True),
                                                              version=version))]
            self.assertEqual(names[-1], "response.completed")

    def test_answers_that_take_long_and_clients_that_are_gone(self):
        folder = shutil.copytree(self.data(), self.scratch / "patient")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=1 << 16)))
        self.start_server("--ctx", "8k", "--waiting", "4", folder=folder)
        expected = self.answer("/v1/completions", dict(LONG, max_tokens=50))["choices"][0]["text"]
        # Behind an answer of some seconds, so that the server has asked whether they are there.
        busy = self.connect("/v1/completions", dict(LONG, max_tokens=6000))
        self.wait_for(lambda: self.state() == (1, 0))
        waiting = [self.connect("/v1/completions", dict(LONG, max_tokens=50), version=version)
                   for version in ("1.1", "1.0")]
        waiting.append(self.connect("/v1/completions", dict(LONG, max_tokens=50, stream=True)))
        for connection in waiting:
            connection.shutdown(socket.SHUT_WR)
        self.wait_for(lambda: self.state() == (1, 3))
        for connection in waiting[:2]:
            self.assertEqual(connection.recv(1, socket.MSG_PEEK), b"H")  # nothing else before its turn
        self.assertEqual(self.state(), (1, 3))
        self.give_up(busy)
        for connection in waiting[:2]:
            status, text = self.received(connection)
            self.assertEqual((status, json.loads(text)["choices"][0]["text"]), (200, expected))
        parts = [json.loads(data) for _, data in events(self.received(waiting[2])[1]) if data != "[DONE]"]
        self.assertEqual("".join(part["choices"][0]["text"] for part in parts), expected)
        self.wait_for(lambda: self.state() == (0, 0))
        # Those that are gone: closed at once, after they had ended their sending side, and reset.
        for version in ("1.1", "1.0"):
            for leave in (lambda each: each.close(), self.leave_late, self.reset):
                for stream in (False, True):
                    cancelled = self.counts()["requests_cancelled_total"]
                    connection = self.connect("/v1/completions", dict(LONG, max_tokens=7000, stream=stream),
                                              version=version)
                    self.wait_for(lambda: self.state() == (1, 0))
                    left = time.monotonic()
                    leave(connection)
                    self.wait_for(lambda: self.state() == (0, 0))
                    self.assertEqual(self.counts()["requests_cancelled_total"], cancelled + 1)
                    print("noticed after %.2f s" % (time.monotonic() - left), version, stream, flush=True)

    @staticmethod
    def reset(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def give_up(self, connection):
        self.reset(connection)

    @staticmethod
    def leave_late(connection):
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the server has asked once
        connection.close()


class Requests(Sockets):
    def test_expectations(self):
        self.start_server()
        body = chat(QUESTIONS[0])
        status, text = self.received(self.connect("/v1/chat/completions", body, headers="Expect: banana\r\n"))
        self.assertEqual(status, 417, text)
        twice = "Expect: 100-continue\r\nExpect: banana\r\n"
        self.assertEqual(self.received(self.connect("/v1/chat/completions", body, headers=twice))[0], 417)
        for word in ("100-continue", "100-Continue"):
            connection = self.connect("/v1/chat/completions", body, headers="Expect: %s\r\n" % word)
            said = b""
            while not said.endswith(b"\r\n\r\n"):
                said += connection.recv(1)
            self.assertEqual(said, b"HTTP/1.1 100 Continue\r\n\r\n")
            self.assertEqual(self.received(connection)[0], 200)
        old = self.connect("/v1/chat/completions", body, version="1.0", headers="Expect: banana\r\n")
        self.assertEqual(old.recv(12), b"HTTP/1.1 200")  # which knows no expectations

    def test_conversations_without_a_message(self):
        self.start_server()
        for path, body, field in (("/v1/chat/completions", {"messages": []}, "messages"),
                                  ("/v1/chat/completions", {"messages": [], "stream": True}, "messages"),
                                  ("/v1/messages", {"messages": [], "max_tokens": 1, "system": "x"}, "messages"),
                                  ("/v1/messages/count_tokens", {"messages": []}, "messages"),
                                  ("/apply-template", {"messages": []}, "messages"),
                                  ("/v1/responses", {"input": [], "instructions": "x"}, "input")):
            status, _, text = self.ask(path, body)
            self.assertEqual(status, 400, path)
            self.assertIn('\\"%s\\" is empty' % field, text)


class Listening(Sockets):
    def listen(self, host, *arguments):
        """The address that is shown."""
        self.process = self.start("serve", self.data(), "--port", "0", "--host", host, "--device", "cpu", *arguments,
                                  program="DSPACK_DSRUN")
        said = self.process.stderr.readline().decode()
        shown = re.search(r"(http://\S+:([0-9]+))/v1", said)
        self.assertTrue(shown, said)
        self.port = int(shown[2])
        return shown[1]

    def status(self, address, host):
        connection = http.client.HTTPConnection(address, self.port, timeout=60)
        try:
            connection.request("GET", "/v1/models", headers={"Host": host})
            return connection.getresponse().status
        finally:
            connection.close()

    def test_names_and_addresses_of_this_machine_need_no_key(self):
        shown = self.listen("localhost")
        self.assertEqual(shown, "http://localhost:%d" % self.port)
        for address in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            for host, status in (("localhost:%d" % self.port, 200), ("LOCALHOST", 200), ("127.0.0.1", 200),
                                 ("127.9.9.9:1", 200), ("[::1]:%d" % self.port, 200), ("evil.example", 403),
                                 ("128.0.0.1", 403), ("127.0.0.1.evil.example", 403), ("[::2]", 403)):
                self.assertEqual(self.status(address, host), status, (address, host))
        self.assert_ok_after_stop()
        self.assertEqual(self.listen("127.0.0.2"), "http://127.0.0.2:%d" % self.port)
        self.assertEqual(self.status("127.0.0.2", "127.0.0.2:%d" % self.port), 200)
        self.assert_ok_after_stop()
        if not has_ipv6():
            self.skipTest("this machine has no ::1")
        for host in ("::1", "[::1]"):
            self.assertEqual(self.listen(host), "http://[::1]:%d" % self.port)
            self.assertEqual(self.status("::1", "[::1]:%d" % self.port), 200)
            self.assert_ok_after_stop()

    def test_other_places_need_one(self):
        for host in ("0.0.0.0", "::", "192.0.2.1", "::ffff:127.0.0.1", "128.0.0.1"):
            said = self.run_program("serve", self.data(), "--host", host, program="DSPACK_DSRUN")
            self.assert_refused(said, "--host", host, "--api-key", program="dsrun")
        for host in ("no-such-host.invalid", "", "http://localhost"):
            said = self.run_program("serve", self.data(), "--host", host, "--api-key", "k", program="DSPACK_DSRUN")
            self.assert_refused(said, "--host: ", "127.0.0.1", program="dsrun")
        said = self.run_program("serve", self.data(), "--host", "192.0.2.1", "--api-key", "k", program="DSPACK_DSRUN")
        self.assert_refused(said, "cannot listen at 192.0.2.1:8080", "--host 127.0.0.1", program="dsrun")

    def test_a_port_in_use_is_told_before_the_model_is_looked_for(self):
        for address in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as taken:
                taken.bind((address, 0))
                taken.listen()
                port = taken.getsockname()[1]
                for host in (address, "localhost"):
                    said = self.run_program("serve", self.scratch / "nothing", "--port", port, "--host", host,
                                            program="DSPACK_DSRUN")
                    shown = "[%s]:%d" % (address, port) if ":" in address else "%s:%d" % (address, port)
                    self.assert_refused(said, "cannot listen at " + shown, "in use", "--port", program="dsrun")


class Loading(EndToEnd):
    """A model that comes slowly over a network."""

    def ask(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), json.loads(response.read())
        finally:
            connection.close()

    def begin(self):
        self.server = self.serve(self.data())
        self.slow = self.server.add_fault("*.safetensors", "slow", rate=100_000)
        self.port = free_port()
        self.process = self.start("serve", self.server.url, "--port", self.port, "--device", "cpu", "--cache",
                                  self.scratch / "cache", program="DSPACK_DSRUN")

        def is_there():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self.wait_until(is_there, "a server that listens")

    def test_health_says_loading_and_others_wait(self):
        self.begin()
        # Of what every token needs, which is fetched first.
        self.wait_until(lambda: self.ask("/health")[2].get("done_bytes", 0) > 0, "bytes that are counted")
        body = self.ask("/health")[2]
        self.assertLess(body["done_bytes"], body["total_bytes"])
        for path in ("/health", "/v1/health"):
            status, headers, body = self.ask(path)
            self.assertEqual((status, body["status"], headers["Retry-After"]), (503, "loading", "1"))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = [pool.submit(self.ask, path, "{}") for path in ("/v1/chat/completions", "/v1/messages")]
            time.sleep(0.3)
            self.assertFalse(any(each.done() for each in waiting))
            self.process.send_signal(signal.SIGINT)
            result = self.finish(self.process, 20)
            self.assertEqual((result.code, result.stdout), (130, ""), str(result))
            for each in waiting:  # told so, or cut off with the program
                if each.exception() is None:
                    self.assertEqual(each.result()[0], 503)
                else:
                    self.assertIsInstance(each.exception(), (OSError, http.client.HTTPException))

    def test_health_is_well_once_the_model_is_there(self):
        self.begin()
        self.assertEqual(self.ask("/health")[0], 503)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            question = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
            waiting = [pool.submit(self.ask, *each) for each in (("/v1/models",), ("/v1/chat/completions", question),
                                                                 ("/v1/messages", "{}"))]
            time.sleep(0.3)
            self.assertFalse(any(each.done() for each in waiting))
            self.slow.options["rate"] = 10**9
            self.assertEqual([each.result()[0] for each in waiting], [200, 200, 400])
        self.wait_until(lambda: self.ask("/health")[0] == 200, "the model")
        self.assertEqual(self.ask("/health")[2], {"status": "ok"})
        self.assertIn("/v1 (", self.process.stderr.readline().decode())
        self.process.terminate()
        self.assertEqual(self.finish(self.process, 60).code, 0)


if __name__ == "__main__":
    main()
