"""dsrun on a GPU whose memory holds some of the experts: in exact mode the CPU's text and numbers at every size of either
tier, whoever computes what is missing, and statistics that add up.

DSPACK_TEST_TIERS: full (every combination; the default on a real GPU) or few (the default on the emulated one, of whose
time a run takes seconds).
"""

import functools
import itertools
import json
import os
import re
import subprocess

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment
from test_cuda import ANSWER, CHOICE, EMULATED, QUESTION, VISIBLE, OnGpu

SWEEP = os.environ.get("DSPACK_TEST_TIERS") or ("few" if EMULATED else "full")
IS_FULL = SWEEP == "full"
ANSWER_TOKENS = 32 if IS_FULL else 5
ROWS = 40 if IS_FULL else 10
CHUNK = 7
PROMPT = ("-p", "Once upon a time", "--raw", "-n", ANSWER_TOKENS, "--ctx", 256, "--temp", 0)
TOP_K, MOE_LAYERS, EXPERTS = 4, 4, 256  # of tiny-v3, without its MTP module
WINDOW = 2  # slots through which experts pass that are not kept
MISSES = ("move", "compute", "auto")
DRAFTS = ("off", "1")
# The GPU's slots, those of the host's memory (None: all), miss=, --mtp.
FLOOR = "floor"
FEW = ((0, FLOOR, "move", "off"), (40, 30, "auto", "1"), (12, 64, "compute", "off"), (EXPERTS - 1, None, "compute", "1"))
FULL = tuple(itertools.product((0, 1, 40, 128, EXPERTS - 1), (FLOOR, 30, 128, None), MISSES, DRAFTS))
FAMILY = ("f16", "f32", "fp8-channel", "fp8-tensor", "glm-4.7-flash", "kimi-k2", "v2-lite", "v2.5", "v3", "v3.1-e8m0")


