"""Prompts with few slots for experts: each expert once, the same text, and a limit on what may be read."""

import json

from checkpoints import packed_tiny
from common import EndToEnd, main

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"


class Prefill(EndToEnd):
    def ask(self, *arguments):
        return self.run_program(packed_tiny(), *arguments, program="DSPACK_DSRUN")

    def stats_of(self, *arguments):
        path = self.scratch / "stats.json"
        result = self.assert_ok(self.ask("--stats", path, *arguments))
        return result.stdout, json.loads(path.read_text())["experts"]

    def test_a_prompt_reads_each_expert_once_at_any_number_of_slots(self):
        for slots in ("100%", "12%", "8"):
            said, experts = self.stats_of("-p", QUESTION, "-n", 1, "--experts", slots)
            self.assertEqual(experts["prefill"]["misses"], experts["read"], slots)
            self.assertEqual(experts["decode"]["passes"], 0)
        said, _ = self.stats_of("-p", QUESTION, "--experts", "12%")
        self.assertEqual(said, ANSWER)

    def test_prefetch_does_not_change_the_text_and_its_bytes_add_up(self):
        for mode in ("off", "on", "auto"):
            said, experts = self.stats_of("-p", "Tell me a tale.", "--raw", "-n", 60, "--experts", "25%", "--dev", "prefetch=%s" % mode)
            prefetch = experts["prefetch"]
            self.assertEqual(prefetch["mode"], mode)
            if mode == "off":
                plain = said
                self.assertEqual(prefetch["bytes"] + prefetch["forecast"]["demands"], 0)
            self.assertEqual(said, plain)
            self.assertLessEqual(prefetch["useful_bytes"] + prefetch["wasted_bytes"], prefetch["bytes"])
        _, experts = self.stats_of("-p", "Tell me a tale.", "--raw", "-n", 60, "--experts", "25%", "--dev", "prefetch=on")
        self.assertGreater(experts["prefetch"]["forecast"]["foreseen"], 0)

    def test_what_fits_is_read_only_when_it_is_picked(self):
        _, experts = self.stats_of("-p", "Tell me a tale.", "--raw", "-n", 60)
        self.assertEqual(experts["prefetch"]["bytes"], 0)

    def test_max_fetch_refuses_what_is_expected_to_exceed_it(self):
        result = self.ask("-p", QUESTION, "--max-fetch", "100kB")
        self.assert_refused(result, "--max-fetch", "100 kB", "expected", "MB of experts", program="dsrun")

    def test_max_fetch_ends_a_run_that_comes_to_exceed_it(self):
        _, experts = self.stats_of("-p", QUESTION, "-n", 1)
        prompt_bytes = experts["prefill"]["disk"]["bytes"]
        # Enough for what the prompt is expected to take, too little for a long answer with hardly any slots.
        result = self.ask("-p", QUESTION, "--raw", "-n", 100, "--experts", 8, "--max-fetch", prompt_bytes * 5 // 4)
        self.assertEqual(result.code, 1, str(result))
        self.assertRegex(result.stderr, r"^dsrun: [^\n]*have read [^\n]*--max-fetch allows [^\n]*--experts[^\n]*\n$")
        self.assert_ok(self.ask("-p", QUESTION, "--max-fetch", "1GB"))

    def test_a_wrong_value_is_a_usage_error(self):
        for arguments in (["--max-fetch", "much"], ["--dev", "prefetch=maybe"]):
            result = self.ask("-p", QUESTION, *arguments)
            self.assertEqual(result.code, 2, str(result))
            self.assertIn(arguments[0], result.stderr)


if __name__ == "__main__":
    main()
