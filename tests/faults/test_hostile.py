"""Inputs of strangers, over a thousand of them: each ends soon, in little memory, with exit status 1 or 2 and one line that is
short and harmless, and leaves nothing in the way of another run. The inputs are in the folder hostile, what is demanded
in hostile/judge.py.

DSPACK_TESTS=long runs all of them; otherwise every fourth runs (under a sanitizer every twentieth), from one that the
seed chooses.
DSPACK_HOSTILE=TEXT runs those whose names have the text."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import faults
from common import is_sanitized, main, seeded_random
from checkpoints import write_small
from hostile import judge, models, network, packed, records, weights, wishes
from hostile.cases import URL

ONE_OF = 1 if faults.LONG else 20 if is_sanitized() else 4


class Hostile(faults.FaultCase):
    def setUp(self):
        super().setUp()
        self.random = seeded_random()

    @staticmethod
    def remove(path):
        shutil.rmtree(path)

    def chosen(self, cases):
        wanted = os.environ.get("DSPACK_HOSTILE")
        if wanted:
            return [case for case in cases if wanted in case.name]
        cases = list(cases)
        return cases[self.random.randrange(ONE_OF)::ONE_OF]

    def run_all(self, title, cases):
        with self.tally("hostile: " + title) as tally:
            for case in self.chosen(cases):
                with tally.repetition(case.name), tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                    self.run_case(case, Path(folder))

    def run_case(self, case, folder):
        with contextlib.ExitStack() as stack:
            commands = case.prepare(folder)
            url = stack.enter_context(case.serve(folder)).url if case.serve else ""
            env = {key: value.replace(URL[:-1], url) for key, value in (case.env or {}).items()}
            for program, arguments in commands:
                outcome = judge.run(program, [str(word).replace(URL, url + "/") for word in arguments], folder, env)
                statuses = (1, 2) if case.harmless is None else (0, 1)
                self.assertEqual(judge.faults(outcome, statuses), [], str(outcome))
                if outcome.status == 0:
                    self.assertTrue(outcome.stdout.endswith(case.harmless), str(outcome))
            if case.after:
                case.after(self, folder)

    def test_weights(self):
        self.run_all("headers and indexes", weights.cases())

    def test_packed(self):
        write_small(self.scratch / "source")
        self.assert_ok(self.repack(self.scratch / "source", self.scratch / "packed"))
        self.assert_ok(self.repack(self.scratch / "source", self.scratch / "compressed", "--compress", "zstd"))
        self.run_all("manifests, kept headers, frames", packed.cases(self.scratch / "packed", self.scratch / "compressed"))

    def test_wishes(self):
        self.run_all("recipes, lists of digests, layer maps", wishes.cases())

    def test_records(self):
        self.run_all("journals and caches", records.cases(records.Sound(self)))

    def test_models(self):
        self.run_all("config, tokenizer, template, conversation, routes, recording", models.cases(self.copy_source()))

    def test_network(self):
        self.run_all("answers of HTTP servers and of the Hub", network.cases())


if __name__ == "__main__":
    main()
