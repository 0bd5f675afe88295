"""`dsrun replay --html`: the page of a recorded trace, as a file and in Chromium; and traces of strangers."""

import json
import random
import unittest

from common import EndToEnd, main
from browser import SharedBrowser, find_browser
from page_audit import audit
from page_elements import Elements, digest

HOSTILE = "</script><img src=x onerror=alert(1)><!--\u202e"
LAYERS, EXPERTS, TOP_K = (3, 4, 7), 32, 4


class Traced(EndToEnd):
    def write_trace(self, model_type="deepseek_v3", passes=40, layers=LAYERS, experts=EXPERTS, name="routes.jsonl"):
        """Returns the path, and [{(row, expert): times}] by pass: a prompt of 5 tokens, then one token each."""
        dice = random.Random(7)
        path, routed = self.scratch / name, []
        with open(path, "w") as out:
            shapes = [{"layer": layer, "experts": experts, "expert_bytes": 1000} for layer in layers]
            out.write(json.dumps({"format": "dspack-routes", "version": 1, "model_type": model_type, "top_k": TOP_K,
                                  "layers": shapes}) + "\n")
            for number in range(passes):
                times = {}
                for row, layer in enumerate(layers):
                    ids = [dice.sample(range(min(experts, 200)), TOP_K) for _ in range(1 if number else 5)]
                    for expert in sum(ids, []):
                        times[row, expert] = times.get((row, expert), 0) + 1
                    out.write(json.dumps({"pass": number, "phase": "decode" if number else "prefill", "layer": layer,
                                          "ids": ids}) + "\n")
                routed.append(times)
        return path, routed

    def replay(self, *arguments):
        return self.run_program("replay", *arguments, program="DSPACK_DSRUN")

    def write_page(self, trace, slots="10%,30%,60%"):
        out = self.scratch / "page.html"
        result = self.assert_ok(self.replay(trace, "--slots", slots, "--html", out))
        self.assertRegex(result.stdout, r"page\.html: [\d.]+ kB of .*; open it in a browser\n$")
        return out


class Content(Traced):
    def test_frames_are_the_passes_and_results_those_of_json(self):
        trace, routed = self.write_trace()
        page = Elements(self.write_page(trace).read_text())
        data = json.loads(page.bodies["script"][0])
        self.assertEqual(data["rows"], [[layer, EXPERTS] for layer in LAYERS])
        self.assertEqual([(frame["pass"], frame["passes"], frame["rows"], frame["prompt"]) for frame in data["frames"]],
                         [(0, 1, 5, True)] + [(i, 1, 1, False) for i in range(1, 40)])
        found = [{(row, expert): times for row, pairs in frame["picked"] for expert, times in zip(pairs[::2], pairs[1::2])}
                 for frame in data["frames"]]
        self.assertEqual(found, routed)
        told = self.assert_ok(self.replay(trace, "--slots", "10%,30%,60%", "--json")).stdout
        self.assertEqual(data["results"], json.loads(told))

    def test_a_long_trace_has_several_passes_a_frame(self):
        trace, routed = self.write_trace(passes=9000)
        data = json.loads(Elements(self.write_page(trace, "30%").read_text()).bodies["script"][0])
        self.assertEqual({frame["passes"] for frame in data["frames"]}, {4})
        self.assertEqual(sum(frame["rows"] for frame in data["frames"]), 9004)
        total = sum(sum(pairs[1::2]) for frame in data["frames"] for _, pairs in frame["picked"])
        self.assertEqual(total, sum(sum(times.values()) for times in routed))

    def test_it_is_complete_in_itself_and_text_of_strangers_stays_in_its_place(self):
        harmless = Elements(self.write_page(self.write_trace()[0]).read_text())
        page = Elements(self.write_page(self.write_trace(model_type=HOSTILE)[0]).read_text())
        self.assertEqual([tag for tag, _ in page.elements], [tag for tag, _ in harmless.elements])
        self.assertNotIn("<", page.bodies["script"][0])
        self.assertIn(HOSTILE, json.loads(page.bodies["script"][0])["about"])
        policy = page.policy()
        self.assertEqual(policy["default-src"], ["'none'"])
        self.assertEqual(policy["script-src"], [digest(page.bodies["script"][1])])
        self.assertEqual(policy["style-src"], [digest(page.bodies["style"][0])])
        self.assertNotRegex(page.text, r"(?i)(src|href)=.?https?:|@import|url\(|innerHTML")

    def test_where_it_goes(self):
        trace, _ = self.write_trace()
        page = self.write_page(trace).read_text()
        result = self.assert_ok(self.replay(trace, "--slots", "10%,30%,60%", "--html", "-"))
        self.assertEqual(result.stdout, page)
        self.assert_refused(self.replay(trace, "--slots", "4", "--html", self.scratch / "no" / "page.html"), "no",
                            program="dsrun")
        self.assertEqual(self.replay(trace, "--slots", "4", "--html", "-", "--json").code, 2)
        wide, _ = self.write_trace(layers=range(4), experts=60_000, passes=2, name="wide.jsonl")
        out = self.scratch / "wide.html"
        self.assert_refused(self.replay(wide, "--slots", "4", "--html", out), "240000 experts", program="dsrun")
        self.assert_absent(out)