def outcome_of(*arguments):
    command = [path_from_environment("DSPACK_DSRUN"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=clean_environment("/nonexistent", VISIBLE), check=False)


@functools.lru_cache(maxsize=None)
def cpu_text():
    """Drafts do not change it."""
    done = outcome_of(EndToEnd.data(), *PROMPT, "--device", "cpu", "--precision", "exact")
    if done.returncode != 0:
        raise AssertionError("the CPU says nothing: %s" % done.stderr)
    return done.stdout.decode()


@functools.lru_cache(maxsize=None)
def least_ram(folder, mtp):
    """Slots of the host's memory without which a run is refused."""
    done = outcome_of(folder, "-p", "x", *CHOICE, "--vram-experts", 0, "--experts", 1, "--mtp", mtp)
    return int(re.search(rb"allow at least (\d+)", done.stderr).group(1))


def ram_flags(folder, ram, mtp):
    if ram is None:
        return ()
    return "--experts", least_ram(folder, mtp) if ram == FLOOR else ram


class Tiers(OnGpu):
    def check_size(self, stats, vram, ram, miss):
        tier = stats["experts"]["vram"]
        self.assertEqual(tier["slots"], vram)
        self.assertLessEqual(tier["used"], vram)
        self.assertEqual((tier["miss"], tier["deterministic"]), (miss, True))
        if ram:
            self.assertEqual(stats["experts"]["slots"], ram[1])

    def check_bytes(self, stats):
        """Of both tiers, in either phase."""
        tier = stats["experts"]["vram"]
        expert_bytes = tier["bytes"] // (tier["slots"] + WINDOW * len(tier.get("cards", [tier])))
        for phase in ("prefill", "decode"):
            counts, host = tier[phase], stats["experts"][phase]
            # What the GPU lacks is asked of the host's memory, each expert once.
            self.assertEqual(counts["moved"] + counts["computed"], host["hits"] + host["late"] + host["misses"], phase)
            self.assertEqual(counts["moved_bytes"], counts["moved"] * expert_bytes)
            self.assertEqual(counts["computed_bytes"], counts["computed"] * expert_bytes)
            self.assertEqual(counts["promoted_bytes"], counts["promoted"] * expert_bytes)
            self.assertLessEqual(counts["promoted"], counts["computed"])
            self.assertGreaterEqual(counts["waiting_seconds"], 0)
        self.assertEqual(tier["prefill"]["computed"], 0)
        self.assertGreater(tier["prefill"]["moved"], 0)
        self.assertGreater(tier["link_bytes_per_second"], 0)

    def check_counts(self, stats, vram, miss, mtp):
        tier = stats["experts"]["vram"]
        decode = tier["decode"]
        demands = decode["hits"] + decode["late"] + decode["moved"] + decode["computed"]
        if mtp == "off":
            self.assertEqual(demands, stats["experts"]["decode"]["passes"] * TOP_K * MOE_LAYERS)
        if miss != "compute":  # auto: deterministic, so it copies
            self.assertEqual(decode["computed"], 0)
        elif vram < EXPERTS // 4:
            self.assertGreater(decode["computed"], 0)
        if vram == 0:
            self.assertEqual(decode["hits"] + decode["late"] + tier["used"], 0)

    def check_run(self, place, case, *arguments):
        vram, ram, miss, mtp = case
        ram = ram_flags(self.data(), ram, mtp)
        said, stats = self.with_stats(place, *PROMPT, *CHOICE, "--deterministic", "--vram-experts", vram, "--dev", "miss=%s" % miss,
                                      "--mtp", mtp, *ram, *arguments)
        self.assertEqual(said, cpu_text())
        self.assertFalse(stats["device"].startswith("cpu "), stats["device"])
        self.check_size(stats, vram, ram, miss)
        self.check_bytes(stats)
        self.check_counts(stats, vram, miss, mtp)
        return stats


class Text(Tiers):
    def test_it_is_the_cpus_at_every_size(self):
        for case in FULL if IS_FULL else FEW:
            with self.subTest(case=case):
                self.check_run(self.data(), case)

    def test_a_distant_model(self):
        origins = (self.data(), packed_tiny()) if IS_FULL else (packed_tiny(),)
        cases = ((0, FLOOR, "move", "off"), (40, 30, "compute", "1"), (128, None, "auto", "1"))
        for number, origin in enumerate(origins):
            server = self.serve(origin)
            for case in cases if IS_FULL else cases[1:2]:
                with self.subTest(origin=origin.name, case=case):
                    cache = self.scratch / ("cache-%d" % number)
                    stats = self.check_run(server.url, case, "--cache", cache)
                    self.assertIn("network", stats)

    def test_rates_of_the_run_decide_who_computes_and_the_answer_stays(self):
        said, stats = self.with_stats(self.data(), "-p", QUESTION, *CHOICE, "--vram-experts", 20, "--experts", "50%")
        self.assertEqual(said, ANSWER)
        tier = stats["experts"]["vram"]
        self.assertEqual((tier["slots"], tier["miss"], tier["deterministic"]), (20, "auto", False))
        self.check_bytes(stats)

    def test_a_card_that_is_too_small_for_all_holds_what_it_can(self):
        planned = self.assert_ok(self.dsrun("plan", self.data(), "--json", "--ctx", 256, "--vram-experts", 40, *CHOICE))
        vram = json.loads(planned.stdout)["memory"]["vram"]
        # Prompts are cut into as long pieces as memory allows; without those, some experts have room, and not all.
        room = vram["total"] - vram["bytes"]["activations"] - vram["bytes"]["workspace"] + (3 << 20)
        for device in ("cuda", "auto") if IS_FULL else ("auto",):
            with self.subTest(device=device):
                said, stats = self.with_stats(self.data(), "-p", QUESTION, "--ctx", 256, "--device", device, *CHOICE[2:],
                                              "--vram", room)
                self.assertEqual(said, ANSWER)
                self.assertFalse(stats["device"].startswith("cpu "), stats["device"])
                self.assertTrue(0 < stats["experts"]["vram"]["slots"] < EXPERTS, stats["experts"]["vram"])
                self.check_bytes(stats)

    def test_more_than_there_is_memory_for_is_refused(self):
        self.assert_refused(self.dsrun(self.data(), "-p", "x", *CHOICE, "--vram-experts", 200, "--vram", "20MB"),
                            "--vram", program="dsrun")


class StreamedLayers(Tiers):
    """A card without room for what every token needs: layers are copied there in every pass."""

    def floor(self, *flags):
        """Bytes below which a run with these flags is refused."""
        done = outcome_of(self.data(), *PROMPT, *CHOICE, *flags)
        self.assertEqual(done.returncode, 1, done.stderr)
        return int(re.search(rb"at least (\d+) bytes", done.stderr).group(1))

    def run_with(self, *flags):
        return self.plan_of(*self.with_stats(self.data(), *PROMPT, *CHOICE, "--deterministic", *flags))

    def plan_of(self, said, stats):
        self.assertEqual(said, cpu_text())
        plan = stats["memory_plan"]
        self.assertEqual(plan["vram"]["total"], sum(plan["vram"]["bytes"].values()))
        self.assertLessEqual(plan["vram"]["total"], plan["vram"]["limit"])
        return plan

    def test_the_text_is_the_cpus_with_as_few_layers_as_fit(self):
        least = self.floor("--vram", "1MB")
        plan = self.run_with("--vram", least)
        self.assertEqual(plan["vram"]["streamed_layers"], [0, 1, 2, 3, 4])
        self.assertEqual((plan["vram"]["bytes"]["layers"], plan["chunk_rows"]), (0, 1))
        # What is copied in every pass stays in the host's memory.
        self.assertEqual(plan["streamed_layers"], [])
        self.assertEqual(plan["bytes"]["layers"], plan["vram"]["streamed_bytes"])
        more = self.run_with("--vram", least + 600_000)
        self.assertTrue(0 < len(more["vram"]["streamed_layers"]) < 5, more)
        self.assertGreater(more["vram"]["bytes"]["layers"], 0)
        self.assertEqual(more["bytes"]["layers"], more["vram"]["streamed_bytes"])

    def test_what_no_memory_has_room_for_is_read_in_every_pass(self):
        vram = ("--vram", self.floor("--vram", "1MB"))
        # All layers take 740 kB more than the least, of which the process itself takes now more, now less: by up to half
        # a megabyte and, beside other work, more. Each outcome says in which direction the next limit lies.
        path = self.scratch / "stats.json"
        ram = self.floor(*vram, "--ram", "1MB") + 370_000
        for _ in range(20):
            done = self.dsrun(self.data(), *PROMPT, *CHOICE, "--deterministic", *vram, "--ram", ram, "--stats", path)
            if done.code != 0:
                ram = int(re.search(r"at least (\d+) bytes", done.stderr).group(1)) + 370_000
                continue
            plan = self.plan_of(done.stdout, json.loads(path.read_text()))
            if plan["streamed_layers"]:
                break
            ram -= 150_000
        else:
            self.fail("none of 20 limits left some layers without room; the last was %d bytes" % ram)
        self.assertGreater(plan["bytes"]["layer_buffers"], 0)

    def test_the_plan_says_what_it_costs(self):
        vram = ("--vram", self.floor("--vram", "1MB"))
        told = self.assert_ok(self.dsrun("plan", self.data(), "--ctx", 256, *CHOICE, *vram))
        self.assertIn("5 layers, ", told.stdout)
        self.assertIn("are copied there in every pass", told.stdout)
        planned = json.loads(self.assert_ok(self.dsrun("plan", self.data(), "--ctx", 256, "--json", *CHOICE, *vram)).stdout)
        for decode in planned["decode"]:
            self.assertGreaterEqual(decode["link_bytes"], planned["memory"]["vram"]["streamed_bytes"])

    def test_nobody_who_leaves_the_choice_gets_it(self):
        said, stats = self.with_stats(self.data(), *PROMPT, "--device", "auto", *CHOICE[2:], "--vram", self.floor("--vram", "1MB"))
        self.assertEqual(said, cpu_text())
        self.assertTrue(stats["device"].startswith("cpu "), stats["device"])


class Numbers(Tiers):
    def test_exact_logits_are_the_cpus_for_every_stored_form(self):
        tokens = [(7 * i * i + 3 * i) % 60 for i in range(ROWS)]
        for name in FAMILY if IS_FULL else ("v2-lite", "v3.1-e8m0"):
            folder = self.data("family") / name
            expected = self.logits(folder, tokens, "--device", "cpu")
            for vram, ram in ((0, FLOOR), (3, FLOOR), (5, None)) if IS_FULL else ((3, FLOOR),):
                with self.subTest(name, vram=vram, ram=ram):
                    self.assert_close(self.logits(folder, tokens, *CHOICE, "--vram-experts", vram, "--dev", "chunk=%s" % CHUNK,
                                                  *ram_flags(folder, ram, "off")), expected)


if __name__ == "__main__":
    if SWEEP not in ("full", "few"):
        raise SystemExit("DSPACK_TEST_TIERS is %s; it is full or few" % SWEEP)
    main()
