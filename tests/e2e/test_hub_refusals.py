"""The Hub as source: what stands in the way, and the message that a user needs. Links that expire, limits, no network."""

import email.utils
import random
import re
import threading
import time

from checkpoints import SHARDS, write_small
from common import EndToEnd, free_port, main
from hub_case import HubCase


class Refusals(HubCase):
    def refused(self, place, *needles, token="", env=None):
        self.assert_refused(self.pack(place, token=token, env=env), *needles)
        self.assert_absent(self.out)

    def test_gated(self):
        self.hub.add("o/gated", self.source, gated=True, granted=["friend"])
        self.hub.add_token("hf_friend", "friend")
        page = self.hub.url + "/o/gated"
        self.refused("o/gated", page + ": is gated: open " + page, "accept its terms", "HF_TOKEN", "hf auth login", "401")
        self.refused("o/gated", page, "the account of your token has no access yet", "403", token=None)
        self.assert_ok(self.pack("o/gated", token="hf_friend"))
        self.assert_same_weights()

    def test_gated_while_it_is_read(self):
        self.hub.add_fault("GET", "*" + SHARDS[1], "403", headers={"X-Error-Code": "GatedRepo"}, body="no more")
        self.refused("o/n", "is gated", "403: no more")

    def test_private(self):
        self.hub.add("o/private", self.source, private=True)
        self.hub.add_token("hf_stranger", "stranger")
        self.refused("o/private", "no such repository", "or it is private", "HF_TOKEN", "401")
        self.refused("o/private", "no such repository", "your token may not read it", "404", token="hf_stranger")
        self.hub.code_with_401 = False
        self.refused("o/private", "private or gated", "HF_TOKEN", "401")
        self.assert_ok(self.pack("o/private", token=None))

    def test_missing(self):
        self.refused("o/other", self.hub.url + "/o/other", "no such repository", "check the spelling")
        self.refused("o/other", self.hub.url + "/o/other", "no such repository", token=None)

    def test_a_missing_revision(self):
        for revision in ("v9", "refs/pr/3"):
            self.refused("o/n@" + revision, '/o/n: has no branch, tag or commit "%s"' % revision, "/o/n/tree/main")
        self.refused("o/n@" + "0" * 40, "/o/n: has no commit " + "0" * 40)

    def test_a_missing_file(self):
        self.hub.commit("o/n", {SHARDS[1]: None})
        self.refused("o/n", SHARDS[1], "names a shard that is missing", "404")

    def test_no_checkpoint(self):
        self.hub.add("o/empty")
        self.refused("o/empty", "o/empty@main", "not a checkpoint")

    def test_a_wrong_token(self):
        for place in ("o/n", "o/n@" + self.commit_of()):
            self.refused(place, "/o/n: the Hub does not accept your token", "wrong or has expired", "401", token="hf_wrong")

    def test_nobody_there(self):
        closed = "http://127.0.0.1:%d" % free_port()
        self.refused("o/n", closed + "/o/n/resolve/main/config.json", "cannot reach the server", env={"HF_ENDPOINT": closed})
        self.refused("o/n", "no-such-host.invalid", "cannot reach", env={"HF_ENDPOINT": "http://no-such-host.invalid"})
        self.refused("o/n", "HF_ENDPOINT", env={"HF_ENDPOINT": "no-scheme"})

    def test_offline(self):
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            self.refused("o/n", "o/n@main", "HF_HUB_OFFLINE is set", "models--o--n", "hf download o/n --revision main",
                         env={name: "Yes"})
            self.refused("o/n@" + "a" * 40, "a" * 40, "HF_HUB_OFFLINE is set", "nothing of this commit", env={name: "1"})
        self.assertEqual(self.asked(), [])
        self.assert_ok(self.pack(env={"HF_HUB_OFFLINE": "0"}))

    def test_control_characters_of_a_server_stay_out_of_the_terminal(self):
        self.hub.add_fault("GET", "*", "403", body="bad \x1b[31m\r\nthing")
        self.refused("o/n", "403: bad [31m thing")


class Limits(HubCase):
    """Waits of minutes, each second of which is a two-hundredth of one. Against the clock: test_bad_network.py."""
    SECOND = 0.005

    def notes_of(self, result):
        return [line for line in result.stderr.split("\n") if "trying again" in line]

    def a_rate_limit_is_waited_for(self):
        self.hub.rate_limits, self.hub.second = {"resolvers": (4, 300)}, self.SECOND
        began = time.monotonic()
        result = self.assert_ok(self.pack("o/n", "--jobs", 1, "--dev", "pause=%g" % self.SECOND))
        self.assert_same_weights()
        notes = self.notes_of(result)
        self.assertTrue(notes)
        told = r"HTTP 429, too many requests .*hit the quota of 4 resolvers requests.*; trying again in (\d+) s"
        self.assertRegex(notes[0], told)
        refused = [entry for entry in self.hub.requests(host="hub") if entry.status == 429]
        self.assertLessEqual(len(refused), 2 * len(notes) + 2, "nobody knocks while the time is not up")
        self.assertLessEqual(int(re.search(told, notes[0])[1]), 301)
        self.assertGreater(time.monotonic() - began, 290 * self.SECOND)

    def retry_after_in_seconds_and_as_a_date(self):
        for value in ("200", lambda: email.utils.formatdate(time.time() + 200, usegmt=True)):
            self.hub.clear_faults()
            value = value if isinstance(value, str) else value()
            self.hub.add_fault("HEAD", "*", "429", times=1, headers={"Retry-After": value})
            began = time.monotonic()
            result = self.run_program("inspect", "o/n", "--dev", "pause=%g" % self.SECOND, env=self.env())
            self.assert_ok(result)
            self.assertGreater(time.monotonic() - began, 150 * self.SECOND)
            self.assertEqual(len(self.notes_of(result)), 1, str(result))

    def test_what_asks_for_more_than_the_hub_s_window_is_left_to_the_user(self):
        self.hub.add_fault("HEAD", "*", "429", headers={"RateLimit": '"api";r=0;t=4000'})
        self.assert_refused(self.pack(), "429", "asks to wait 4001 s", "run the command again then")

    def test_failures_that_pass(self):
        self.hub.add_fault("HEAD", "*", "502", times=1)
        for status in ("500", "502", "503", "504", "408"):
            self.hub.add_fault("GET", "*", status, times=1)
        for kind in ("reset", "cut"):
            self.hub.add_fault("GET", "*", kind, times=2)
        self.assert_ok(self.pack())
        self.assert_same_weights()

    def test_failures_that_last(self):
        self.hub.add_fault("GET", "*/tree/*", "503", body="out of order")
        self.assert_refused(self.pack("o/n", "--dev", "retries=2"), "/tree/", "503", "out of order", "gave up after 3 attempts")