@unittest.skipUnless(find_browser(), "no Chromium is installed (Debian: apt-get install chromium)")
class InABrowser(SharedBrowser, Traced):
    def look(self, trace, width=1200):
        self.browser.resize(width, 900)
        self.browser.open(self.write_page(trace).as_uri())
        self.browser.settle()
        self.assertEqual(self.browser.complaints, [])

    def lit(self):
        return int(self.browser.evaluate("document.querySelector('#map canvas').dataset.lit"))

    def test_the_slider_and_the_button_go_through_the_passes(self):
        trace, routed = self.write_trace()
        self.look(trace)
        self.assertEqual(self.lit(), len(routed[0]))
        for at in (17, 3, 39):
            self.browser.evaluate("(() => { find('time').value = %d; find('time').dispatchEvent(new Event('input')); })()" % at)
            self.assertEqual(self.lit(), len(routed[at]))
            expected = {}
            for times in routed[:at + 1]:
                for key, count in times.items():
                    expected[key] = expected.get(key, 0) + count
            shown = self.browser.evaluate("player.times.map((row) => [...row])")
            self.assertEqual({(row, expert): times for row, all in enumerate(shown) for expert, times in enumerate(all)
                              if times}, expected)
            self.assertIn("Pass %d, decode: 1 token, 12 experts of 96" % at, self.browser.evaluate("find('frame').textContent"))
        self.browser.evaluate("find('time').value = 30, find('time').dispatchEvent(new Event('input')), find('speed').value = 30,"
                              "find('play').click()")
        self.wait_until(lambda: self.browser.evaluate("player.at === 39 && find('play').textContent === 'Play'"), "the last pass")

    def test_the_chart_and_its_table_have_the_results(self):
        trace, _ = self.write_trace()
        self.look(trace)
        results = json.loads(self.replay(trace, "--slots", "10%,30%,60%", "--json").stdout)["results"]
        rows = self.browser.evaluate("[...document.querySelectorAll('#table tbody tr')].map((row) => "
                                     "[...row.children].map((cell) => cell.firstChild.data.trim()))")
        self.assertEqual(rows, [[policy["policy"]] + ["%.2f" % each["policies"][i]["decode"]["misses_per_token"]
                                                      for each in results]
                                for i, policy in enumerate(results[0]["policies"])])
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#chart polyline').length"), len(rows))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#chart circle').length"), 3 * len(rows))

    def test_three_widths_in_both_schemes_and_hostile_text(self):
        trace, _ = self.write_trace(model_type=HOSTILE)
        seen = set()
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for width in (1200, 800, 360):
                self.look(trace, width)
                self.assertGreater(audit(self, self.browser, width), 20)
                self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, iframe').length"), 0)
                seen.add(self.browser.screenshot())
        self.assertEqual(len(seen), 6)
        self.assertIn("<img src=x onerror=alert(1)>", self.browser.evaluate("find('about').textContent"))


if __name__ == "__main__":
    main()
