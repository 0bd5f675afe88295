"""Running the small model: the packed repository says what the ordinary folder says, and opens only what it needs."""

import array
import json
import shutil

import safetensors_io
from checkpoints import packed_tiny
from common import INDEX, EndToEnd, flip_bit, main

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
PROMPTS = [QUESTION, "My name is Anna.", "Tell me a tale.", "Which is bigger, 31 or 17?", "\u00e4\u00f6\u00fc \U0001f600 ?!"]
GOLDENS = json.loads((EndToEnd.data("tiny-v3-golden") / "prompts.json").read_text(encoding="utf-8"))["prompts"]
TOKENS = next(golden["token_ids"] for golden in GOLDENS if golden["user"] == QUESTION)  # in its chat template


class Dsrun(EndToEnd):
    def ask(self, folder, prompt, *arguments, **options):
        return self.run_program(folder, "-p", prompt, *arguments, program="DSPACK_DSRUN", **options)

    def stats_of(self, folder, prompt, *arguments):
        path = self.scratch / "stats.json"
        result = self.assert_ok(self.ask(folder, prompt, "--stats", path, *arguments))
        return result.stdout, json.loads(path.read_text())

    def assert_dsrun_refuses(self, result, *needles):
        self.assert_refused(result, *needles, program="dsrun")

    def copy_packed(self, name="packed"):
        return shutil.copytree(packed_tiny(), self.scratch / name)


class Answers(Dsrun):
    def test_packed_and_ordinary_folders_say_the_same(self):
        self.assertEqual(self.assert_ok(self.ask(packed_tiny(), QUESTION)).stdout, ANSWER)
        for prompt in PROMPTS:
            for more in ([], ["--raw", "-n", "20"], ["--temp", "0.8", "--top-p", "0.9", "--seed", "5", "-n", "30"]):
                said = [self.assert_ok(self.ask(folder, prompt, *more)).stdout for folder in (self.data(), packed_tiny())]
                self.assertEqual(said[0], said[1], prompt)
                self.assertTrue(said[0].strip(), prompt)

    def test_threads_and_instruction_sets_do_not_change_the_text(self):
        for more in (["--threads", 1], ["--threads", 2], ["--threads", 7], ["--dev", "cpu=scalar"]):
            self.assertEqual(self.assert_ok(self.ask(packed_tiny(), QUESTION, *more)).stdout, ANSWER)

    def test_the_answer_has_at_most_n_tokens(self):
        for count in (1, 3):
            _, stats = self.stats_of(packed_tiny(), QUESTION, "-n", count)
            self.assertLessEqual(stats["decode"]["tokens"], count)

    def test_waiting_for_experts_is_a_stage_of_its_own(self):
        _, stats = self.stats_of(packed_tiny(), QUESTION, "--experts", "16")
        for phase in ("prefill", "decode"):
            waiting, stages = stats["experts"][phase]["waiting_seconds"], stats[phase]["seconds_by_stage"]
            self.assertGreater(waiting, 0)
            self.assertGreaterEqual(stages["waiting"], 0.999 * waiting)
            self.assertLessEqual(stages["experts"], stats[phase]["seconds"] - waiting)

    def test_seeds_repeat_and_differ(self):
        said = [self.assert_ok(self.ask(packed_tiny(), "Tell me a tale.", "--temp", 2, "--seed", seed, "-n", 40)).stdout
                for seed in (1, 1, 2)]
        self.assertEqual(said[0], said[1])
        self.assertNotEqual(said[0], said[2])


