"""Servers that mean harm, or are broken as if they did: a run ends soon, by a refusal of one line, and nobody but the
Hub is believed, asked to take bytes, or shown the token."""

import shutil
import ssl
import subprocess
import time

from checkpoints import write_big, write_small
from common import EndToEnd, main
from hub_case import HubCase
from publishing import COMPLETE, REPO, PublishCase
from raw_server import RawServer

SOON_SECONDS = 60


class Soon:
    """For cases of EndToEnd: runs that must end by themselves."""

    def serve_raw(self, answer, **options):
        server = RawServer(answer, **options)
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def run_soon(self, *arguments, env=None, **options):
        began = time.monotonic()
        result = self.run_program(*arguments, timeout=SOON_SECONDS, env={"HF_HUB_DOWNLOAD_TIMEOUT": "1", **(env or {})},
                                  **options)
        self.assertLess(time.monotonic() - began, SOON_SECONDS)
        return result


def drip(send, head, piece=b"x"):
    """A byte now and then: never silent, never done."""
    send(head)
    while True:
        send(piece)
        time.sleep(0.2)


def flood(send, head, piece=b"x" * 65536):
    send(head)
    while True:
        send(piece)


class Endless(Soon, HubCase):
    """Whatever a server sends that is no weights has a bound on its bytes and on the time that they take."""

    def refused(self, answer, *needles):
        server = self.serve_raw(answer)
        result = self.run_soon(server.url + "/model", "--by", "expert", "--out", self.out, "--dev", "retries=0")
        self.assert_refused(result, *needles)
        self.assert_absent(self.out)
        self.assertLess(server.sent, 64 << 20)

    def test_a_refusal_with_an_endless_body(self):
        head = b"HTTP/1.1 403 Forbidden\r\n\r\nno entry for you"
        self.refused(lambda send, _: flood(send, head), "HTTP 403", "no entry for you")

    def a_refusal_that_drips(self):
        head = b"HTTP/1.1 403 Forbidden\r\n\r\nno entry for you"
        self.refused(lambda send, _: drip(send, head), "HTTP 403", "no entry for you")

    def a_file_that_drips(self):
        self.refused(lambda send, _: drip(send, b"HTTP/1.1 200 OK\r\n\r\n{", b" "), "too slow")

    def a_head_that_drips(self):
        self.refused(lambda send, _: drip(send, b"HTTP/1.1 200 OK\r\nX: "), "too slow")
        self.refused(lambda send, _: drip(send, b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), "too slow")
        self.refused(lambda send, _: drip(send, b"", b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n"), "too slow")

    def test_a_head_without_end(self):
        self.refused(lambda send, _: flood(send, b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n"), "head")

    def a_redirect_with_an_endless_body(self):
        head = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n"
        self.refused(lambda send, _: flood(send, head), "redirect")
        self.refused(lambda send, _: drip(send, head), "redirect")

    def a_listing_that_drips(self):
        self.hub.add_fault("GET", "api/models/*/tree/*", "slow", rate=4)
        result = self.run_soon("o/n", "--by", "expert", "--out", self.out, "--dev", "retries=0", env=self.env())
        self.assert_refused(result, "/tree/", "too slow")

    def weights_may_come_as_slowly_as_they_do(self):
        # Of large shards, as small ones come with the request for their header. A fifth of the rate that all else must
        # have, for longer than the two and a half seconds after which all else is refused.
        self.hub.add("o/big", write_big(self.scratch / "big"))
        slow = self.hub.add_fault("GET", "objects/*", "slow", rate=200, min_bytes=100_000)
        process = self.start("o/big", "--by", "expert", "--out", self.out, "--dev", "retries=0",
                             env=self.env(HF_HUB_DOWNLOAD_TIMEOUT="1"))
        self.wait_until(lambda: slow.struck or process.poll() is not None, "the first shard")
        time.sleep(4)
        slow.options["rate"] = 10_000_000
        self.assert_ok(self.finish(process))
        self.assertTrue(slow.struck)


class Redirects(Soon, HubCase):
    def test_a_listing_that_redirects_to_another_host_is_not_believed(self):
        other = self.serve_hub()
        other.add("o/n", self.source)
        path = "/api/models/o/n/tree/%s?recursive=true&expand=false" % self.commit_of()
        self.hub.add_fault("GET", "api/models/*/tree/*", "302", headers={"Location": other.url + path})
        self.assert_refused(self.pack(), "/tree/", "redirects to " + other.url, "another host")
        self.assertEqual(other.requests(), [], "nobody asks there")
        self.assert_absent(self.out)

    def test_within_the_hub_redirects_are_followed(self):
        self.hub.add_fault("GET", "api/models/*/tree/*", "307", times=1,
                           headers={"Location": "/api/models/o/n/tree/%s?recursive=true" % self.commit_of()})
        self.assert_ok(self.pack())

    def test_https_does_not_lead_to_http(self):
        if not shutil.which("openssl"):
            self.skipTest("openssl is not installed")
        key, certificate = self.scratch / "key.pem", self.scratch / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True,
                       capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        plain = self.serve(self.source)

        def redirect(send, request):
            send(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\nLocation: %s%s\r\n\r\n" % (
                plain.url.encode(), request.split()[1].encode()))
        server = self.serve_raw(redirect, context=context)
        result = self.run_soon(server.url, "--by", "expert", "--out", self.out, env={"CURL_CA_BUNDLE": str(certificate)})
        self.assert_refused(result, server.url, "redirects to " + plain.url, "an address without https")
        self.assertEqual(plain.requests(), [])


class Tokens(Soon, HubCase):
    """A name that is not this machine's, behind a proxy that writes down what it is sent."""

    def ask(self, endpoint, **env):
        proxy = self.serve_raw(lambda send, _: send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
        result = self.run_soon("o/n", "--by", "expert", "--out", self.out, "--dev", "retries=0", env={
            "HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_secret", "http_proxy": proxy.url, **env})
        self.assertEqual(result.code, 1, str(result))
        self.assertTrue(proxy.requests, str(result))
        return result, [request for request in proxy.requests if "hf_secret" in request]

    def test_a_token_is_not_sent_over_plain_http(self):
        for endpoint in ("http://mirror.test", "http://127.evil.test:8080", "http://localhost.evil.test", "http://10.0.0.1"):
            result, shown = self.ask(endpoint)
            self.assertEqual(shown, [], endpoint)
            self.assertEqual(result.stderr.count("token is not sent to " + endpoint), 1, str(result))
            self.assertIn("DSPACK_TOKEN_OVER_HTTP=1", result.stderr)

    def test_unless_that_is_asked_for(self):
        result, shown = self.ask("http://mirror.test", DSPACK_TOKEN_OVER_HTTP="1")
        self.assertNotEqual(shown, [])
        self.assertNotIn("is not sent", result.stderr)

    def test_nobody_without_a_token_is_told(self):
        result, _ = self.ask("http://mirror.test", HF_TOKEN="")
        self.assertNotIn("is not sent", result.stderr)


class Uploads(Soon, PublishCase):
    """What a storage is said to want."""

    def setUp(self):
        super().setUp()
        self.folder = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), self.folder))

    def refused(self, falsify, *needles, **options):
        hub = self.new_hub(falsify_actions=falsify, **options)
        result = self.run_soon("publish", self.folder, "--repo", REPO, env=self.environment(hub))
        self.assertEqual(result.code, 1, str(result))
        line = result.stderr.rstrip("\n").split("\n")[-1]
        for needle in needles:
            self.assertIn(needle, line)
        self.assertLess(len(line), 800)
        return hub

    def test_headers_that_belong_to_the_connection(self):
        for name, value in (("Content-Length", "99999999"), ("transfer-encoding", "chunked"), ("Host", "evil.test"),
                            ("Connection", "upgrade"), ("Expect", "100-continue"), ("Content-Range", "bytes 0-1/2")):
            def falsify(actions, header={name: value}):
                actions["upload"]["header"] = header
            hub = self.refused(falsify, name, "breaks its protocol")
            self.assertEqual(hub.requests("PUT", host="storage"), [])

    def test_too_many_headers(self):
        def falsify(actions):
            actions["upload"]["header"] = {"x-%d" % number: "y" for number in range(5000)}
        self.refused(falsify, "headers")

    def test_a_chunk_size_beyond_all_measure(self):
        for size in (2**64 - 1, 2**63, 6 << 40):
            def falsify(actions, size=size):
                actions["upload"]["header"] = {"chunk_size": str(size), "1": actions["upload"]["href"]}
            self.refused(falsify, "chunk_size")

    def test_a_verification_elsewhere(self):
        elsewhere = self.serve_raw(lambda send, _: drip(send, b"HTTP/1.1 200 OK\r\n\r\n"))

        def falsify(actions):
            actions["verify"] = {"href": elsewhere.url + "/verify"}
        hub = self.refused(falsify, "verif", "another host")
        self.assertEqual((elsewhere.requests, hub.requests("PUT", host="storage")), ([], []))

    def answers_that_drip(self):
        for head in (b"HTTP/1.1 200 OK\r\n\r\n{", b"HTTP/1.1 403 Forbidden\r\n\r\n{"):
            server = self.serve_raw(lambda send, _, head=head: drip(send, head, b" "))
            result = self.run_soon("publish", self.folder, "--repo", REPO, "--dev", "retries=0",
                                   env={"HF_ENDPOINT": server.url, "HF_TOKEN": "hf_x"})
            self.assertEqual(result.code, 1, str(result))

    def test_what_is_as_it_should_be_is_published(self):
        hub = self.new_hub(falsify_actions=lambda actions: actions["upload"].setdefault("header", {}).update(
            {"x-amz-meta-a": "b", "Content-Type": "application/octet-stream"}))
        self.assertIn(COMPLETE, self.assert_ok(self.publish(hub)).stdout)


class AtTheSameTime(EndToEnd):
    """Those that take seconds."""

    def test_nothing_that_is_no_weights_may_be_slow(self):
        self.together(
            *map(Endless, ("a_refusal_that_drips", "a_file_that_drips", "a_head_that_drips",
                           "a_redirect_with_an_endless_body", "a_listing_that_drips",
                           "weights_may_come_as_slowly_as_they_do")),
            Uploads("answers_that_drip"))


if __name__ == "__main__":
    main()
