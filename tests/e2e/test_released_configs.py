"""The config.json of released models, of this family and near it: accepted or refused as a table says, with the reason.

Acceptance is seen by a plan that has too little memory: it has read config.json and computed every size, but has
measured nothing. tests/runtime/config_family_test.cpp reads what the accepted ones mean."""

import json
import shutil

from common import EndToEnd, main

# Files of tests/data/family/configs.
ACCEPTED = (
    "deepseek-r1", "deepseek-v2-lite-chat", "deepseek-v2.5-236b", "deepseek-v3", "deepseek-v3-bf16", "deepseek-v3.1",
    "deepseek-v3.2", "deepseek-v3.2-exp", "deepseek-v4-flash", "deepseek-v4-flash-0731", "deepseek-v4-pro",
    "deepseek-v4-pro-0813", "glm-4.7-flash", "glm-5", "glm-5.1", "glm-5.2", "glm-5.2-fp8",
    "kimi-k2-instruct",
    "kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code", "moonlight-16b-a3b")
UNRELEASED = ("glm-5.2-by-frequency", "glm-5.2-by-pattern", "mistral-small-4")

FAMILY = "this program runs deepseek_v4, deepseek_v3, deepseek_v2, deepseek_v32, kimi_k2, glm4_moe_lite, glm_moe_dsa, mistral4"
WRAPPERS = 'with a "text_config" this program runs kimi_k25, kimi_vl, kimi_k2, mistral3'

# Files of tests/data/family/configs-refused: the model_type that is named, and what the program offers instead.
REFUSED = {
    "deepseek-ocr": ("deepseek_vl_v2", FAMILY),
    "gpt-oss-20b": ("gpt_oss", FAMILY),
    "kimi-k3": ("kimi_k3", WRAPPERS),
    "kimi-linear-48b-a3b": ("kimi_linear", FAMILY),
    "mimo-v2.5-pro": ("mimo_v2", FAMILY),
    "minimax-m2.7": ("minimax_m2", FAMILY),
    "qwen3-30b-a3b-2507": ("qwen3_moe", FAMILY),
    "qwen3-next-80b-a3b": ("qwen3_next", FAMILY),
    "qwen3.5-397b-a17b": ("qwen3_5_moe", WRAPPERS),
}


class ReleasedConfigs(EndToEnd):
    def folder(self, kind, name):
        folder = self.scratch / name
        folder.mkdir()
        shutil.copy(self.data("family") / kind / (name + ".json"), folder / "config.json")
        return folder

    def dsrun(self, *arguments):
        return self.run_program(*arguments, program="DSPACK_DSRUN")

    def assert_files(self, kind, names):
        self.assertEqual(sorted(path.name for path in (self.data("family") / kind).iterdir()),
                         sorted(name + ".json" for name in names))

    def test_the_table_has_every_file_and_at_least_26_released_ones(self):
        self.assert_files("configs", ACCEPTED + UNRELEASED)
        self.assert_files("configs-refused", REFUSED)
        self.assertGreaterEqual(len(ACCEPTED) + len(REFUSED), 26)

    def test_accepted(self):
        for name in ACCEPTED + UNRELEASED:
            with self.subTest(name):
                plan = self.dsrun("plan", "--config-only", "--layers", 0, "--ram", "1MB", self.folder("configs", name))
                self.assert_refused(plan, "--ram 1.00 MB is too little; this run needs at least ", program="dsrun")

    def test_refused_by_the_name_of_the_model_type(self):
        for name, (model_type, offer) in REFUSED.items():
            with self.subTest(name):
                folder = self.folder("configs-refused", name)
                for arguments in (("plan", "--config-only", folder), (folder, "--tokens", 1), ("serve", folder)):
                    self.assert_refused(self.dsrun(*arguments), 'config.json: "model_type" is "%s"; %s' %
                                        (model_type, offer), program="dsrun")

    def test_a_wrapped_model_without_what_it_wraps(self):
        folder = self.folder("configs", "kimi-k2.5")
        text = json.loads((folder / "config.json").read_text())["text_config"]
        (folder / "config.json").write_text(json.dumps({**text, "model_type": "kimi_k25"}))
        self.assert_refused(self.dsrun("plan", "--config-only", folder), "kimi_k25", 'with a "text_config", which is missing',
                            program="dsrun")


if __name__ == "__main__":
    main()