class Links(HubCase):
    """Large files come by signed links of the storage, which are good for a while."""

    PAYLOAD = 1_500_000  # of a shard

    def write_source(self):
        shards = [{"model.layers.%d.w" % number: ("U8", [self.PAYLOAD], random.Random(number).randbytes(self.PAYLOAD))}
                  for number in range(2)]
        return write_small(self.scratch / "files", shards)

    def that_expire_in_the_middle_of_long_ranges(self):
        self.hub.link_seconds = 1.0
        cuts = self.hub.add_fault("GET", "objects/*", "cut", host="storage", min_bytes=100_000)  # after half of the rest
        self.assert_ok(self.pack("o/n", "--jobs", 2, "--limit-rate", "1MB"))
        self.assert_same_weights()
        self.assertGreater(cuts.struck, 2)
        expired = [entry for entry in self.hub.requests(host="storage") if entry.status == 403]
        self.assertGreater(len(expired), 0, "no link has expired")
        resolved = self.hub.requests("GET", "*.safetensors", host="hub")
        self.assertGreater(len(resolved), 2 * len(SHARDS))
        self.assertLess(len(resolved), 60)

    def that_are_all_revoked_every_second(self):
        stop = threading.Event()

        def revoke():
            while not stop.wait(1.0):
                self.hub.expire_links()
        self.hub.add_fault("GET", "objects/*", "cut", host="storage", every=2, min_bytes=100_000)
        thread = threading.Thread(target=revoke)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)
        self.assert_ok(self.pack("o/n", "--limit-rate", "1MB"))
        expired = [entry for entry in self.hub.requests(host="storage") if entry.status == 403]
        self.assertGreater(len(expired), 0, "no link has expired")
        self.assert_same_weights()

    def test_a_refusal_that_is_no_expiry_ends(self):
        body = '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>invalid range</Message></Error>'
        self.hub.add_fault("GET", "objects/*", "403", host="storage", body=body)
        result = self.pack("o/n", "--jobs", 1)
        self.assert_refused(result, SHARDS[0], "the link to its bytes is refused (HTTP 403)", "AccessDenied: invalid range",
                            "age is not the reason")
        self.assertIsNone(re.search(r"Signature|Expires|127\.0\.0\.2", result.stderr), result.stderr)
        self.assertLess(len(self.hub.requests(host="storage")), 8)

    def test_one_link_serves_many_ranges(self):
        self.hub.add_fault("GET", "objects/*", "cut", host="storage", every=2, min_bytes=100_000)
        self.assert_ok(self.pack("o/n", "--jobs", 1))
        self.assert_same_weights()
        resolved = self.hub.requests("GET", "*.safetensors", host="hub")
        self.assertEqual(len(resolved), 2 * len(SHARDS), "once for the catalogue, once to be read")

    def test_a_first_answer_that_is_cut(self):
        for skip in range(4):  # of the catalogue's request for either shard, and of the one that begins to read it
            self.hub.clear_faults()
            cut = self.hub.add_fault("GET", "objects/*", "cut", host="storage", min_bytes=1000, times=1, skip=skip)
            out = self.scratch / str(skip)
            self.assert_ok(self.pack("o/n", "--jobs", 1, out=out))
            self.assert_same_weights(out)
            self.assertEqual(cut.struck, 1)

    def test_a_flipped_bit_is_never_sealed(self):
        self.hub.add_fault("GET", "objects/*", "corrupt", at=1_000_000, host="storage")
        # The last shard is read first.
        self.assert_refused(self.pack("o/n", "--jobs", 1), SHARDS[1], "SHA-256", "o/n@main", "declares")
        self.assert_absent(self.out / "manifest.json")
        self.hub.clear_faults()
        self.assert_ok(self.pack())
        self.assert_same_weights()


class Stalled(HubCase):
    def write_source(self):
        return write_small(self.scratch / "files")

    def the_user_says_how_long_silence_may_last(self):
        self.hub.add_fault("GET", "*" + SHARDS[0], "stall", times=1)
        began = time.monotonic()
        self.assert_ok(self.pack("o/n", env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"}))
        self.assertLess(time.monotonic() - began, 20)
        self.assert_same_weights()


class AtTheSameTime(EndToEnd):
    """Those that take seconds."""

    def test_waits(self):
        self.together(
            *map(Limits, ("a_rate_limit_is_waited_for", "retry_after_in_seconds_and_as_a_date")),
            *map(Links, ("that_expire_in_the_middle_of_long_ranges", "that_are_all_revoked_every_second")),
            Stalled("the_user_says_how_long_silence_may_last"))


if __name__ == "__main__":
    main()
