"""Servers that fall silent in the middle of an answer: after half a minute, in the short form a second, the connection
counts as lost, and what is missing is asked for anew."""

import faults
from checkpoints import SHARDS, packed_tiny
from common import INDEX, main

STALLS = 6 if faults.LONG else 3
SILENCE = {} if faults.LONG else {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}

# Of a model that runs off the server: what every token needs, rows of the embedding, an expert.
RUN_PLACES = ("*layers/000/dense.safetensors", "*embed.safetensors", "*layers/00?/experts/*.safetensors")
TOKENS = "5,6,7,8"


class Stalls(faults.ServerCase):
    def start(self, *arguments, env=None, **options):
        return super().start(*arguments, env={**SILENCE, **(env or {})}, **options)

    def start_model(self, place, number, armed):
        return self.start(place, "--tokens", TOKENS, "-n", 2, "--cache", self.scratch / ("cache-%d" % number),
                          program="DSPACK_DSRUN"), armed

    def start_models(self):
        runs = []
        for number, pattern in enumerate(RUN_PLACES):
            server = self.serve(packed_tiny())
            runs.append(self.start_model(server.url, number, server.add_fault(pattern, "stall", times=1)))
        return runs

    def test_stalls(self):
        models = self.start_models()  # most of their time is waiting, so that they wait together with the rest
        places = [(SHARDS[0], dict(skip=1)), (SHARDS[1], dict(min_bytes=100_000)), (INDEX, {}), ("README.md", dict(skip=1)),
                  (SHARDS[0], {}), ("config.json", {})]

        def start(number):
            pattern, options = places[number]
            return self.begin("stall", number, [(pattern, "stall", dict(options, times=1))])

        with self.tally("the server falls silent in the middle of an answer") as tally:
            for what, _, armed, out, process in self.side_by_side(STALLS, start):
                with tally.repetition(what):
                    self.assert_ok(self.finish(process))
                    self.assertEqual(armed[0].struck, 1, "did not strike")
                    self.assert_same_tree(out, self.whole)
        said = self.assert_ok(self.run_program(packed_tiny(), "--tokens", TOKENS, "-n", 2, program="DSPACK_DSRUN")).stdout
        with self.tally("the server falls silent while a model runs off it") as tally:
            for process, armed in models:
                with tally.repetition(armed.pattern):
                    self.assertEqual(self.assert_ok(self.finish(process)).stdout, said)
                    self.assertEqual(armed.struck, 1, "did not strike")


if __name__ == "__main__":
    main()
