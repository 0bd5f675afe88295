"""A seed repeats its text: of single runs, chats and a server, with drafts, caches and company, and in all APIs."""

import json
import subprocess
import threading

from checkpoints import packed_tiny
from common import TIMEOUT_SECONDS, clean_environment, main, path_from_environment
from test_serve import QUESTIONS, Serving, chat, events

HEATS = ({"temperature": 0}, {"temperature": 0.9, "seed": 1}, {"temperature": 1.4, "seed": 2},
         {"temperature": 2, "top_p": 0.9, "top_k": 50, "seed": 2}, {"temperature": 1.5, "min_p": 0.02, "seed": 3})


class Seeds(Serving):
    def run_dsrun(self, *arguments, **options):
        return self.assert_ok(self.run_program(packed_tiny(), *arguments, program="DSPACK_DSRUN", **options)).stdout

    def said(self, path, body):
        """The text of an answer, whatever the API."""
        status, _, text = self.ask(path, body)
        self.assertEqual(status, 200, text)
        if body.get("stream"):
            datas = [json.loads(data) for _, data in events(text) if data != "[DONE]"]
            return "".join(data["choices"][0]["delta"].get("content", "") for data in datas)
        answer = json.loads(text)
        if path == "/v1/messages":
            return "".join(part["text"] for part in answer["content"])
        choice = answer["choices"][0]
        return choice["text"] if path == "/v1/completions" else choice["message"]["content"]

    def talk(self, question, heat, kind):
        """Both answers of a conversation of two turns."""
        body, path = chat(question, **heat), "/v1/chat/completions"
        if kind == "text":
            body, path = dict(heat, prompt=question, max_tokens=24), "/v1/completions"
        elif kind == "messages":
            path = "/v1/messages"
        elif kind == "stream":
            body["stream"] = True
        answers = [self.said(path, body)]
        if kind == "text":
            body["prompt"] += answers[0] + " And"
        else:
            body["messages"] = [*body["messages"], {"role": "assistant", "content": answers[0]},
                                {"role": "user", "content": "Go on."}]
        return [*answers, self.said(path, body)]

    def talks(self, together):
        jobs = [(question, heat, kind) for at, question in enumerate(QUESTIONS[:4]) for heat in HEATS
                for kind in (("text", "messages") if at % 2 else ("chat", "stream"))]
        answers = [None] * len(jobs)

        def client(first):
            for at in range(first, len(jobs), together):
                answers[at] = self.talk(*jobs[at])

        threads = [threading.Thread(target=client, args=(first,)) for first in range(together)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(zip(((question, json.dumps(heat), kind) for question, heat, kind in jobs), answers))

    def test_a_server_with_drafts_caches_and_company_says_what_one_without_says(self):
        self.start_server()
        wanted = self.talks(1)
        self.assert_ok_after_stop()
        self.assertNotIn(None, wanted.values())
        self.assertGreater(len({tuple(answers) for answers in wanted.values()}), 12)
        # Streams say the same as whole answers, and a completion the same as the command.
        for (question, heat, kind), answers in wanted.items():
            if kind == "stream":
                self.assertEqual(answers, wanted[question, heat, "chat"])
        heat = HEATS[3]
        for question in QUESTIONS[1:4:2]:
            alone = self.run_dsrun("-p", question, "--raw", "-n", 24, "--temp", 2, "--top-p", 0.9, "--top-k", 50, "--seed", 2,
                                   "--mtp", 3)
            self.assertEqual(alone.rstrip("\n"), wanted[question, json.dumps(heat), "text"][0].rstrip("\n"))
        folder = self.scratch / "prefixes"
        for ways, together in ((("--mtp", "2", "--parallel", "4", "--cache-ram", "20MB"), 6),
                               (("--mtp", "auto", "--parallel", "2", "--cache-disk", folder), 3),
                               (("--mtp", "auto", "--cache-disk", folder), 1)):  # which finds all of it
            self.start_server(*ways)
            self.assertEqual(self.talks(together), wanted, ways)
            counts = self.counts()
            self.assertGreater(counts["prompt_tokens_cached_total"], 0)
            if "2" in ways[1]:
                self.assertGreater(counts["accepted_drafts_total"], 0)
                self.assertGreater(counts["drafted_tokens_total"], counts["accepted_drafts_total"])
            self.assert_ok_after_stop()

    def test_commands_say_the_same_with_drafts(self):
        way = ("-n", 40, "--temp", 1.5, "--top-p", 0.95)
        for seed in (1, 2, 18446744073709551615):
            texts = {self.run_dsrun("-p", "Tell me a tale.", *way, "--seed", seed, *more)
                     for more in ((), ("--mtp", 1), ("--mtp", 4), ("--mtp", "auto"), ("--threads", 1))}
            self.assertEqual(len(texts), 1, texts)

    def chat_through_pipe(self, lines, *arguments):
        command = [path_from_environment("DSPACK_DSRUN"), packed_tiny(), "-n", 20, "--temp", 1.2, "--seed", 5, *arguments]
        done = subprocess.run(list(map(str, command)), input="".join(line + "\n" for line in lines).encode(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(self.scratch),
                              timeout=TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_chats_say_the_same_with_drafts_and_after_a_pause(self):
        lines = ["Tell me a tale.", "My name is Anna.", "/regen", "Once upon a time"]
        whole = self.chat_through_pipe(lines)
        for more in (("--mtp", 2), ("--mtp", "auto")):
            self.assertEqual(self.chat_through_pipe(lines, *more), whole)
        first = self.run_dsrun("-p", lines[0], "-n", 20, "--temp", 1.2, "--seed", 5)
        self.assertTrue(whole.startswith(first), whole)
        # /regen takes the next seed.
        again = self.chat_through_pipe([lines[0], "/regen"])
        self.assertNotEqual(again, first * 2)
        self.assertEqual(again, first + self.run_dsrun("-p", lines[0], "-n", 20, "--temp", 1.2, "--seed", 6))
        session = self.scratch / "session"
        parts = [self.chat_through_pipe([line], "--session", session) for line in lines[:2]]
        self.assertEqual("".join(parts), self.chat_through_pipe(lines[:2]))


if __name__ == "__main__":
    main()
