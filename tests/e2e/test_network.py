"""How the network is used: ranges of one shard side by side, the limit on the rate, connections that are kept, ranges
that are lost on the way."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from checkpoints import raw, write_small
from common import QUICK, EndToEnd, clean_environment, free_port, main, path_from_environment

PIECE = 8 << 20  # docs/lab/2026-11-reshard.md: most that a connection beside others fetches at a time
PAYLOAD = 6 * PIECE + 12_345


class OneShard(EndToEnd):
    """A checkpoint of a single shard, so that all jobs but one have none of their own; made once, for all cases."""

    @classmethod
    def setUpClass(cls):
        folder = Path(tempfile.mkdtemp(prefix="dspack-e2e-shared-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        block = raw(PIECE // 16, 1)
        payload = b"".join(bytes([i]) + block for i in range(PAYLOAD // len(block) + 1))[:PAYLOAD]
        cls.source = write_small(folder / "source", [{"model.layers.0.w": ("U8", [PAYLOAD], payload)}])
        (cls.shard,) = [path.name for path in cls.source.glob("*.safetensors")]
        cls.whole = folder / "whole"
        subprocess.run([path_from_environment("DSPACK_RESHARD"), cls.source, "--by", "expert", "--out", cls.whole],
                       check=True, env=clean_environment(folder), stdout=subprocess.DEVNULL)

    def ranges(self, server):
        """Of the requests behind the probes."""
        return [r for r in server.requests(self.shard) if r.range and r.range[0] > 0]

    def test_jobs_without_a_shard_fetch_ranges_of_the_last_one(self):
        server = self.serve(self.source, rate=20_000_000)
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 3))
        self.assert_same_tree(self.scratch / "out", self.whole)
        ranges = self.ranges(server)
        self.assertGreater(len(ranges), 4)
        self.assertEqual(len({r.connection for r in ranges}), 3, "as many connections as jobs")
        ends = sorted(r.range for r in ranges)
        self.assertTrue(all(a[1] == b[0] for a, b in zip(ends, ends[1:])), "every byte once: %s" % ends)

    def connections(self, server):
        return len({r.connection for r in server.log})

    def test_connections_grow_while_more_bring_more(self):
        # A bound on each connection and none on all: what grows is the rate, up to the 64 connections of the default.
        server = self.serve(self.source, rate=3_000_000)
        self.assert_ok(self.repack(server.url, self.scratch / "out"))
        self.assert_same_tree(self.scratch / "out", self.whole)
        self.assertGreater(self.connections(server), 6)
        self.assertLessEqual(self.connections(server), 64 + 1)  # and the one that read alone until others came to help

    def test_jobs_bound_the_connections(self):
        server = self.serve(self.source, rate=20_000_000)
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 2))
        self.assert_same_tree(self.scratch / "out", self.whole)
        self.assertLessEqual(self.connections(server), 2 + 1)

    def test_one_job_reads_it_in_one_request(self):
        server = self.serve(self.source)
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 1))
        self.assertEqual(len(self.ranges(server)), 1)

    def test_lost_and_refused_ranges_are_fetched_again(self):
        server = self.serve(self.source)
        server.add_fault(self.shard, "truncate", times=3, skip=3, min_bytes=100_000)
        server.add_fault(self.shard, "503", times=2, skip=4)
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 4, *QUICK))
        self.assert_same_tree(self.scratch / "out", self.whole)

    def test_a_file_that_changes_between_two_ranges_is_refused(self):
        server = self.serve(self.source)
        server.add_fault(self.shard, "change_etag", skip=4)
        self.assert_refused(self.repack(server.url, self.scratch / "out", "--jobs", 4), self.shard, "changed")
        self.assertFalse((self.scratch / "out" / "manifest.json").exists())

    def test_the_rate_is_limited_over_all_connections(self):
        server = self.serve(self.source)
        begin = time.monotonic()
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 4, "--limit-rate", "25MB"))
        self.assertGreaterEqual(time.monotonic() - begin, PAYLOAD / 25e6 * 0.98)
        self.assert_same_tree(self.scratch / "out", self.whole)

    def test_a_rate_that_is_none_is_wrong_usage(self):
        for rate in ("0", "fast", "-5", ""):
            result = self.repack(self.source, self.scratch / "out", "--limit-rate", rate)
            self.assertEqual(result.code, 2, str(result))
            self.assertIn("--limit-rate", result.stderr)

    def test_connections_are_kept(self):
        server = self.serve(self.source)
        self.assert_ok(self.repack(server.url, self.scratch / "out", "--jobs", 1))
        self.assertEqual(len({r.connection for r in server.log}), 1)


class Encrypted(EndToEnd):
    """TLS with a certificate of one's own, and HTTP/2, for which nginx is needed."""

    def test_http2_where_it_is_offered(self):
        if not shutil.which("nginx") or not shutil.which("openssl"):
            self.skipTest("nginx and openssl are not installed (packages nginx-light, openssl)")
        key, certificate = self.scratch / "key.pem", self.scratch / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True)
        port, log = self.start_nginx(key, certificate)
        url = "https://127.0.0.1:%d" % port
        # The program's one line about it is all that is said, at once.
        self.assert_refused(self.repack(url, self.scratch / "untrusted"), url, "certificate")
        for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
            out = self.scratch / name
            self.assert_ok(self.repack(url, out, env={name: str(certificate)}))
            self.assert_ok(self.run_program("verify", out, "--source", self.data()))
        protocols = set(log.read_text().split())
        self.assertEqual(protocols, {"HTTP/2.0"})

    def start_nginx(self, key, certificate):
        port, log = free_port(), self.scratch / "access.log"
        (self.scratch / "nginx.conf").write_text("""
            daemon off; pid %(scratch)s/pid; error_log %(scratch)s/error.log;
            events {}
            http { log_format protocol '$server_protocol'; access_log %(log)s protocol;
                   client_body_temp_path %(scratch)s/b; proxy_temp_path %(scratch)s/p; fastcgi_temp_path %(scratch)s/f;
                   uwsgi_temp_path %(scratch)s/u; scgi_temp_path %(scratch)s/s;
                   server { listen 127.0.0.1:%(port)d ssl http2; root %(root)s;
                            ssl_certificate %(certificate)s; ssl_certificate_key %(key)s; } }
            """ % dict(scratch=self.scratch, log=log, port=port, root=self.data(), key=key, certificate=certificate))
        server = subprocess.Popen(["nginx", "-c", self.scratch / "nginx.conf", "-e", self.scratch / "error.log"],
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for _ in range(100):
            if (self.scratch / "pid").exists() and (self.scratch / "pid").read_text().strip():
                break
            time.sleep(0.05)
        return port, log


if __name__ == "__main__":
    main()