class Drafts(Dsrun):
    def test_the_text_does_not_depend_on_drafts(self):
        for prompt in PROMPTS[:3]:
            said = self.assert_ok(self.ask(self.data(), prompt)).stdout
            for more in (["1"], ["3"], ["auto"], ["2", "--dev", "mtp-hidden=pre-norm"]):
                self.assertEqual(self.assert_ok(self.ask(packed_tiny(), prompt, "--mtp", *more)).stdout, said)

    def test_stats_say_what_drafting_did_and_took(self):
        said, plain = self.stats_of(packed_tiny(), QUESTION)
        self.assertNotIn("mtp", plain)
        for folder in (self.data(), packed_tiny()):
            text, stats = self.stats_of(folder, QUESTION, "--mtp", "2")
            mtp = stats["mtp"]
            self.assertEqual(text, said)
            self.assertEqual(stats["decode"]["tokens"], plain["decode"]["tokens"])
            self.assertEqual(mtp["drafts"], 2)
            self.assertEqual(mtp["hidden"], "post-norm")
            self.assertGreater(mtp["accepted"], 0)
            self.assertEqual(mtp["accepted"], sum(place["stood"] for place in mtp["acceptance_by_position"]))
            self.assertGreater(mtp["tokens_per_pass"], 1.5)
            self.assertLess(mtp["passes"], stats["decode"]["tokens"])
            self.assertTrue(mtp["shares_head"])
            # A packed repository knows by digests that the copy of the embedding is one; a plain folder reads its rows.
            self.assertEqual(mtp["shares_embedding"], folder == packed_tiny())
            for what in ("weights", "kv_cache", "scratch"):
                self.assertEqual(stats["memory_bytes"][what], plain["memory_bytes"][what] + mtp["memory_bytes"][what])
            self.assertEqual(stats["bytes_read"]["always_needed"],
                             plain["bytes_read"]["always_needed"] + mtp["bytes_read"]["weights"])
            self.assertGreater(mtp["bytes_read"]["experts"], 0)
            self.assertEqual(max(layer["layer"] for layer in stats["experts"]["layers"]), 5)

    def test_token_ids_are_drafted_too(self):
        path = self.scratch / "stats.json"
        said = [self.assert_ok(self.run_program(packed_tiny(), "--tokens", "0,1105,422,330", "-n", "12", "--stats", path,
                                                *mtp, program="DSPACK_DSRUN")).stdout for mtp in ((), ("--mtp", "1"))]
        self.assertEqual(*said)
        self.assertGreater(json.loads(path.read_text())["mtp"]["drafted"], 0)

    def test_stats_hold_decoding_against_the_least_it_could_take(self):
        _, stats = self.stats_of(packed_tiny(), QUESTION)
        bound = stats["experts"]["decode_bound"]
        self.assertGreaterEqual(bound["ratio"], 1)
        self.assertLess(bound["outside_of_experts"] + bound["compute"], stats["decode"]["seconds"])

    def test_a_model_without_the_module_says_so(self):
        folder = shutil.copytree(self.data(), self.scratch / "plain")
        config = json.loads((folder / "config.json").read_text())
        config["num_nextn_predict_layers"] = 0
        (folder / "config.json").write_text(json.dumps(config))
        self.assert_dsrun_refuses(self.ask(folder, QUESTION, "--mtp", "1"), "num_nextn_predict_layers", "--mtp")
        for mode in ("auto", "off"):
            said, stats = self.stats_of(folder, QUESTION, "--mtp", mode)
            self.assertEqual(said, ANSWER)
            self.assertNotIn("mtp", stats)


class OpenedFiles(Dsrun):
    def experts(self, folder, layers):
        return {str(path.relative_to(folder)) for layer in layers
                for path in (folder / "model/layers" / ("%03d" % layer) / "experts").glob("*.safetensors")}

    def test_what_stats_do_not_name_is_not_needed(self):
        packed = self.copy_packed()
        said, stats = self.stats_of(packed, QUESTION)
        opened = {file for layer in stats["experts"]["layers"] for file in layer["opened_files"]}
        present = self.experts(packed, range(1, 6))
        needed = self.experts(packed, range(1, 5))  # all but the MTP module's
        self.assertEqual(stats["experts"]["opened_files"], len(opened))
        self.assertEqual(stats["experts"]["files"], len(needed))
        self.assertLessEqual(opened, needed)
        self.assertGreater(len(opened), 0)
        self.assertLessEqual(len(opened), 0.7 * len(needed), "at least 30 % of the experts stay closed")
        for path in present - opened:  # every file is looked for, and these have nothing to be read
            (packed / path).unlink()
            (packed / path).touch()
        self.assertEqual(self.stats_of(packed, QUESTION)[0], said)

    def test_each_file_that_stats_name_is_needed(self):
        packed = self.copy_packed()
        _, stats = self.stats_of(packed, QUESTION)
        for layer in stats["experts"]["layers"]:
            path = layer["opened_files"][-1]
            hidden = packed / (path + ".hidden")
            (packed / path).rename(hidden)
            result = self.ask(packed, QUESTION)
            self.assertEqual(result.code, 1, str(result))
            self.assertRegex(result.stderr, r"^dsrun: [^\n]*%s[^\n]*\n$" % path)
            hidden.rename(packed / path)

    def test_one_token_reads_little(self):
        _, stats = self.stats_of(packed_tiny(), "Hello", "--raw", "-n", 1)
        total = sum(path.stat().st_size for path in packed_tiny().rglob("*.safetensors"))
        self.assertLess(stats["bytes_read"]["total"], total / 4)


