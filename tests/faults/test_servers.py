"""Servers that truncate, reset, limit or lie at random places of a run. What may pass is overcome; what will not stops
the run with one line, and the next run goes on."""

import faults
from checkpoints import SHARDS
from common import INDEX, QUICK, main

PASSING = 120 if faults.LONG else 18
LASTING = 120 if faults.LONG else 18

# Kind and options; the pauses that a server may ask for are kept short.
PASSING_KINDS = [("truncate", {}), ("reset", {}), ("wrong_length", dict(delta=-7)), ("503", {}), ("500", {}),
                 ("429", dict(retry_after=1)), ("429", {}), ("408", {})]
# Answers to another question than the one asked: one is met by another try, three in a row end the run.
WRONG_KINDS = [("ignore_range", {}), ("wrong_content_range", {}), ("wrong_length", dict(delta=70))]
LASTING_KINDS = [("403", {}), ("404", {}), ("410", {}), ("ignore_range", {}), ("wrong_content_range", {}),
                 ("wrong_length", dict(delta=70)), ("redirect", dict(to="")), ("change_etag", {})]


class Servers(faults.ServerCase):
    def start(self, *arguments, **options):
        return super().start(*arguments, *(() if faults.LONG else QUICK), **options)

    def test_one_wrong_answer(self):
        cases = [(kind, options, shard, skip) for kind, options in WRONG_KINDS for shard in SHARDS for skip in (0, 1, 2)]

        def start(number):
            kind, options, shard, skip = cases[number]
            return self.begin("wrong", number, [(shard, kind, dict(options, skip=skip, times=1))])

        struck = 0
        with self.tally("one answer of 200 for a range, with a wrong range, too long") as tally:
            for what, _, armed, out, process in self.side_by_side(len(cases), start):
                with tally.repetition(what):
                    self.assert_ok(self.finish(process))
                    self.assert_same_tree(out, self.whole)
                    struck += armed[0].struck
        self.assertGreaterEqual(struck, len(cases) * 2 // 3, "the faults hardly struck")

    def test_faults_that_pass(self):
        def start(number):
            faulty = []
            for _ in range(self.random.randint(1, 3)):
                kind, options = self.random.choice(PASSING_KINDS)
                pattern = self.random.choice([*SHARDS, "*.safetensors", "*", INDEX])
                skip, times = self.random.randint(0, 3), self.random.randint(1, 2)
                faulty.append((pattern, kind, dict(options, skip=skip, times=times)))
            return self.begin("passing", number, faulty)

        with self.tally("truncate, reset, short answer, 408, 429, 500, 503: bursts at random places") as tally:
            for what, server, _, out, process in self.side_by_side(PASSING, start):
                with tally.repetition(what):
                    result = self.finish(process)
                    if result.code != 0:
                        # Five failures in a row may come about by chance; the index is asked for whole, so that a short
                        # answer of consistent length shows only by its content.
                        self.assertRegex(self.assert_stopped_clearly(result), "gave up after 5 attempts|not valid JSON")
                        self.assert_completed(server, out, self.whole, lambda: self.repack(server.url, out))
                    self.assert_same_tree(out, self.whole)

    def test_faults_that_last(self):
        def start(number):
            kind, options = self.random.choice(LASTING_KINDS)
            # The catalogue's probe passes: another version is a change only once the first has been seen. Not every run
            # asks for a shard so often that a later fault strikes; every third fault meets the request behind the probe.
            skip = 1 + number % 3
            return self.begin("lasting", number, [(self.random.choice(SHARDS), kind, dict(options, skip=skip))])

        stopped = 0
        with self.tally("403, 404, 410, 200 for a range, wrong range, too long, redirect loop, new ETag") as tally:
            for what, server, armed, out, process in self.side_by_side(LASTING, start):
                with tally.repetition(what):
                    result = self.finish(process)
                    if result.code != 0:
                        stopped += 1
                        self.assertIn("%s/%s" % (server.url, armed[0].pattern), self.assert_stopped_clearly(result))
                    self.assert_completed(server, out, self.whole, lambda: self.repack(server.url, out))
        self.assertGreaterEqual(stopped, LASTING // 3, "the faults hardly struck")


if __name__ == "__main__":
    main()
