"""dsrun plan: what a run would take and how fast it would be, before anything is loaded."""

import json
import re
import shutil

from checkpoints import packed_tiny
from common import EndToEnd, main

QUESTION = "What is the capital of Spain?"
ONE_THREAD = ("--threads", 1)  # a plan measures for fixed times: this is so much less to do
BUDGET = ("--ctx", 256, "--experts", "25%", *ONE_THREAD)


class Plan(EndToEnd):
    budgeted = {}  # plans of folders with BUDGET, which two cases look at

    def plan(self, place, *arguments):
        return self.run_program("plan", place, *arguments, program="DSPACK_DSRUN")

    def json_plan(self, place, *arguments):
        return json.loads(self.assert_ok(self.plan(place, "--json", *arguments)).stdout)

    def budgeted_plan(self, folder):
        if folder not in self.budgeted:
            self.budgeted[folder] = self.json_plan(folder, *BUDGET)
        return self.budgeted[folder]

    def assert_sensible(self, plan):
        self.assertEqual(plan["memory"]["total"], sum(plan["memory"]["bytes"].values()))
        for decode in plan["decode"]:
            self.assertGreater(decode["tokens_per_second"], 0)
        self.assertGreater(plan["measured"]["read_bytes_per_second"], 0)
        self.assertGreater(plan["prefill"]["seconds"], 0)

    def test_it_says_what_a_run_then_takes(self):
        for folder in (packed_tiny(), packed_tiny("layer"), self.data()):
            with self.subTest(folder=folder):
                planned = self.budgeted_plan(folder)
                self.assert_sensible(planned)
                stats = self.scratch / "stats.json"
                self.assert_ok(self.run_program(folder, "-p", QUESTION, "--stats", stats, *BUDGET,
                                                program="DSPACK_DSRUN"))
                bytes_of = lambda plan: {k: v for k, v in plan["bytes"].items() if k != "process"}  # noqa: E731
                self.assertEqual(bytes_of(planned["memory"]), bytes_of(json.loads(stats.read_text())["memory_plan"]))

    def test_the_text_is_for_people(self):
        said = self.assert_ok(self.plan(packed_tiny(), "--prompt-tokens", 40)).stdout
        for line in ("memory:", "KV cache", "experts", "measured:", "first tokens", "a prompt of 40 tokens"):
            self.assertIn(line, said)

    def test_a_given_hit_rate_takes_the_place_of_assumptions(self):
        plan = self.json_plan(packed_tiny(), *BUDGET, "--dev", "hit-rate=100")
        self.assertEqual([decode["assumption"] for decode in plan["decode"]], ["cold", "given"])
        cold, given = plan["decode"]
        self.assertEqual((given["hit_rate"], given["bytes"]), (1, 0))
        self.assertEqual(cold["bytes"], plan["measured"]["expert_bytes"] * plan["memory"]["experts_per_token"])

    def test_what_does_not_fit_is_refused_with_what_would(self):
        result = self.plan(packed_tiny(), "--ram", "1MB")
        self.assert_refused(result, "--ram 1.00 MB is too little", "needs at least", program="dsrun")

    def test_times_are_remembered(self):
        def plan(*arguments):
            return json.loads(self.assert_ok(self.run_program(
                "plan", packed_tiny(), "--json", *BUDGET, "--dev", "least-share=0", *arguments, program="DSPACK_DSRUN",
                env={"XDG_STATE_HOME": str(self.scratch / "state")})).stdout)

        self.assertNotIn("measured_seconds_ago", plan())
        second = plan()
        self.assertIn("measured_seconds_ago", second)
        self.assertNotIn("core_share", second)  # nothing was measured
        again = plan()
        self.assertEqual((again["measured"], again["decode"]), (second["measured"], second["decode"]))
        self.assertNotIn("measured_seconds_ago", plan("--measure"))
        self.assertNotIn("measured_seconds_ago", plan("--kv-dtype", "bf16"))  # other trials
        kept = self.scratch / "state" / "dspack" / "times"
        self.assertEqual({len(line.split()[0]) for line in kept.read_text().splitlines()}, {64})
        kept.write_bytes(bytes(range(256)) * 1000)
        self.assertNotIn("measured_seconds_ago", plan())

    def test_a_distant_place(self):
        server = self.serve(packed_tiny())
        cache = self.scratch / "cache"
        plan = self.json_plan(server.url, "--cache", cache, *ONE_THREAD)
        self.assert_sensible(plan)
        self.assertEqual(plan["measured"]["tier"], "link")
        # A plan fetches what it times, and no weights that a run would fetch first.
        fetched = {request.path for request in server.log if request.path.endswith(".safetensors")}
        self.assertTrue(fetched)
        self.assertEqual([path for path in fetched if not re.search(r"/experts/", path)], [])
        self.assert_ok(self.run_program(server.url, "--cache", cache, "-p", QUESTION, program="DSPACK_DSRUN"))
        again = [request.path for request in server.log if "/experts/" in request.path]
        self.assertLessEqual(len(again), len(set(again)) + len(fetched))

    def config_alone(self, name="tiny-v3"):
        folder = self.scratch / "config-alone"
        folder.mkdir(exist_ok=True)
        released = self.data("family") / "configs" / (name + ".json")
        shutil.copy(self.data() / "config.json" if name == "tiny-v3" else released, folder / "config.json")
        return folder

    def test_a_folder_with_config_json_alone(self):
        planned = self.json_plan(self.config_alone(), *BUDGET)
        there = self.budgeted_plan(self.data())
        self.assertEqual((planned["sizes"], there["sizes"]), ("computed", "catalogue"))
        self.assertEqual((planned["origin"]["read"], there["origin"]["read"]), ("assumed", "measured"))
        for part in ("head", "kv_cache", "activations", "layers"):
            self.assertEqual(planned["memory"]["bytes"][part], there["memory"]["bytes"][part], part)
        for number in ("experts", "experts_per_token", "slots"):
            self.assertEqual(planned["memory"][number], there["memory"][number], number)
        self.assertAlmostEqual(planned["measured"]["read_bytes_per_second"], 3e9, delta=1)
        self.assert_sensible(planned)
        text = self.assert_ok(self.plan(self.config_alone(), "--disk-rate", "7GB", *ONE_THREAD)).stdout
        self.assertIn("sizes: computed from config.json; the weights themselves were not looked at\n", text)
        self.assertRegex(text, r"\n  disk +7\.00 GB/s +given; 4 experts of ")
        run = self.run_program(self.config_alone(), "--tokens", "1", program="DSPACK_DSRUN")
        self.assert_refused(run, "config-alone", program="dsrun")

    def test_of_a_repository_on_the_hub_config_json_alone_is_read(self):
        hub = self.serve_hub()
        hub.add("tiny-org/tiny-v3", self.data())
        result = self.run_program("plan", "tiny-org/tiny-v3", "--config-only", "--json", "--network-rate", "1Gbit",
                                  *ONE_THREAD, env={"HF_ENDPOINT": hub.url}, program="DSPACK_DSRUN")
        plan = json.loads(self.assert_ok(result).stdout)
        self.assertEqual((plan["sizes"], plan["measured"]["tier"], plan["origin"]["read"]),
                         ("computed", "link", "given"))
        self.assertAlmostEqual(plan["measured"]["read_bytes_per_second"], 125e6, delta=1)
        asked = {entry.path for entry in hub.log.entries()}
        self.assertEqual([path for path in asked if "safetensors" in path], [])
        self.assertEqual(plan["memory"]["experts"], 256)

    def test_a_release_by_its_config_json(self):
        plan = self.json_plan(self.config_alone("deepseek-v3"), "--ram", "64GB", "--disk-rate", "7GB",
                              "--prompt-tokens", 1, *ONE_THREAD)
        self.assertEqual(plan["memory"]["experts"], 58 * 256)
        self.assertEqual(plan["memory"]["experts_per_token"], 464)
        self.assertEqual(plan["measured"]["expert_bytes"], 44_050_944)

    def test_a_gpu_that_is_not_there(self):
        folder = self.config_alone("deepseek-v3")
        plan = self.json_plan(folder, "--gpu-memory", "80GB", "--ram", "64GB", "--disk-rate", "7GB")
        vram = plan["memory"]["vram"]
        self.assertEqual((vram["card"], vram["free"]), (80_000_000_000, 80_000_000_000))
        self.assertLessEqual(vram["total"], 80_000_000_000)
        self.assertEqual(plan["origin"], {"memory": "assumed", "link": "assumed", "read": "given", "cpu": "measured"})
        rates = (plan["measured"]["memory_bytes_per_second"], plan["measured"]["link"]["bytes_per_second"])
        self.assertEqual([round(rate / 1e9) for rate in rates], [1000, 25])
        faster = self.json_plan(folder, "--gpu-memory", "80GB", "--gpu-rate", "3.35TB", "--link-rate", "50GB",
                                "--ram", "64GB", "--disk-rate", "7GB")
        self.assertEqual(faster["origin"], {"memory": "given", "link": "given", "read": "given", "cpu": "measured"})
        for slow, fast in zip(plan["decode"], faster["decode"]):
            self.assertGreater(fast["tokens_per_second"], slow["tokens_per_second"])
        self.assertIn("at least: what arithmetic takes is not known",
                      self.assert_ok(self.plan(packed_tiny(), "--gpu-memory", "1GB")).stdout)
        all_of_it = self.json_plan(packed_tiny(), "--gpu-memory", "1GB")
        self.assertIn("loading_seconds", all_of_it)
        streamed = self.json_plan(folder, "--gpu-memory", "8GB", "--ram", "64GB")
        vram = streamed["memory"]["vram"]
        self.assertTrue(0 < len(vram["streamed_layers"]) < 61, vram)
        for decode in streamed["decode"]:
            self.assertGreater(decode["link_bytes"], vram["streamed_bytes"])
        little = self.plan(folder, "--gpu-memory", "3GB")
        self.assert_refused(little, "a GPU of 3.00 GB, supposed", "what every token needs", program="dsrun")

    def test_a_memory_that_is_not_there(self):
        folder = self.config_alone("deepseek-v3")
        options = ("--ram", "2TB", "--disk-rate", "7GB", "--prompt-tokens", 1, *ONE_THREAD)
        slow, fast = (self.json_plan(folder, "--memory-rate", rate, *options) for rate in ("100GB", "200GB"))
        for plan, rate in ((slow, 100e9), (fast, 200e9)):
            self.assertEqual(plan["origin"]["memory"], "given")
            self.assertAlmostEqual(plan["measured"]["memory_bytes_per_second"], rate, delta=1e-3 * rate)
        self.assertAlmostEqual(fast["decode"][-1]["tokens_per_second"], 2 * slow["decode"][-1]["tokens_per_second"],
                               delta=0.02 * fast["decode"][-1]["tokens_per_second"])

    def test_what_share_of_the_processor_it_got_is_said(self):
        plan = self.json_plan(packed_tiny(), *ONE_THREAD)
        self.assertTrue(0 < plan["core_share"] <= 1, plan["core_share"])
        self.assertRegex(self.assert_ok(self.plan(packed_tiny(), *ONE_THREAD)).stdout, r"processor time +\d+ %")

    def test_suppositions_that_make_no_sense_are_wrong_usage(self):
        folder = self.config_alone()
        for arguments, needle in ((["--device", "cpu", "--gpu-memory", "24GB"], "--gpu-memory supposes a GPU"),
                                  (["--gpu-memory", "24"], "did you mean 24GB?"),
                                  (["--disk-rate", "3"], "did you mean 3GB?"),
                                  (["--gpu-rate", "1TB"], "--gpu-memory"), (["--config-only", "--mtp", "1"], "--mtp"),
                                  (["--disk-rate", "3GB", "--network-rate", "1GB"], "--network-rate")):
            with self.subTest(arguments):
                result = self.plan(folder, *arguments)
                self.assertEqual((result.code, result.stdout), (2, ""), str(result))
                self.assertIn(needle, result.stderr)

    def test_what_config_json_does_not_tell_is_not_guessed(self):
        folder = self.config_alone()
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True,
                                         "desc_act": False}
        (folder / "config.json").write_text(json.dumps(config))
        self.assert_refused(self.plan(folder), "quantization_config", "name a place that has them", program="dsrun")

    def test_a_place_that_is_not_there(self):
        self.assert_refused(self.plan("http://127.0.0.1:9/x"), "127.0.0.1:9", program="dsrun")
        self.assert_refused(self.plan(self.scratch), "config.json", program="dsrun")


if __name__ == "__main__":
    main()
