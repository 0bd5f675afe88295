"""dsrun on several GPUs, of which the first has the layers and all have experts: in exact mode the CPU's text whatever
each of them holds and whoever computes what is missing, memory of each within its limit, and clear refusals.

On real GPUs it takes two; the emulated machine has as many as a test wants.
"""

import json
import unittest

from common import EndToEnd, main
from test_cuda import CHOICE, EMULATED, VISIBLE, absence
from test_cuda_tiers import EXPERTS, FLOOR, IS_FULL, PROMPT, Tiers, cpu_text, ram_flags

TWO = ("--device", "cuda:0,1", *CHOICE[2:])
# Slots of each GPU, those of the host's memory (None: all), miss=, --mtp.
FEW = ((0, FLOOR, "move", "off"), (6, 30, "auto", "1"), (12, 64, "compute", "off"), (EXPERTS // 2, FLOOR, "move", "1"))
FULL = tuple((vram, ram, miss, mtp) for vram in (0, 6, 40, EXPERTS // 2) for ram in (FLOOR, 64, None)
             for miss in ("move", "compute", "auto") for mtp in ("off", "1"))
NVIDIA_HAS_TWO = "there is no GPU 1"


class Several(Tiers):
    machine = "devices=2"

    def setUp(self):
        super().setUp()
        if EMULATED or absence():
            return
        tried = self.dsrun("plan", self.data(), *TWO)
        if tried.code != 0 and NVIDIA_HAS_TWO in tried.stderr:
            raise unittest.SkipTest("this machine has one GPU")

    def dsrun(self, *arguments):
        env = {**VISIBLE, **({"DSPACK_EMULATED_GPU": self.machine} if EMULATED else {})}
        return self.run_program(*arguments, program="DSPACK_DSRUN", env=env)

    def check_cards(self, stats, vram):
        tier = stats["experts"]["vram"]
        cards = tier["cards"]
        self.assertEqual(len(cards), 2)
        for name in ("slots", "used", "bytes"):
            self.assertEqual(sum(card[name] for card in cards), tier[name], name)
        for name in ("hits", "late", "moved", "computed"):
            for phase in ("prefill", "decode"):
                self.assertEqual(sum(card[phase][name] for card in cards), tier[phase][name], name)
        for card in cards:
            self.assertEqual(card["slots"], vram)
            self.assertLessEqual(card["used"], vram)
            self.assertGreater(card["prefill"]["moved"], 0)  # each has its own experts, and fetches them itself
        plan = stats["memory_plan"]
        for plan_of, used in ((plan["vram"], stats["vram"]), (plan["further_vram"][0], stats["further_vram"][0])):
            self.assertEqual(plan_of["slots"], vram)
            self.assertEqual(plan_of["total"], sum(plan_of["bytes"].values()))
            self.assertLessEqual(plan_of["total"], plan_of["limit"])
            if EMULATED:  # nobody else uses it
                self.assertLessEqual(used["used"], plan_of["total"])

    def run_case(self, case, *arguments):
        vram, ram, miss, mtp = case
        said, stats = self.with_stats(self.data(), *PROMPT, *TWO, "--deterministic", "--vram-experts", vram, "--dev",
                                      "miss=%s" % miss, "--mtp", mtp, *ram_flags(self.data(), ram, mtp), *arguments)
        self.assertEqual(said, cpu_text())
        self.check_bytes(stats)
        self.check_cards(stats, vram)
        return stats


class Text(Several):
    def test_it_is_the_cpus_at_every_size(self):
        for case in FULL if IS_FULL else FEW:
            with self.subTest(case=case):
                stats = self.run_case(case)
                if case[2] == "compute" and case[0] < EXPERTS // 8:
                    self.assertGreater(stats["experts"]["vram"]["decode"]["computed"], 0)

    def test_prefetches_go_to_the_gpu_that_an_expert_belongs_to(self):
        stats = self.run_case((10, 64, "move", "off"), "--dev", "prefetch=on")
        self.assertGreater(sum(card["prefetch"]["experts"] for card in stats["experts"]["vram"]["cards"]), 0)

    def test_what_has_room_on_both_is_read_once_before_the_first_token(self):
        stats = self.run_case((EXPERTS // 2, FLOOR, "move", "off"))
        decode = stats["experts"]["vram"]["decode"]
        self.assertEqual((decode["moved"], decode["evictions"], decode["returned"]), (0, 0, 0))
        self.assertEqual(stats["experts"]["vram"]["used"], EXPERTS)
        self.assertEqual(stats["experts"]["read"], EXPERTS)
        self.assertEqual(stats["experts"]["decode"]["misses"], 0)
        for card in stats["experts"]["vram"]["cards"]:
            self.assertGreater(card["decode"]["hits"], 0)

    def test_other_precisions_run(self):
        for precision in ("bf16", "fp8"):
            with self.subTest(precision):
                said, stats = self.with_stats(self.data(), *PROMPT, *TWO, "--vram-experts", 20, "--precision", precision)
                self.assertTrue(said)
                self.assertEqual(stats["precision"], precision)


class Memory(Several):
    """Two small cards."""
    card_bytes = 10 << 20
    machine = "devices=2,memory_bytes=%d" % card_bytes

    def test_each_keeps_what_has_room_on_it(self):
        if not EMULATED:
            self.skipTest("the memory of a real GPU is what it is; --vram limits a run, and other tests say so")
        said, stats = self.with_stats(self.data(), *PROMPT, *TWO, "--deterministic", "--mtp", "off")
        self.assertEqual(said, cpu_text())
        plan = stats["memory_plan"]
        for card in (plan["vram"], *plan["further_vram"]):
            self.assertLessEqual(card["total"], self.card_bytes)
            self.assertTrue(0 < card["slots"] < EXPERTS, card)


class Refusals(Several):
    def test_what_names_no_gpu(self):
        for name, words in (("cuda:0,0", "names GPU 0 twice"), ("cuda:0,", "is no device"), ("cuda:,1", "is no device")):
            with self.subTest(name):
                done = self.dsrun(self.data(), "-p", "x", "--device", name)
                self.assertEqual(done.code, 2)
                self.assertIn(words, done.stderr)

    def test_a_gpu_that_is_not_there(self):
        done = self.dsrun(self.data(), "-p", "x", "--device", "cuda:0,7", *CHOICE[2:])
        self.assertEqual(done.code, 1)
        self.assertIn("GPU 7", done.stderr)

    def test_a_limit_that_is_too_small_for_a_share(self):
        self.assert_refused(self.dsrun(self.data(), "-p", "x", *TWO, "--vram-experts", 100, "--vram", "3MB"), "--vram",
                            program="dsrun")


class Plan(Several):
    def test_it_says_what_lies_on_each(self):
        told = self.assert_ok(self.dsrun("plan", self.data(), *TWO, "--vram-experts", 40, "--ctx", 256)).stdout
        self.assertIn("a further GPU: ", told)
        self.assertEqual(told.count("40 of 256 (15.6 %)"), 2)
        planned = json.loads(self.assert_ok(self.dsrun("plan", self.data(), *TWO, "--vram-experts", 128, "--ctx", 256,
                                                       "--json")).stdout)
        self.assertEqual(len(planned["memory"]["further_vram"]), 1)
        self.assertEqual([decode["assumption"] for decode in planned["decode"]], ["resident"])

    def test_cards_that_are_supposed(self):
        config = EndToEnd.data("family") / "configs" / "deepseek-v3.json"
        folder = self.scratch / "v3"
        folder.mkdir()
        (folder / "config.json").write_text(config.read_text())
        planned = {}
        for cards in ("80GB", "80GB,80GB", "80GB,40GB,24GB"):
            planned[cards] = json.loads(self.assert_ok(self.dsrun(
                "plan", folder, "--gpu-memory", cards, "--ram", "64GB", "--link-rate", "25GB", "--json")).stdout)
        two = planned["80GB,80GB"]["memory"]
        self.assertGreater(two["further_vram"][0]["slots"], two["vram"]["slots"])  # no layers there
        self.assertEqual(len(planned["80GB,40GB,24GB"]["memory"]["further_vram"]), 2)
        self.assertGreater(planned["80GB,80GB"]["decode"][1]["tokens_per_second"],
                           planned["80GB"]["decode"][1]["tokens_per_second"])


if __name__ == "__main__":
    main()
