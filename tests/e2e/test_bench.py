"""dsrun bench: what it counts agrees with the model's shapes, and its times with each other."""

import json

from checkpoints import packed_tiny
from common import EndToEnd, main

# Each run measures for a fixed time what the machine can do: that takes this much less processor time.
ONE_THREAD = ("--threads", "1")


class Bench(EndToEnd):
    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def bench(self, *arguments):
        result = self.assert_ok(self.dsrun("bench", packed_tiny(), "--device", "cpu", "-o", "json", *arguments))
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def config(self):
        return json.loads((self.data() / "config.json").read_text())

    def multiplications(self, positions):
        """Of one token that sees so many positions, its head included; from the published shapes."""
        c = self.config()
        hidden, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        attention = (hidden * c["q_lora_rank"] + c["q_lora_rank"] * heads * (nope + rope) + hidden * (latent + rope)
                     + latent * heads * (nope + value) + heads * value * hidden)
        attending = positions * heads * (2 * latent + rope)
        expert = 3 * hidden * c["moe_intermediate_size"]
        dense = c["first_k_dense_replace"]
        moe = c["num_hidden_layers"] - dense
        return (c["num_hidden_layers"] * (attention + attending) + dense * 3 * hidden * c["intermediate_size"]
                + moe * (hidden * c["n_routed_experts"] + (c["num_experts_per_tok"] + c["n_shared_experts"]) * expert)
                + hidden * c["vocab_size"])

    def operations(self, test):
        return test["a_token"]["operations"] + test["a_token"]["attention_operations"]

    def test_what_it_counts_is_what_the_shapes_say(self):
        report = self.bench("-p", "8", "-n", "4", "--depth", "0,16", "-r", "2")
        self.assertEqual([test["test"] for test in report["tests"]], ["pp8", "tg4", "pp8 @ d16", "tg4 @ d16"])
        self.assertTrue(0 < report["core_share"] <= 1, report["core_share"])
        for test, first in zip(report["tests"], (None, 1, None, 16)):
            self.assertEqual(len(test["seconds"]), 2)
            speed = test["tokens_per_second"]
            self.assertLessEqual(speed["least"], speed["median"])
            self.assertLessEqual(speed["median"], speed["most"])
            by_stage = test["seconds_by_stage"]
            self.assertAlmostEqual(sum(by_stage.values()), sum(test["seconds"]), delta=0.02 * sum(test["seconds"]))
            for stage in ("attention", "router", "experts", "mlp", "head", "embedding"):
                self.assertGreater(by_stage[stage], 0, stage)
            self.assertGreater(test["floor"]["share"], 0)
            self.assertIn(test["floor"]["bound"], ("memory", "operations"))
            if first is None:
                continue
            wanted = sum(2 * self.multiplications(first + 1 + i) for i in range(4)) / 4
            self.assertAlmostEqual(self.operations(test), wanted, delta=1e-6 * wanted)
        # A position more is a row of the cache more: 5 layers of 96 FP32 values.
        shallow, deep = report["tests"][1]["a_token"], report["tests"][3]["a_token"]
        self.assertEqual(deep["memory_bytes"] - shallow["memory_bytes"], 15 * 5 * 96 * 4)
        self.assertEqual(deep["operations"], shallow["operations"])

    def test_a_depth_that_is_repeated_costs_what_a_computed_one_does(self):
        (test,) = self.bench("-p", "0", "-n", "2", "--depth", "1000", "-r", "2", "--repeat-depth", *ONE_THREAD)["tests"]
        self.assertEqual(test["test"], "tg2 @ d1000")
        wanted = sum(2 * self.multiplications(1001 + i) for i in range(2)) / 2
        self.assertAlmostEqual(self.operations(test), wanted, delta=1e-6 * wanted)
        refused = self.dsrun("bench", packed_tiny(), "--device", "cpu", "--repeat-depth", "--mtp", "1")
        self.assertEqual(refused.code, 2)
        self.assertIn("--repeat-depth and drafts", refused.stderr)

    def test_what_is_fetched_is_counted_and_bounds_and_drafts_are_counted(self):
        report = self.bench("-p", "0", "-n", "12", "-r", "1", "--experts", "16", "--mtp", "1", *ONE_THREAD)
        (test,) = report["tests"]
        self.assertEqual(report["slots"], 16)
        self.assertGreater(test["a_token"]["fetched_bytes"], 0)
        self.assertGreater(report["limits"]["fetched_bytes_per_second"], 0)
        self.assertGreater(test["drafts"]["drafted"], 0)
        self.assertLessEqual(test["drafts"]["accepted"], test["drafts"]["drafted"])

    def test_tables_and_a_text(self):
        text = self.scratch / "text"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
        result = self.assert_ok(self.dsrun("bench", packed_tiny(), "--device", "cpu", "-p", "16", "-n", "2", "-r", "1",
                                           "--text", text))
        self.assertIn("| test | tokens/s | floor | share | bound by |", result.stdout)
        self.assertRegex(result.stdout, r"\| pp16 \| \d+\.\d\d \(")
        self.assertIn("Measured in this run: memory reads", result.stdout)
        text.write_text("short")
        refused = self.dsrun("bench", packed_tiny(), "--device", "cpu", "-p", "64", "--text", text, *ONE_THREAD)
        self.assertEqual(refused.code, 1)
        self.assertIn("fewer than", refused.stderr)

    def test_wrong_usage_is_status_2(self):
        for arguments in (["-p", "0", "-n", "0"], ["-p", "x"], ["-p", "64", "--ctx", "32"], ["-r", "0"], ["-o", "csv"],
                          ["-n", "99999999999"]):
            with self.subTest(arguments=arguments):
                self.assertEqual(self.dsrun("bench", packed_tiny(), *arguments).code, 2)


if __name__ == "__main__":
    main()
