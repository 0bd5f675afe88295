"""Chat templates that a stranger wrote to fell the program: dsrun refuses them, and their work ends when nobody waits for
it any more, be it Ctrl-C or a client that has left."""

import http.client
import json
import os
import resource
import signal
import socket
import struct
import time

from common import is_sanitized, limit, main
from test_serve import Serving, chat

# Each aborted dsrun, kept it busy for hours, or took gigabytes.
FELLING = [
    "{{ namespace(revindex0=1).cycle('a', 'b') }}",
    "{% for i in [1] %}{% set loop.index0 = 'x' %}{{ loop.cycle('a') }}{% endfor %}",
    "{{ raise_exception(('a' * 8000000).find('a' * 4000000 ~ 'b') | string) }}",
    "{{ ('a ' * 40000000).split() | length }}",
]
# To the end of the budget, which grows with the conversation.
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class HostileTemplates(Serving):
    def template(self, text):
        path = self.scratch / "chat_template.jinja"
        path.write_text(text)
        return path

    def processor_time(self):
        """Of the server, in seconds."""
        fields = open("/proc/%d/stat" % self.process.pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_what_felled_the_program_is_refused(self):
        talk = self.scratch / "talk.json"
        talk.write_text(json.dumps(chat("hi")["messages"]))
        memory = None if is_sanitized("DSPACK_DSRUN") else limit(resource.RLIMIT_AS, 1 << 30)
        for text in FELLING:
            with self.subTest(text):
                result = self.run_program("tokenize", self.data(), "--chat", talk, "--chat-template",
                                          self.template(text), program="DSPACK_DSRUN", timeout=60, before=memory)
                self.assert_refused(result, "the chat template: line 1", program="dsrun")

    def test_ctrl_c_ends_a_rendering(self):
        talk = self.scratch / "talk.json"
        # Of a megabyte, so that the template has some seventy million steps.
        talk.write_text(json.dumps(chat("word " * 200_000)["messages"]))
        process = self.start("tokenize", self.data(), "--chat", talk, "--chat-template", self.template(ENDLESS),
                             program="DSPACK_DSRUN")
        # It renders once it has taken more processor time than its start.
        self.process = process
        self.wait_until(lambda: self.processor_time() > 0.3, "the rendering")
        process.send_signal(signal.SIGINT)
        result = self.finish(process, 60)
        self.assertEqual(result.code, 130, str(result))

    def test_a_client_that_left_ends_its_rendering(self):
        self.start_server("--chat-template", self.template(ENDLESS))
        body = json.dumps(chat("hi"))
        before = self.processor_time()
        status, _, text = self.ask("/v1/chat/completions", body)
        self.assertNotEqual(status, 200)
        self.assertIn("too many steps", text)
        whole = self.processor_time() - before
        # Six more, of whom each leaves as soon as its request is sent.
        before = self.processor_time()
        for _ in range(6):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sock.close()
        seen = [before]

        def is_idle():
            time.sleep(0.2)
            seen.append(self.processor_time())
            return seen[-1] - seen[-2] < 0.02
        self.wait_until(is_idle, "the server's rest", 60)
        self.assertLess(seen[-1] - before, 3 * whole, "of six renderings that nobody waits for; one takes %.1f" % whole)
        self.assertEqual(self.ask("/health")[0], 200)


if __name__ == "__main__":
    main()
