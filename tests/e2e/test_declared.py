"""What is declared of a source's files, by a server's headers, a SHA256SUMS beside them or a list of the user's, must be
what is read; and where nothing is declared, a run says so."""

import base64
import hashlib

from checkpoints import SHARDS, write_big, write_small
from common import EndToEnd, main

UNVOUCHED = "nothing vouched for the bytes of %d of %d source shards"


def headers_of(data):
    """Header name -> its value, for a file of this content, as servers write them."""
    def b64(algorithm):
        return base64.b64encode(hashlib.new(algorithm, data).digest()).decode()
    return {"Repr-Digest": "sha-512=:%s:, sha-256=:%s:" % (b64("sha512"), b64("sha256")),
            "Digest": "SHA-256=" + b64("sha256"),
            "X-Checksum-Sha256": hashlib.sha256(data).hexdigest(),
            "X-Checksum-Sha1": hashlib.sha1(data).hexdigest().upper(),
            "X-Checksum-Md5": hashlib.md5(data).hexdigest(),
            "x-amz-checksum-sha256": b64("sha256"),
            "x-goog-hash": "crc32c=AAAAAA==,md5=" + b64("md5"),
            "Content-MD5": b64("md5")}


class Declared(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        (self.source / "tokenizer.json").write_text("{}\n")
        self.out = self.scratch / "packed"

    def corrupt(self, server, name, at=-1):
        server.add_fault(name, "corrupt", at=(self.source / name).stat().st_size + at if at < 0 else at)

    def declare(self, server, header, names=SHARDS):
        for name in names:
            server.extra_headers[name] = {header: headers_of((self.source / name).read_bytes())[header]}

    def sums(self, names):
        return "".join("%s  %s\n" % (hashlib.sha256((self.source / name).read_bytes()).hexdigest(), name) for name in names)

    def test_without_declarations_a_run_says_so(self):
        server = self.serve(self.source)
        result = self.assert_ok(self.repack(server.url, self.out))
        self.assertEqual(result.stderr.count("\n"), 1, str(result))
        for needle in (UNVOUCHED % (2, 2), server.url, "verify %s --sha256 FILE" % self.out, "--source"):
            self.assertIn(needle, result.stderr)
        part = self.assert_ok(self.repack(server.url, self.scratch / "parts", "--part", "1/2"))
        self.assertIn(UNVOUCHED % (1, 1), part.stderr)
        local = self.assert_ok(self.repack(self.source, self.scratch / "local"))
        self.assertEqual(local.stderr, "")

    def test_headers_are_compared(self):
        for header in headers_of(b""):
            with self.subTest(header):
                server = self.serve(self.source)
                self.declare(server, header)
                result = self.assert_ok(self.repack(server.url, self.scratch / ("good-" + header)))
                self.assertEqual(result.stderr, "")
                self.corrupt(server, SHARDS[0])
                out = self.scratch / ("bad-" + header)
                result = self.repack(server.url, out, "--jobs", 1)
                self.assertEqual(result.code, 1, str(result))
                for needle in (SHARDS[0], "what was read has", "declares", header.lower()):
                    self.assertIn(needle.lower(), result.stderr.lower())
                self.assert_absent(out / "manifest.json")

    def test_one_shard_that_nobody_vouches_for(self):
        server = self.serve(self.source)
        self.declare(server, "X-Checksum-Md5", SHARDS[:1])
        self.assertIn(UNVOUCHED % (1, 2), self.assert_ok(self.repack(server.url, self.out)).stderr)

    def test_headers_of_companions(self):
        server = self.serve(self.source)
        self.declare(server, "X-Checksum-Sha1", [*SHARDS, "tokenizer.json"])
        self.corrupt(server, "tokenizer.json", 0)
        result = self.repack(server.url, self.out)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("tokenizer.json: differs from its digest: what was read has SHA-1", result.stderr)

    def test_a_list_beside_the_source(self):
        (self.source / "SHA256SUMS").write_text(self.sums([*SHARDS, "config.json", "tokenizer.json"]))
        for name in (SHARDS[1], "tokenizer.json"):
            server = self.serve(self.source)
            out = self.scratch / ("http-" + name)
            self.assertEqual(self.assert_ok(self.repack(server.url, out)).stderr, "")
            self.corrupt(server, name)
            result = self.repack(server.url, self.scratch / ("bad-" + name), "--jobs", 1)
            self.assertEqual(result.code, 1, str(result))
            self.assertIn("%s/SHA256SUMS declares" % server.url, result.stderr)
            self.assertIn(name, result.stderr)
        (self.source / "tokenizer.json").write_text("[]\n")  # a local folder's list counts too
        self.assert_refused(self.repack(self.source, self.out), "tokenizer.json", "SHA256SUMS declares")

    def test_a_list_that_is_none_or_names_little(self):
        (self.source / "SHA256SUMS").write_text("<html>not found</html>\n")
        server = self.serve(self.source)
        result = self.assert_ok(self.repack(server.url, self.out))
        self.assertIn("warning: %s/SHA256SUMS: line 1" % server.url, result.stderr)
        self.assertIn(UNVOUCHED % (2, 2), result.stderr)
        (self.source / "SHA256SUMS").write_text(self.sums(SHARDS[:1]) + "0" * 64 + "  something else\n")
        result = self.assert_ok(self.repack(server.url, self.scratch / "some"))
        self.assertIn(UNVOUCHED % (1, 2), result.stderr)

    def test_the_user_s_list_covers_companions(self):
        listed = self.scratch / "SUMS"
        listed.write_text(self.sums([*SHARDS, "config.json", "tokenizer.json"]))
        server = self.serve(self.source)
        result = self.assert_ok(self.repack(server.url, self.out, "--sha256", listed))
        self.assertEqual(result.stderr, "")
        (self.source / "tokenizer.json").write_text("[]\n")
        for number, place in enumerate((server.url, self.source)):
            self.assert_refused(self.repack(place, self.scratch / str(number), "--sha256", listed), "tokenizer.json",
                                "%s declares" % listed)

    def test_an_interrupted_run(self):
        server = self.serve(self.source)
        self.declare(server, "X-Checksum-Md5")
        server.add_fault(SHARDS[1], "404", skip=1)
        self.assertEqual(self.repack(server.url, self.out, "--jobs", 1).code, 1)
        server.clear_faults()
        result = self.assert_ok(self.repack(server.url, self.out))
        self.assertNotIn("nothing vouched", result.stderr)

    def test_a_shard_that_two_runs_have_read(self):
        self.source = write_big(self.scratch / "big")
        for header, is_compared in (("X-Checksum-Md5", False), ("X-Checksum-Sha256", True)):
            with self.subTest(header):
                server = self.serve(self.source)
                self.declare(server, header)
                server.add_fault(SHARDS[0], "truncate", min_bytes=100_000)
                out = self.scratch / header
                self.assertEqual(self.repack(server.url, out, "--dev", "retries=0", "--jobs", 1).code, 1)
                self.assertIn('"begun"', (out / ".reshard" / "journal").read_text())
                server.clear_faults()
                result = self.assert_ok(self.repack(server.url, out))
                self.assertEqual("nothing vouched for the bytes of %s/%s" % (server.url, SHARDS[0]) in result.stderr,
                                 not is_compared, str(result))
                self.assertNotIn(SHARDS[1], result.stderr)


if __name__ == "__main__":
    main()
