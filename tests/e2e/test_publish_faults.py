"""`reshard publish` when requests fail, answers are lost, links expire, storage takes wrong bytes, and a server says what
no server should. Whatever happened: the same files, each commit once, and no secret where it does not belong."""

import json

from checkpoints import packed_tiny, write_small
from common import is_sanitized, main
from publishing import REPO, TOKEN, PublishCase, digest_of


class Faults(PublishCase):
    def setUp(self):
        super().setUp()
        self.folder = packed_tiny("layer")

    def assert_survives(self, hub, *faults, folder=None, arguments=(), commits=None):
        """Publishes while each of these faults strikes; (method, pattern, kind, options)."""
        armed = [hub.add_fault(method, pattern, kind, **options) for method, pattern, kind, options in faults]
        result = self.assert_ok(self.publish(hub, folder, *arguments))
        self.assertEqual([fault.pattern for fault in armed if not fault.struck], [], "did not strike")
        self.assert_published(hub, folder)
        self.assert_commits_in_order(hub)
        if commits is not None:
            self.assertEqual(len(hub.commits(REPO)), commits)
        hub.clear_faults()
        return result

    def test_busy_and_broken_servers(self):
        for kind, options in (("429", {"rate_limit": 1}), ("429", {"retry_after": 1}), ("500", {}), ("503", {}),
                              ("reset", {}), ("cut", {})):
            with self.subTest(kind=kind, **options):
                hub = self.new_hub(multipart_threshold=20_000, chunk_size=30_000)
                self.assert_survives(hub, *[(method, pattern, kind, {"times": 1, **options}) for method, pattern in (
                    ("GET", "*/revision/*"), ("POST", "*/create"), ("GET", "*/tree/*"), ("POST", "*/preupload/*"),
                    ("POST", "*/batch"), ("PUT", "uploads/*"), ("POST", "api/complete_multipart"),
                    ("POST", "*/verify"), ("POST", "*/commit/*"))], commits=2)

    def test_answers_that_are_lost(self):
        """Carried out, but nobody hears of it."""
        for options in ({}, {"status": 504}):
            with self.subTest(**options):
                hub = self.new_hub(multipart_threshold=20_000, chunk_size=30_000)
                self.assert_survives(hub, *[(method, pattern, "lost", {"times": 1, **options}) for method, pattern in (
                    ("POST", "*/create"), ("POST", "*/preupload/*"), ("POST", "*/batch"), ("PUT", "uploads/*"),
                    ("POST", "api/complete_multipart"), ("POST", "*/verify"), ("POST", "*/commit/*"))], commits=2)
                # A completion that was lost is not paid for by sending the file again.
                parts = [request.path for request in hub.requests("PUT")]
                self.assertLessEqual(len(parts), len(set(parts)) + 1)

    def test_every_second_commit_is_lost(self):
        hub = self.new_hub()
        self.assert_survives(hub, ("POST", "*/commit/*", "lost", {"every": 2, "status": 504}), folder=packed_tiny(),
                             commits=6)

    def test_a_pull_request_whose_every_step_is_lost(self):
        hub = self.new_hub()
        self.assert_ok(self.publish(hub, packed_tiny()))
        for kind, options in (("lost", {}), ("lost", {"status": 504}), ("500", {}), ("reset", {})):
            with self.subTest(kind=kind, **options):
                folder = self.folder if len(hub.pull_requests(REPO)) % 2 == 0 else packed_tiny()
                count = len(hub.pull_requests(REPO))
                before = len(hub.commits(REPO))
                self.assert_survives(hub, *[(method, pattern, kind, {"times": 1, **options}) for method, pattern in (
                    ("GET", "*/discussions"), ("POST", "*/discussions"), ("POST", "*/commit/*"), ("POST", "*/status"),
                    ("POST", "*/merge"))], folder=folder, commits=before + 1)
                self.assertEqual(len(hub.pull_requests(REPO)), count + 1)
                self.assertEqual({pull.status for pull in hub.pull_requests(REPO)}, {"merged"})

    def test_links_that_expire(self):
        # A program under a sanitizer takes longer for a file than such a link lives.
        life = 4 if is_sanitized() else 0.4
        hub = self.new_hub(upload_link_seconds=life, multipart_threshold=1_000_000, chunk_size=100_000)
        hub.add_fault("POST", "*/batch", "delay", seconds=1.75 * life, times=1)  # longer than a link lives
        result = self.assert_ok(self.publish(hub, self.folder, "--jobs", 8))
        self.assertTrue([request for request in hub.requests("PUT") if request.status == 403], str(result))
        self.assert_published(hub)

    def test_links_that_never_work(self):
        hub = self.new_hub(upload_link_seconds=-1)
        result = self.publish(hub)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("with fresh links each time", result.stderr)
        self.assertIn("AccessDenied: Request has expired", result.stderr)
        self.assertEqual(set(hub.files(REPO)), {".gitattributes"})

    def test_bytes_that_arrive_wrong_are_sent_again(self):
        for kind in ("corrupt_upload", "truncate_upload"):
            for threshold in (20_000, 1 << 40):
                with self.subTest(kind=kind, multipart=threshold == 20_000):
                    hub = self.new_hub(multipart_threshold=threshold, chunk_size=50_000)
                    self.assert_survives(hub, ("PUT", "uploads/*", kind, {"times": 2, "min_bytes": 10_000}))

    def test_bytes_that_always_arrive_wrong(self):
        hub = self.new_hub()
        hub.add_fault("PUT", "uploads/*", "corrupt_upload", min_bytes=10_000)
        result = self.publish(hub)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("refused", result.stderr)
        self.assertNotIn("manifest.json", hub.files(REPO))

    def test_a_storage_that_takes_no_more(self):
        hub = self.new_hub()
        large = max(self.folder.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
        hub.lfs_errors[digest_of(large)] = (422, "You have exceeded your storage limit")
        result = self.publish(hub)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("You have exceeded your storage limit", result.stderr)
        self.assertIn(str(large.relative_to(self.folder)), result.stderr)
        self.assertNotIn("manifest.json", hub.files(REPO))

    def test_it_gives_up_in_the_end_and_says_why(self):
        for method, pattern in (("POST", "*/commit/*"), ("PUT", "uploads/*"), ("POST", "*/batch"), ("GET", "*/tree/*")):
            with self.subTest(pattern):
                hub = self.new_hub()
                hub.add_fault(method, pattern, "503")
                result = self.publish(hub, None, "--dev", "retries=2")
                self.assertEqual(result.code, 1, str(result))
                self.assertRegex(result.stderr, r": the server answered HTTP 503( \(told to fail\))?; gave up after 3 attempts")
                hub.clear_faults()
                self.assert_ok(self.publish(hub))
                self.assert_published(hub)

    def test_a_commit_that_is_taken_and_does_nothing(self):
        hub = self.new_hub()
        body = json.dumps({"success": True, "commitOid": "0" * 40, "commitUrl": "x"})
        hub.add_fault("POST", "*/commit/*", "status", status=200, body=body)
        result = self.publish(hub, None, "--dev", "retries=1")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("does not list it", result.stderr)

    def test_answers_that_break_the_protocol(self):
        oid = "0" * 64
        for method, pattern, body, needle in (
                ("GET", "*/revision/*", "[]", "breaks its protocol"),
                ("GET", "*/revision/*", '{"private": false, "sha": "../../x"}', "no id of git"),
                ("GET", "*/tree/*", "{}", "not a listing of files: it is no array"),
                ("GET", "*/tree/*", '[{"type": "file", "path": "a", "size": 1}]', "has no id of a"),
                ("GET", "*/tree/*", '[{"type": "file", "path": "a", "size": 1, "oid": "main"}]', "none of git's"),
                ("GET", "*/tree/*", '[{"type": "file", "path": "a", "size": -1, "oid": "0123456"}]', "size"),
                ("POST", "*/preupload/*", '{"files": []}', "no uploadMode for"),
                ("POST", "*/preupload/*", "x" * 70_000, "not valid JSON"),
                ("POST", "*/batch", '{"objects": []}', "nothing about the object"),
                ("POST", "*/batch", '{"objects": [{"oid": "%s", "actions": {"upload": {"href": "file:///x"}}}]}' % oid,
                 "http(s) address"),
                ("POST", "*/batch", '{"transfer": "xet", "objects": []}', "which was not offered"),
                ("POST", "*/commit/*", "<html>fine</html>", "breaks its protocol")):
            with self.subTest(pattern, body=body[:60]):
                hub = self.new_hub()
                hub.add(REPO)
                fault = hub.add_fault(method, pattern, "status", status=200, body=body)
                result = self.publish(hub)
                self.assertEqual(result.code, 1, str(result))
                self.assertIn(needle, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertLess(len(result.stderr), 1000)
                self.assertTrue(fault.struck)
                self.assertNotIn("manifest.json", hub.files(REPO))

    def test_a_listing_without_end(self):
        hub = self.new_hub()
        hub.add(REPO)
        commit = hub.branches(REPO)["main"]
        for link, needle in (
                ("<%s/api/models/%s/tree/%s?recursive=true&expand=false>; rel=\"next\"" % (hub.url, REPO, commit), "in a circle"),
                ("<http://127.0.0.3:9/next>; rel=\"next\"", "another host")):
            fault = hub.add_fault("GET", "*/tree/*", "headers", headers={"Link": link})
            self.assert_refused(self.publish(hub, None, "--dev", "retries=0"), "/tree/" + commit, needle)
            self.assertTrue(fault.struck)
            hub.clear_faults()

    def test_a_server_that_repeats_the_token_in_its_refusals(self):
        hub = self.new_hub()
        hub.add(REPO)
        body = json.dumps({"error": "Authorization: Bearer %s is not good, see https://x/y?Signature=1" % TOKEN})
        for method, pattern in (("GET", "*/revision/*"), ("POST", "*/preupload/*"), ("POST", "*/batch"),
                                ("PUT", "uploads/*"), ("POST", "*/verify"), ("POST", "*/commit/*")):
            with self.subTest(pattern):
                hub.clear_faults()
                hub.add_fault(method, pattern, "status", status=418, body=body)
                result = self.publish(hub)  # which looks for the token and signatures in what it says
                self.assertEqual(result.code, 1, str(result))
                self.assertIn("(token)", result.stderr)

    def test_gitignore(self):
        folder = self.scratch / "packed"
        self.assert_ok(self.repack(write_small(self.scratch / "source"), folder))
        hub = self.new_hub()
        hub.add(REPO)
        files = [{"path": str(path.relative_to(folder)), "uploadMode": "lfs", "shouldIgnore": path.name == "config.json"}
                 for path in folder.rglob("*") if path.is_file()]
        hub.add_fault("POST", "*/preupload/*", "status", status=200, body=json.dumps({"files": files}))
        self.assert_refused_but_told(self.publish(hub, folder), ".gitignore keeps config.json out")

    def assert_refused_but_told(self, result, needle):
        self.assertEqual(result.code, 1, str(result))
        self.assertIn(needle, result.stderr)


if __name__ == "__main__":
    main()
