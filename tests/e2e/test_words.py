"""What the programs say to a user who mistypes: near words, sizes that cannot be meant, help in 80 columns, outputs that
cannot be written, and the default source. docs/errors.md shows the table."""

import os
import pty
import subprocess
from pathlib import Path

from checkpoints import packed_tiny
from common import EndToEnd, clean_environment, main, path_from_environment

PROGRAMS = {"reshard": "DSPACK_RESHARD", "dsrun": "DSPACK_DSRUN"}
VERBS = {"reshard": ("", "inspect", "verify", "repair", "unpack", "link", "seal", "diff", "publish", "cache"),
         "dsrun": ("", "logits", "tokenize", "eval", "record", "compare", "replay", "plan", "bench", "serve", "cache")}
# What is typed, and what is said: the whole line.
MISTAKES = (
    ("dsrun tokenzie ./ds-packed -p Hi", 'dsrun: there is no verb "tokenzie"; did you mean tokenize?'),
    ("reshard verfiy ./ds-packed", 'reshard: there is no verb "verfiy"; did you mean verify?'),
    ("dsrun ./ds-packed -p Hi --tmep 0.7",
     'dsrun: there is no option "--tmep"; did you mean --temp? (dsrun --help explains)'),
    ("dsrun plan ./ds-packed --temp 0.7", 'dsrun: "--temp" is an option of dsrun (dsrun plan --help explains)'),
    ("dsrun ./ds-packed -p Hi --ram 24",
     'dsrun: --ram: "24" would be 24 bytes; did you mean 24GB? (dsrun --help explains)'),
    ("dsrun ./ds-packed -p Hi --device cdua",
     'dsrun: --device: "cdua" is no device; there are auto, cpu, cuda, cuda:N and cuda:N,M; did you mean cuda? '
     "(dsrun --help explains)"),
    ("dsrun ./ds-packed -p Hi --kv-dtype bf61",
     'dsrun: --kv-dtype: "bf61" is none of f32, bf16, f16 and fp8; did you mean bf16? (dsrun --help explains)'),
    ("dsrun ./ds-packed What is this?",
     'dsrun: "is" is one argument more than there may be; put a text of several words in quotes (dsrun --help explains)'),
    ("reshard ./DeepSeek-V3 --by expert --out ./x --limit-rate 20",
     'reshard: --limit-rate: "20" would be 20 bytes; did you mean 20MB? (reshard --help explains)'),
    ("reshard ./DeepSeek-V3 --by exprt --out ./x", None),
    ("dsrun ./ds-packed -p Hi --dev polcy=lru", None),
    ("dsrun plan ./ds-packed --disk-rate 7",
     'dsrun: --disk-rate: "7" would be 7 bytes; did you mean 7GB? (dsrun plan --help explains)'),
    ("reshard help pubish", 'reshard: there is no verb "pubish"; did you mean publish?'),
)


