"""dsrun plan: what a run would take and how fast it would be, before anything is loaded."""

import json
import re

from checkpoints import packed_tiny
from common import EndToEnd, main

QUESTION = "What is the capital of Spain?"


class Plan(EndToEnd):
    def plan(self, place, *arguments):
        return self.run_program("plan", place, *arguments, program="DSPACK_DSRUN")

    def json_plan(self, place, *arguments):
        return json.loads(self.assert_ok(self.plan(place, "--json", *arguments)).stdout)

    def assert_sensible(self, plan):
        self.assertEqual(plan["memory"]["total"], sum(plan["memory"]["bytes"].values()))
        for decode in plan["decode"]:
            self.assertGreater(decode["tokens_per_second"], 0)
        self.assertGreater(plan["measured"]["read_bytes_per_second"], 0)
        self.assertGreater(plan["prefill"]["seconds"], 0)

    def test_it_says_what_a_run_then_takes(self):
        for folder in (packed_tiny(), packed_tiny("layer"), self.data()):
            with self.subTest(folder=folder):
                budget = ("--ctx", 256, "--experts", "25%")
                planned = self.json_plan(folder, *budget)
                self.assert_sensible(planned)
                stats = self.scratch / "stats.json"
                self.assert_ok(self.run_program(folder, "-p", QUESTION, "--stats", stats, *budget,
                                                program="DSPACK_DSRUN"))
                bytes_of = lambda plan: {k: v for k, v in plan["bytes"].items() if k != "process"}  # noqa: E731
                self.assertEqual(bytes_of(planned["memory"]), bytes_of(json.loads(stats.read_text())["memory_plan"]))

    def test_the_text_is_for_people(self):
        said = self.assert_ok(self.plan(packed_tiny(), "--prompt-tokens", 40)).stdout
        for line in ("memory:", "KV cache", "experts", "measured:", "first tokens", "a prompt of 40 tokens"):
            self.assertIn(line, said)

    def test_a_given_hit_rate_takes_the_place_of_assumptions(self):
        plan = self.json_plan(packed_tiny(), "--experts", "25%", "--dev", "hit-rate=100")
        self.assertEqual([decode["assumption"] for decode in plan["decode"]], ["cold", "given"])
        cold, given = plan["decode"]
        self.assertEqual((given["hit_rate"], given["bytes"]), (1, 0))
        self.assertEqual(cold["bytes"], plan["measured"]["expert_bytes"] * plan["memory"]["experts_per_token"])

    def test_what_does_not_fit_is_refused_with_what_would(self):
        result = self.plan(packed_tiny(), "--ram", "1MB")
        self.assert_refused(result, "--ram 1.00 MB is too little", "needs at least", program="dsrun")

    def test_a_distant_place(self):
        server = self.serve(packed_tiny())
        cache = self.scratch / "cache"
        plan = self.json_plan(server.url, "--cache", cache)
        self.assert_sensible(plan)
        self.assertEqual(plan["measured"]["tier"], "link")
        # A plan fetches what it times, and no weights that a run would fetch first.
        fetched = {request.path for request in server.log if request.path.endswith(".safetensors")}
        self.assertTrue(fetched)
        self.assertEqual([path for path in fetched if not re.search(r"/experts/", path)], [])
        self.assert_ok(self.run_program(server.url, "--cache", cache, "-p", QUESTION, program="DSPACK_DSRUN"))
        again = [request.path for request in server.log if "/experts/" in request.path]
        self.assertLessEqual(len(again), len(set(again)) + len(fetched))

    def test_a_place_that_is_not_there(self):
        self.assert_refused(self.plan("http://127.0.0.1:9/x"), "127.0.0.1:9", program="dsrun")
        self.assert_refused(self.plan(self.scratch), "config.json", program="dsrun")


if __name__ == "__main__":
    main()