class Routes(Dsrun):
    def replay(self, *arguments):
        return self.run_program("replay", *arguments, program="DSPACK_DSRUN")

    def test_a_run_is_recorded_and_replayed(self):
        trace = self.scratch / "routes.jsonl"
        recorded = self.ask(packed_tiny(), QUESTION, "--trace", trace, "--dev", "policy=lru")
        self.assertEqual(self.assert_ok(recorded).stdout, ANSWER)
        header, *lines = [json.loads(line) for line in trace.read_text().splitlines()]
        self.assertEqual(header["format"], "dspack-routes")
        self.assertEqual([shape["experts"] for shape in header["layers"]], [64] * len(header["layers"]))
        self.assertEqual({line["layer"] for line in lines}, {1, 2, 3, 4})
        self.assertEqual(lines[0]["phase"], "prefill")
        self.assertEqual(lines[-1]["phase"], "decode")
        answer = self.assert_ok(self.replay(trace, "--slots", "25%,50%,100%", "--json")).stdout
        result = json.loads(answer)
        self.assertEqual(result["floor_slots"], header["top_k"])
        for entry in result["results"]:
            fewest = entry["policies"][-1]
            self.assertEqual(fewest["policy"], "optimum")
            for policy in entry["policies"]:
                self.assertGreaterEqual(policy["prefill"]["misses"] + policy["decode"]["misses"],
                                        fewest["prefill"]["misses"] + fewest["decode"]["misses"], policy)
        table = self.assert_ok(self.replay(trace, "--slots", "25%")).stdout
        self.assertRegex(table, r"\n  optimum +[0-9.]+ +[0-9.]+ ")

    def test_what_is_no_trace(self):
        bad = self.scratch / "bad.jsonl"
        bad.write_text("{}\n")
        for arguments, code, needle in (((bad, "--slots", "4"), 1, "bad.jsonl: line 1: "),
                                        ((bad,), 2, "--slots"),
                                        ((bad, "--slots", "0"), 2, "0 is no number of slots"),
                                        ((bad, "--slots", "4", "--dev", "policy=mru"), 2, "mru")):
            with self.subTest(arguments):
                result = self.replay(*arguments)
                self.assertEqual(result.code, code, str(result))
                self.assertIn(needle, result.stderr)


class Logits(Dsrun):
    def logits(self, folder, *arguments, tokens=TOKENS):
        path = self.scratch / "logits.safetensors"
        self.assert_ok(self.run_program("logits", folder, "--tokens", ",".join(map(str, tokens)), "--out", path, *arguments,
                                        program="DSPACK_DSRUN"))
        return path.read_bytes()

    def test_threads_chunks_and_packing_change_no_bit(self):
        tokens = [0, *range(100, 160)]
        wanted = self.logits(self.data(), "--threads", 1, tokens=tokens)
        dtype, shape, _ = safetensors_io.parse(wanted)[0]["logits"]
        self.assertEqual((dtype, shape), ("F32", [len(tokens), 1152]))
        for folder in (self.data(), packed_tiny()):
            for more in (["--threads", 2], ["--threads", 5], *[["--dev", "chunk=%s" % chunk] for chunk in (1, 2, 7, 60, 61, 100)]):
                self.assertEqual(self.logits(folder, *more, tokens=tokens), wanted, more)

    def test_rows_do_not_depend_on_what_follows(self):
        wanted = safetensors_io.parse(self.logits(packed_tiny()))[0]["logits"][2]
        for count in (1, 4):
            rows = safetensors_io.parse(self.logits(packed_tiny(), tokens=TOKENS[:count]))[0]["logits"][2]
            self.assertEqual(rows, wanted[:len(rows)])

    def test_they_are_those_of_the_reference(self):
        golden = self.data("tiny-v3-golden")
        prompts = {entry["name"]: entry for entry in json.loads((golden / "prompts.json").read_text())["prompts"]}
        tensors, _ = safetensors_io.parse((golden / "logits.safetensors").read_bytes())
        self.assertGreater(len(prompts), 0)
        for name, prompt in prompts.items():
            wanted, got = array.array("f"), array.array("f")
            wanted.frombytes(tensors[name][2])
            got.frombytes(safetensors_io.parse(self.logits(packed_tiny(), tokens=prompt["logits_tokens"]))[0]["logits"][2])
            self.assertEqual(len(got), len(wanted), name)
            # Both sum in FP32, in another order: a thousandth is far above their noise, far below any mistake.
            self.assertLess(max(abs(a - b) for a, b in zip(got, wanted)), 1e-3, name)


