"""How a conversation becomes a prompt, and how an answer ends: chat templates, thinking, stop strings, logit bias."""

import json
import os
import socket
import subprocess

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment

CASES = json.loads((EndToEnd.data("text") / "chat_cases.json").read_text(encoding="utf-8"))
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"  # of tiny-v3
QUESTION = "What is the capital of France?"


class Prompt(EndToEnd):
    def dsrun(self, *arguments, **options):
        return self.run_program(*arguments, program="DSPACK_DSRUN", **options)

    def rendered(self, conversation, *arguments, folder=None):
        file = self.scratch / "talk.json"
        file.write_text(json.dumps(conversation, ensure_ascii=False), encoding="utf-8")
        return self.dsrun("tokenize", folder or self.data(), "--chat", file, *arguments)

    def assert_dsrun_refuses(self, result, *needles, **more):
        self.assert_refused(result, *needles, program="dsrun", **more)


class Piped(Prompt):
    """Text on standard input beside a prompt follows it."""

    def answer(self, *arguments, text=None, kind="pipe"):
        if kind == "file":
            (self.scratch / "text").write_bytes(text)
            with open(self.scratch / "text", "rb") as stdin:
                return self.assert_ok(self.dsrun(self.data(), *arguments, "-n", "12", stdin=stdin)).stdout
        if text is None:
            return self.assert_ok(self.dsrun(self.data(), *arguments, "-n", "12")).stdout
        out, into = os.pipe()
        os.write(into, text)
        os.close(into)
        with open(out, "rb") as stdin:
            return self.assert_ok(self.dsrun(self.data(), *arguments, "-n", "12", stdin=stdin)).stdout

    def test_piped_text_follows_the_prompt(self):
        whole = self.answer("-p", "My name is Anna.\n\nWhat is my name?")
        self.assertNotEqual(whole, self.answer("-p", "My name is Anna."), "a test that cannot fail")
        for asked in (("-p", "My name is Anna."), ("My name is Anna.",)):
            for kind in ("pipe", "file"):
                self.assertEqual(self.answer(*asked, text=b"What is my name?\n", kind=kind), whole, (asked, kind))
        self.assertEqual(self.answer("-p", "-", text=b"My name is Anna.\n\nWhat is my name?"), whole)
        self.assertEqual(self.answer("-p", "", text=b"My name is Anna.\n\nWhat is my name?"), whole)
        self.assertEqual(self.answer("-p", "My name is Anna.", text=b" \n"), self.answer("-p", "My name is Anna."))
        self.assertEqual(self.answer("--raw", "-p", "Once upon", text=b" a time"),
                         self.answer("--raw", "-p", "Once upon a time"))

    def test_what_nobody_has_piped_is_not_waited_for(self):
        ours, theirs = socket.socketpair()  # as programs in Node.js give it to their children, open
        with ours, theirs:
            said = self.assert_ok(self.dsrun(self.data(), "-p", QUESTION, stdin=theirs, timeout=60))
        self.assertEqual(said.stdout, "The capital of France is Paris.\n")
        # Ids and conversations come from where they are said to be.
        out, into = os.pipe()
        with open(out, "rb") as stdin, open(into, "wb"):
            self.assert_ok(self.dsrun(self.data(), "--tokens", "1,2", "-n", "1", stdin=stdin, timeout=60))