class Words(EndToEnd):
    def test_mistakes_are_asked_back(self):
        document = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
        for line, said in MISTAKES:
            with self.subTest(line):
                program, *arguments = line.split()
                result = self.run_program(*arguments, program=PROGRAMS[program], cwd=self.scratch)
                self.assertEqual((result.code, result.stdout), (2, ""), str(result))
                self.assertEqual(result.stderr.count("\n"), 1, str(result))
                if said:
                    self.assertEqual(result.stderr, said + "\n")
                else:
                    self.assertRegex(result.stderr, r"did you mean (expert|policy)\?")
                self.assertIn("$ %s\n%s" % (line, result.stderr), document)

    def test_help_has_80_columns(self):
        for program, verbs in VERBS.items():
            for verb in verbs:
                result = self.assert_ok(self.run_program(*([verb] if verb else []), "--help", program=PROGRAMS[program]))
                wide = [line for line in result.stdout.split("\n") if len(line) > 80]
                self.assertEqual(wide, [], "%s %s" % (program, verb))
                self.assertIn("--quiet", result.stdout)
                listed = self.run_program("help", *([verb] if verb else []), program=PROGRAMS[program])
                self.assertEqual(listed.stdout, result.stdout)

    def test_a_question_needs_no_option(self):
        answers = [self.assert_ok(self.run_program(*words, "--raw", "-n", 4, "--ctx", context, program="DSPACK_DSRUN")).stdout
                   for words, context in (((packed_tiny(), "-p", "Once upon"), "256"), ((packed_tiny(), "Once upon"), "256"),
                                          (("run", packed_tiny(), "Once upon"), "1k"))
                   ]
        self.assertEqual(len(set(answers)), 1, answers)
        self.assertGreater(len(answers[0]), 3)
        both = self.run_program(packed_tiny(), "Once", "-p", "upon", program="DSPACK_DSRUN")
        self.assertEqual(both.code, 2, str(both))

    def test_outputs_are_tried_before_a_model_is_loaded(self):
        nowhere = self.scratch / "nowhere" / "file"
        for arguments in ((["x", "-p", "Hi", "--stats", nowhere]), (["x", "-p", "Hi", "--trace", nowhere]),
                          (["logits", "x", "--tokens", "1", "--out", nowhere]),
                          (["eval", "x", "--text", "y", "--json", nowhere]),
                          (["record", "x", "--tokens", "1", "--out", nowhere]),
                          (["compare", "x", "--reference", "y", "--json", nowhere])):
            with self.subTest(arguments):  # there is no model x: had it been looked for first, that would be said
                result = self.run_program(*arguments, program="DSPACK_DSRUN")
                self.assert_refused(result, nowhere, "does not exist; create it first", program="dsrun")
        kept = self.scratch / "kept.json"
        kept.write_text("before")
        self.assertEqual(self.run_program("x", "-p", "Hi", "--stats", kept, program="DSPACK_DSRUN").code, 1)
        self.assertEqual(kept.read_text(), "before")
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["kept.json"])

    def test_folders_are_tried_before_a_place_is_asked(self):
        server = self.serve(self.data())
        file = self.scratch / "file"
        file.write_text("kept")
        for arguments in ((server.url, "--by", "expert", "--out"), ("unpack", server.url, "--out")):
            for out, needle in ((file, "exists and is not a folder"), (file / "below", "exists and is not a folder"),
                                ("/proc/dspack", "/proc/dspack")):
                with self.subTest(arguments=arguments, out=out):
                    self.assert_refused(self.run_program(*arguments, out), needle)
        self.assert_refused(self.run_program("inspect", server.url, "--html", "/proc/page.html"), "/proc/page.html")
        self.assertEqual(server.log, [])
        self.assertEqual([path.name for path in self.scratch.iterdir()], ["file"])

    def test_diff_says_what_it_believed(self):
        text = self.run_program("diff", packed_tiny(), self.data()).stdout
        self.assertIn("the digests of A were taken from the manifest, not computed; reshard verify checks it\n", text)
        self.assertNotIn("manifest", self.run_program("diff", self.data(), self.data()).stdout)


class DefaultSource(EndToEnd):
    """`reshard --by expert --out X`, with a small DeepSeek-V3 on the server that plays the Hub."""

    def setUp(self):
        super().setUp()
        self.hub = self.serve_hub()
        self.hub.add("deepseek-ai/DeepSeek-V3", self.data())
        self.arguments = ["--by", "expert", "--out", str(self.scratch / "out")]
        self.env = {"HF_ENDPOINT": self.hub.url}

    def test_off_a_terminal_it_is_said_and_done(self):
        result = self.assert_ok(self.run_program(*self.arguments, env=self.env))
        self.assertRegex(result.stderr, r"^no SOURCE is named, so this packs deepseek-ai/DeepSeek-V3: [0-9.]+ MB to read, "
                                        r"as your download goes: .* at 100 Mbit/s, .* at 1 Gbit/s; .* MB of disk\n$")
        again = self.assert_ok(self.run_program(*self.arguments, "--quiet", env=self.env))
        self.assertEqual(again.stderr, "")

    def on_a_terminal(self, answer, *arguments):
        """The exit status, and what the terminal showed."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = subprocess.Popen([path_from_environment("DSPACK_RESHARD"), *self.arguments, *arguments], stdin=theirs,
                                   stdout=subprocess.PIPE, stderr=theirs, env=clean_environment(self.scratch, self.env))
        os.close(theirs)
        os.write(ours, answer)
        process.communicate(timeout=60)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # nobody has the other end any more, and everything was read
                return process.returncode, shown.decode()

    def test_on_a_terminal_it_is_asked(self):
        for answer in (b"n\n", b"\n", b"perhaps\n"):
            code, shown = self.on_a_terminal(answer)
            self.assertEqual(code, 1, shown)
            self.assertIn("reshard: fetch and pack it? [y/N] ", shown)
            self.assert_absent(self.scratch / "out" / "manifest.json")
        code, shown = self.on_a_terminal(b"", "--yes")
        self.assertEqual(code, 0, shown)
        self.assertNotIn("[y/N]", shown)

    def test_yes_is_yes(self):
        code, shown = self.on_a_terminal(b"y\n")
        self.assertEqual(code, 0, shown)
        self.assertTrue((self.scratch / "out" / "manifest.json").is_file())


if __name__ == "__main__":
    main()
