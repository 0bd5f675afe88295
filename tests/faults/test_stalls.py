"""Servers that fall silent in the middle of an answer: after half a minute the connection counts as lost, and what is
missing is asked for anew."""

import faults
from checkpoints import SHARDS
from common import INDEX, main

STALLS = 6 if faults.LONG else 3


class Stalls(faults.ServerCase):
    def test_stalls(self):
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


if __name__ == "__main__":
    main()