class Templates(Prompt):
    def test_conversations_with_tools_come_out_as_transformers_writes_them(self):
        case = next(c for c in CASES["cases"] if c["tools"] and c["add_generation_prompt"])
        talk = {"messages": CASES["conversations"][case["messages"]], "tools": CASES["tools"]}
        for result in case["results"]:
            for name in result["templates"]:
                said = self.assert_ok(self.rendered(talk, "--text", "--chat-template", name)).stdout
                self.assertEqual(said, result["text"].replace("<B>", BOS).replace("<E>", EOS) + "\n", name)

    def test_thinking_changes_what_deepseek_v3_1_asks_for(self):
        talk = [{"role": "user", "content": "u"}]
        v31 = ("--chat-template", "deepseek-v3.1", "--text")
        self.assertEqual(self.assert_ok(self.rendered(talk, *v31)).stdout, BOS + "<｜User｜>u<｜Assistant｜></think>\n")
        self.assertEqual(self.assert_ok(self.rendered(talk, *v31, "--thinking", "on")).stdout,
                         BOS + "<｜User｜>u<｜Assistant｜><think>\n")
        self.assertEqual(self.assert_ok(self.rendered(talk, *v31, "--dev", "no-question")).stdout, BOS + "<｜User｜>u\n")
        self.assert_dsrun_refuses(self.rendered(talk, "--thinking", "on"), "--thinking", "no such switch")
        self.assertEqual(self.rendered(talk, "--thinking", "perhaps").code, 2)

    def test_a_template_is_told_what_it_reads_and_nothing_else(self):
        talk = [{"role": "user", "content": "u"}]
        own = self.scratch / "own.jinja"
        own.write_text("{{ messages[0].content }} {{ reasoning_effort or 'low' }} {{ style.tone }}")
        asked = ("--text", "--chat-template", own)
        said = self.rendered(talk, *asked, "--template-args", '{"reasoning_effort": "high", "style": {"tone": "dry"}}')
        self.assertEqual(self.assert_ok(said).stdout, "u high dry\n")
        whole = {"messages": talk, "chat_template_kwargs": {"reasoning_effort": "some", "style": {"tone": "wet"}}}
        said = self.rendered(whole, *asked, "--template-args", '{"reasoning_effort": "high"}')
        self.assertEqual(self.assert_ok(said).stdout, "u high wet\n")  # what the command line says, counts
        self.assert_dsrun_refuses(self.rendered(talk, *asked, "--template-args", '{"reasoning_efort": 1}'), "--template-args",
                                  'never reads "reasoning_efort"', 'did you mean reasoning_effort?', "it reads reasoning_effort, style")
        whole["chat_template_kwargs"]["effort"] = 1
        self.assert_dsrun_refuses(self.rendered(whole, *asked), 'never reads "effort"')
        self.assert_dsrun_refuses(self.rendered(talk, *asked, "--template-args", '{"messages": []}'), '"messages"', "leave it out")
        for wrong in ("[]", "{", "3"):
            self.assertEqual(self.rendered(talk, *asked, "--template-args", wrong).code, 2)

    def test_tools_take_the_template_for_tools(self):
        folder = self.copy_source()
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["chat_template"] = [{"name": "default", "template": "plain {{ style }}"},
                                   {"name": "tool_use", "template": "{{ tools | length }} tools"}]
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        talk = {"messages": [{"role": "user", "content": "u"}], "tools": CASES["tools"]}
        self.assertEqual(self.assert_ok(self.rendered(talk, "--text", folder=folder)).stdout, "2 tools\n")
        self.assertEqual(self.assert_ok(self.rendered(talk["messages"], "--text", folder=folder)).stdout, "plain \n")
        named = self.rendered(talk, "--text", "--chat-template", "deepseek-v2", folder=folder)
        self.assertIn("User: u", self.assert_ok(named).stdout)
        # Files win over the list, as in transformers.
        (folder / "chat_template.jinja").write_text("from a file")
        self.assertEqual(self.assert_ok(self.rendered(talk, "--text", folder=folder)).stdout, "from a file\n")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("a file for tools")
        self.assertEqual(self.assert_ok(self.rendered(talk, "--text", folder=folder)).stdout, "a file for tools\n")

    def test_texts_in_parts_and_a_developer(self):
        parts = [{"role": "developer", "content": [{"type": "text", "text": "s"}]},
                 {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": "v"}]}]
        plain = [{"role": "system", "content": "s"}, {"role": "user", "content": "u\nv"}]
        self.assertEqual(self.assert_ok(self.rendered(parts, "--text")).stdout,
                         self.assert_ok(self.rendered(plain, "--text")).stdout)
        picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        self.assert_dsrun_refuses(self.rendered(picture, "--text"), "talk.json", "message 0", "image_url")

    def test_many_token_ids_from_a_file_and_from_standard_input(self):
        ids = [str(number % 1000) for number in range(900)]
        file = self.scratch / "ids.txt"
        file.write_text(" ".join(ids) + "\n", encoding="utf-8")
        said = [self.assert_ok(self.dsrun(self.data(), "--tokens", *how, "-n", "2")).stdout
                for how in ((",".join(ids),), (f"@{file}",))]
        self.assertEqual(said[0], said[1])
        piped = subprocess.run([path_from_environment("DSPACK_DSRUN"), self.data(), "--tokens", "-", "-n", "2"],
                               input=",\n".join(ids), capture_output=True, text=True, check=False,
                               env=clean_environment(self.scratch))
        self.assertEqual((piped.returncode, piped.stdout), (0, said[0]), piped.stderr)
        file.write_text("1 2 three\n", encoding="utf-8")
        self.assert_dsrun_refuses(self.dsrun(self.data(), "--tokens", f"@{file}"), "ids.txt", "number 3", "three")
        file.write_text("\n", encoding="utf-8")
        self.assert_dsrun_refuses(self.dsrun(self.data(), "--tokens", f"@{file}"), "ids.txt", "no token ids")

    def test_ids_of_a_conversation(self):
        golden = json.loads((self.data("tiny-v3-golden") / "chat_cases.json").read_text(encoding="utf-8"))["cases"][0]
        said = self.assert_ok(self.rendered(golden["messages"])).stdout
        self.assertEqual(list(map(int, said.split())), golden["ids"])
        pieces = json.loads(self.assert_ok(self.rendered(golden["messages"], "--json")).stdout)
        self.assertEqual("".join(piece["text"] for piece in pieces), golden["text"])

    def test_a_conversation_is_answered(self):
        talk = [{"role": "user", "content": "My name is Anna."}, {"role": "assistant", "content": "Nice to meet you, Anna."},
                {"role": "user", "content": "What is my name?"}]
        file = self.scratch / "talk.json"
        file.write_text(json.dumps(talk))
        said = self.assert_ok(self.dsrun(packed_tiny(), "--chat", file)).stdout
        self.assertIn("Anna", said)
        spoken = self.assert_ok(self.rendered(talk, "--text")).stdout[:-1]
        self.assertEqual(self.assert_ok(self.dsrun(packed_tiny(), "-p", spoken, "--raw")).stdout, said)

    def test_a_template_of_ones_own_is_run_and_a_broken_one_can_be_replaced(self):
        folder = self.copy_source()
        own = self.scratch / "own.jinja"
        own.write_text("{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}")
        said = self.assert_ok(self.rendered([{"role": "user", "content": "Hi"}], "--text", "--chat-template", own)).stdout
        self.assertEqual(said, "USER: Hi\n\n")
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}\n{% if x %}")
        refused = self.dsrun(folder, "-p", QUESTION)
        self.assert_dsrun_refuses(refused, "line 2", "not closed")
        said = self.assert_ok(self.dsrun(folder, "-p", QUESTION, "--chat-template", "deepseek-v3")).stdout
        self.assertEqual(said, "The capital of France is Paris.\n")
        # A file with a known template: tiny-v3 has DeepSeek-V3's; Jinja cuts the line feeds behind its tags.
        source = json.loads((self.data() / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        known = self.scratch / "known.jinja"
        known.write_text(source.replace("%}{%", "%}\n{%"), encoding="utf-8")
        self.assertEqual(self.assert_ok(self.dsrun(folder, "-p", QUESTION, "--chat-template", known)).stdout, said)
        unknown = folder / "chat_template.jinja"
        self.assert_dsrun_refuses(self.dsrun(folder, "-p", QUESTION, "--chat-template", unknown), str(unknown), "line 2")
        self.assert_dsrun_refuses(self.dsrun(folder, "-p", QUESTION, "--chat-template", "gpt"), "gpt", "no such file")

    def test_conversations_that_cannot_be_read_or_rendered(self):
        for talk, needle in (({"messages": 3}, "messages"), ([{"role": "nobody"}], "nobody"), ([{"role": "user"}], "content"),
                             ([{"role": "user", "content": [1]}], "content")):
            self.assert_dsrun_refuses(self.rendered(talk), needle)
        self.assert_dsrun_refuses(self.dsrun("tokenize", self.data(), "--chat", self.scratch / "none.json"), "none.json")

    def test_reasoning_that_was_cut_does_not_become_history(self):
        process = subprocess.run(
            [path_from_environment("DSPACK_DSRUN"), str(packed_tiny()), "--chat-template", "deepseek-v3.1", "--thinking",
             "on", "-n", "3"], input="Tell me a tale.\nMy name is Anna.\n".encode(), capture_output=True,
            env=clean_environment(self.scratch), timeout=60)
        self.assertEqual((process.returncode, process.stderr), (0, b""))
        # The second prompt is that of a conversation whose first answer is empty: everything said was reasoning.
        second = [{"role": "user", "content": "Tell me a tale."}, {"role": "assistant", "content": ""},
                  {"role": "user", "content": "My name is Anna."}]
        text = self.assert_ok(self.rendered(second, "--text", "--chat-template", "deepseek-v3.1", "--thinking", "on"))
        alone = self.dsrun(self.data(), "-p", text.stdout[:-1], "--raw", "-n", "3")
        self.assertEqual(process.stdout.decode().splitlines()[-1], self.assert_ok(alone).stdout.splitlines()[-1])


class Endings(Prompt):
    def said(self, *arguments):
        return self.assert_ok(self.dsrun(packed_tiny(), "-p", QUESTION, *arguments)).stdout

    def test_stop_strings_end_an_answer_wherever_its_tokens_part(self):
        whole = "The capital of France is Paris."
        self.assertEqual(self.said(), whole + "\n")
        for begin in range(len(whole)):
            stop = whole[begin:begin + 5]
            self.assertEqual(self.said("--stop", stop, "--stop", "nowhere"), whole[:whole.index(stop)] + "\n", stop)
        self.assertEqual(self.said("--stop", "Paris.."), whole + "\n")  # what was held back comes at the end

    def test_stop_strings_in_a_chat_leave_the_conversation_usable(self):
        process = subprocess.run([path_from_environment("DSPACK_DSRUN"), str(packed_tiny()), "--stop", " of"],
                                 input=b"What is the capital of France?\nMy name is Anna.\nWhat is my name?\n",
                                 capture_output=True, env=clean_environment(self.scratch), timeout=60)
        self.assertEqual((process.returncode, process.stderr), (0, b""))
        lines = process.stdout.decode().splitlines()
        self.assertEqual(lines[0], "The capital")
        self.assertIn("Anna", lines[-1])

    def test_a_token_that_is_excluded_is_not_said(self):
        pieces = json.loads(self.assert_ok(self.dsrun("tokenize", self.data(), "-p", " Paris", "--json")).stdout)
        self.assertNotIn("Paris", self.said("--logit-bias", "%d:-inf" % pieces[0]["id"], "-n", "20"))
        self.assertEqual(self.said("--logit-bias", "%d:1000" % pieces[0]["id"], "-n", "2"), pieces[0]["text"] * 2 + "\n")
        self.assert_dsrun_refuses(self.dsrun(packed_tiny(), "-p", "x", "--logit-bias", "99999:1"), "99999", "1152")

    def test_one_candidate_is_greedy_whatever_the_temperature(self):
        for more in (["--top-k", "1"], ["--min-p", "1"]):
            self.assertEqual(self.said("--temp", "5", *more), self.said())


if __name__ == "__main__":
    main()