class BadInput(Dsrun):
    def assert_ask_refused(self, folder, *needles):
        self.assert_dsrun_refuses(self.ask(folder, QUESTION), *needles)

    def test_what_is_no_model(self):
        empty = self.scratch / "empty"
        empty.mkdir()
        self.assert_ask_refused(empty, empty, "not a checkpoint")
        self.assert_ask_refused(self.scratch / "nowhere", self.scratch / "nowhere", "no such folder")
        self.assert_ask_refused(self.data() / "config.json", "config.json", "file")
        nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        result = self.run_program("org/name", "-p", QUESTION, program="DSPACK_DSRUN", env=nobody)
        self.assert_dsrun_refuses(result, "http://127.0.0.1:9/org/name", "cannot reach")

    def test_broken_configurations(self):
        packed = self.copy_packed()
        path = packed / "config.json"
        good = json.loads(path.read_text())

        def changed(**fields):
            return json.dumps({key: value for key, value in {**good, **fields}.items() if value is not None})

        for text, needle in (("", "JSON"), ("[]", ""), ("{}", ""), (changed(hidden_size="192"), "hidden_size"),
                             (changed(hidden_size=193), ""), (changed(hidden_size=0), "hidden_size"),
                             (changed(hidden_size=2**62), ""), (changed(hidden_size=-1), "hidden_size"),
                             (changed(hidden_size=None), "hidden_size"), (changed(num_hidden_layers=500), ""),
                             (changed(n_routed_experts=65), ""), (changed(num_experts_per_tok=65), ""),
                             (changed(num_experts_per_tok=0), ""), (changed(n_group=7), "n_group"),
                             (changed(vocab_size=2000), ""), (changed(model_type="llama"), "llama"),
                             (changed(scoring_func="softplus"), "softplus"), (changed(hidden_act="relu"), "relu"),
                             (changed(rope_scaling={"type": "unknown"}), ""),
                             (changed(quantization_config={"quant_method": "quip"}), "quip")):
            with self.subTest(text[:40] + needle):
                path.write_text(text)
                self.assert_ask_refused(packed, needle)
        path.unlink()
        self.assert_ask_refused(packed, packed, "config.json")

    def test_broken_tokenizers(self):
        packed = self.copy_packed()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            good = (packed / name).read_text()
            for text in ("", "[]", "{}", "null", good[:len(good) // 2], '{"model": 5}'):
                with self.subTest(name=name, text=text[:20]):
                    (packed / name).write_text(text)
                    # An object without a chat template is legal, but no question can be put with it.
                    no_template = name == "tokenizer_config.json" and text.startswith("{") and text.endswith("}")
                    self.assert_ask_refused(packed, "no chat template" if no_template else name)
            (packed / name).unlink()
            self.assert_ask_refused(packed, "no chat template" if name == "tokenizer_config.json" else name)
            (packed / name).write_text(good)

    def test_missing_or_damaged_files(self):
        packed = self.copy_packed()
        for name in ("model/embed.safetensors", "model/head.safetensors", "model/layers/000/dense.safetensors"):
            content = (packed / name).read_bytes()
            (packed / name).unlink()
            self.assert_ask_refused(packed, name)
            (packed / name).write_bytes(content[:-5000])
            self.assert_ask_refused(packed, name)
            (packed / name).write_bytes(content)
        flip_bit(packed / "manifest.json", 100)
        self.assert_ask_refused(packed, packed / "manifest.json")
        (packed / "manifest.json").unlink()
        self.assertEqual(self.assert_ok(self.ask(packed, QUESTION)).stdout, ANSWER, "the index alone is enough")
        (packed / INDEX).unlink()
        self.assert_ask_refused(packed, packed)

    def test_prompts_that_do_not_fit(self):
        self.assert_dsrun_refuses(self.ask(self.data(), "word " * 3000), "context", "1024")
        self.assert_dsrun_refuses(self.ask(self.data(), QUESTION, "--ctx", 5), "--ctx")
        for tokens in ("1152", "4294967295"):
            result = self.run_program("logits", self.data(), "--tokens", tokens, "--out", self.scratch / "x",
                                      program="DSPACK_DSRUN")
            self.assert_dsrun_refuses(result, tokens, "1152")
            self.assert_absent(self.scratch / "x")

    def test_wrong_usage_is_status_2(self):
        for arguments in ([], ["--unknown"], ["logits"], ["tokenize"], ["logits", self.data()], [self.data(), "--raw"],
                          *[[self.data(), "-p", "x", flag, value] for flag, value in (
                              ("--threads", "0"), ("--threads", "many"), ("--temp", "-1"), ("--top-p", "2"),
                              ("--ctx", "0"), ("-n", "-1"), ("-n", "x"), ("--seed", "x"))]):
            with self.subTest(arguments):
                result = self.run_program(*arguments, program="DSPACK_DSRUN")
                self.assertEqual((result.code, result.stdout), (2, ""), str(result))
                self.assertRegex(result.stderr, r"^dsrun[^\n]*: [^\n]+\n$")
        self.assert_dsrun_refuses(self.ask(self.data(), "x", "--dev", "cpu=mmx"), "mmx", "scalar")


class Tokenize(Dsrun):
    def test_ids_are_those_of_the_golden_cases(self):
        cases = json.loads((self.data("tiny-v3-golden") / "tokenizer_cases.json").read_text())["cases"]
        chosen = [case for case in cases if "\0" not in case["text"] and case["text"] != "-"][::5]
        self.assertGreater(len(chosen), 20)
        for case in chosen:
            result = self.assert_ok(self.run_program("tokenize", packed_tiny(), "-p", case["text"], program="DSPACK_DSRUN"))
            self.assertEqual([int(word) for word in result.stdout.replace(",", " ").split()], case["ids"], case["text"])

    def test_json_has_ids_and_text(self):
        result = self.assert_ok(self.run_program("tokenize", self.data(), "-p", QUESTION, "--json", program="DSPACK_DSRUN"))
        tokens = json.loads(result.stdout)
        self.assertEqual([token["id"] for token in tokens], TOKENS[2:-1])
        self.assertEqual("".join(token["text"] for token in tokens), QUESTION)

    def tokenize(self, folder, *arguments):
        return self.run_program("tokenize", folder, *arguments, program="DSPACK_DSRUN")

    def test_files_of_texts_and_of_ids(self):
        texts, ids = ["", "Hello, né!", "a\nb 中文 123"], self.scratch / "ids"
        (self.scratch / "texts").write_bytes("\0".join(texts).encode())
        for folder in (self.data(), self.data("text") / "v2", self.data("text") / "kimi"):
            result = self.assert_ok(self.tokenize(folder, "--dev", "texts=%s" % (self.scratch / "texts")))
            self.assertEqual(result.stdout.count("\n"), len(texts))
            for text, line in zip(texts, result.stdout.split("\n")):
                self.assertEqual(self.assert_ok(self.tokenize(folder, "-p", text)).stdout, line + "\n")
            ids.write_text(result.stdout)
            decoded = self.assert_ok(self.tokenize(folder, "--dev", "ids=%s" % ids)).stdout
            self.assertEqual([json.loads(line) for line in decoded.split("\n")[:-1]], texts)
        ids.write_text("3  4\n1 2\n")
        self.assert_dsrun_refuses(self.tokenize(self.data(), "--dev", "ids=%s" % ids), ids, "line 1")
        self.assert_dsrun_refuses(self.tokenize(self.data(), "--dev", "texts=%s" % (self.scratch / "absent")), "absent")

    def test_tiktoken_without_what_it_needs(self):
        folder = shutil.copytree(self.data("text") / "kimi", self.scratch / "kimi")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        for change, needle in (({"tokenizer_class": "QWenTokenizer"}, "QWenTokenizer"),
                               ({"added_tokens_decoder": {"7": {"content": "x"}}}, "added_tokens_decoder: 7")):
            (folder / "tokenizer_config.json").write_text(json.dumps(config | change))
            self.assert_dsrun_refuses(self.tokenize(folder, "-p", "x"), "tokenizer_config.json", needle)
        (folder / "tokenizer_config.json").unlink()
        self.assert_dsrun_refuses(self.tokenize(folder, "-p", "x"), "tokenizer_config.json", "tiktoken.model")
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "tiktoken.model").write_text("YQ== 0\nbroken\n")
        self.assert_dsrun_refuses(self.tokenize(folder, "-p", "x"), "tiktoken.model", "line 2")
        (folder / "tiktoken.model").unlink()
        self.assert_dsrun_refuses(self.tokenize(folder, "-p", "x"), "tokenizer.json", "tiktoken.model")


if __name__ == "__main__":
    main()
