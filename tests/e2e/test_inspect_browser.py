"""The page of `reshard inspect --html` in Chromium, where there is one: what a person sees and does."""

import collections
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import safetensors_io
from checkpoints import packed_tiny
from common import main
from browser import Browser, find_browser  # in tests/support, which common puts into the path
from inspect_page import Page
from inspecting import InspectCase, header_places

places_of = functools.lru_cache(maxsize=None)(header_places)  # of folders that no case changes


@unittest.skipUnless(find_browser(), "no Chromium is installed (Debian: apt-get install chromium)")
class InABrowser(InspectCase):
    @classmethod
    def setUpClass(cls):
        """One browser for all cases: to start it takes more than a page does."""
        home = tempfile.mkdtemp(prefix="dspack-e2e-")
        cls.addClassCleanup(shutil.rmtree, home, ignore_errors=True)
        cls.browser = Browser(home).__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self):
        super().setUp()
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.scheme("light")
        self.browser.complaints.clear()
        self.browser.requests.clear()

    def look(self, source, fragment="", *arguments, width=1280, height=1000):
        """Loads the page of a source, which must load nothing else and complain of nothing; returns the seconds."""
        address = self.write_page(source, *arguments).as_uri()
        self.browser.resize(width, height)
        seconds = self.browser.open(address + fragment)
        self.browser.settle()
        loaded = [url for url in self.browser.requests if not url.startswith(("data:", "about:"))]
        self.assertEqual({url.partition("#")[0] for url in loaded}, {address})
        self.assert_quiet()
        return seconds

    def assert_quiet(self):
        self.assertEqual(self.browser.complaints, [])

    def text(self, selector):
        return self.browser.evaluate("document.querySelector(%s).textContent" % json.dumps(selector))

    def extents(self):
        """{(side, file): [(begin, end), ...]} as the page says in numbers."""
        found = self.browser.evaluate("[...document.querySelectorAll('.extents li')].map((li) => "
                                      "[li.dataset.side, li.dataset.file, Number(li.dataset.begin), "
                                      "Number(li.dataset.end), li.textContent])")
        extents = {}
        for side, path, begin, end, text in found:
            self.assertIn("{:,} – {:,}".format(begin, end), text)
            extents.setdefault((side, path), []).append((begin, end))
        return extents

    def expected_extents(self, side, folder, prefix):
        """The same of the tensors whose names begin so, from the files' own headers."""
        extents = {}
        pieces = sorted(place for name, place in places_of(folder).items() if name.startswith(prefix))
        for path, begin, end in pieces:
            mine = extents.setdefault((side, path), [])
            if mine and mine[-1][1] == begin:
                mine[-1] = (mine[-1][0], end)
            else:
                mine.append((begin, end))
        return extents

    def expect_expert(self, layer, expert, by):
        prefix = "model.layers.%d.mlp.experts.%d." % (layer, expert)
        self.assertEqual(self.text("#chosen-title"), "Layer %d, expert %d" % (layer, expert))
        self.assertEqual(self.extents(), {**self.expected_extents("before", self.data(), prefix),
                                          **self.expected_extents("after", packed_tiny(by), prefix)})

    def test_an_expert_named_in_the_address_shows_its_extents(self):
        for source, arguments, by in ((self.data(), (), "expert"), (self.data(), ("--by", "layer"), "layer"),
                                      (packed_tiny("shard:2MB"), (), "shard:2MB")):
            with self.subTest(source=source, by=by):
                self.look(source, "#layer=3&expert=5", *arguments)
                self.expect_expert(3, 5, by)
                rows = self.browser.evaluate("[...document.querySelectorAll('.tensors tbody tr')].map((row) => "
                                             "[...row.children].map((cell) => cell.textContent))")
                expected = []
                tensors = safetensors_io.read_checkpoint(self.data())
                before, after = places_of(self.data()), places_of(packed_tiny(by))
                for name in sorted(tensors):
                    if name.startswith("model.layers.3.mlp.experts.5."):
                        dtype, shape, raw = tensors[name]
                        ranges = ["{:,} – {:,}".format(*side[name][1:]) for side in (before, after)]
                        expected.append([name, dtype, json.dumps(shape), "{:,}".format(len(raw)), *ranges])
                self.assertEqual(rows, expected)

    def test_the_map_has_a_cell_for_every_expert_and_rest(self):
        self.look(self.data())
        self.assertEqual(self.browser.evaluate("document.querySelector('#map').dataset.cells"), str(5 * 64 + 6 + 2))

    def test_totals_are_those_of_the_tensors(self):
        self.look(self.data())
        for table, column in (("by-role", 4), ("by-dtype", 1)):
            expected = {}
            for tensor in Page(self.write_page(self.data()).read_text()).tensors():
                count, size = expected.get(tensor[column], (0, 0))
                expected[tensor[column]] = (count + 1, size + tensor[3])
            rows = self.browser.evaluate("[...document.querySelectorAll('#%s tbody tr')].map((row) => "
                                         "[...row.children].slice(0, 3).map((cell) => cell.textContent))" % table)
            self.assertEqual({name: (count, size) for name, count, size in rows},
                             {name: ("{:,}".format(count), "{:,}".format(size))
                              for name, (count, size) in expected.items()})
        figures = self.text("#figures")
        for figure in ("14,936,912 bytes", "2,059", "320", "5 → 328", "64 in each of 5 layers"):
            self.assertIn(figure, figures)

    def cell(self, layer, expert):
        """The middle of a cell on the screen, measured at the map itself: the cell that is framed when it is chosen."""
        return self.browser.evaluate(
            "(() => { const model = decode(find('catalogue').textContent);"
            " const map = new CheckpointMap(find('map'), find('map-frame'), model); map.ratio = devicePixelRatio; map.measure();"
            " const unit = map.model.units.find((each) => each.row === %d && each.expert === %d);"
            " const [left, top, width, height] = map.box(unit); const at = find('map').getBoundingClientRect();"
            " return [at.left + left + width / 2, at.top + top + height / 2]; })()" % (layer, expert))

    def test_pointer_and_keys_choose(self):
        self.look(self.data())
        where = self.cell(2, 63)
        self.browser.move(*where)
        self.assertRegex(self.text("#readout"), "^Layer 2, expert 63: .* model/layers/002/experts/063.safetensors$")
        self.expect_expert(1, 0, "expert")  # pointing is not choosing
        self.browser.click(*where)
        self.expect_expert(2, 63, "expert")
        self.browser.evaluate("find('map').focus()")
        for key, title in (("ArrowRight", "Layer 2, expert 63"), ("ArrowLeft", "Layer 2, expert 62"),
                           ("ArrowDown", "Layer 3, expert 62"), ("ArrowUp", "Layer 2, expert 62"),
                           ("ArrowUp", "Layer 1, expert 62"), ("ArrowUp", "Layer 0, without its routed experts"),
                           ("ArrowUp", "Token embedding"), ("ArrowUp", "Token embedding")):
            self.browser.press(key)
            self.assertEqual(self.text("#chosen-title"), title)
        self.assert_quiet()

    def test_lists_choose_and_the_address_keeps_it(self):
        self.look(self.data())
        choose = "(() => { const list = find('%s'); list.value = '%s'; list.dispatchEvent(new Event('change')); })()"
        self.browser.evaluate(choose % ("choose-row", 4))
        self.browser.settle()
        self.browser.evaluate(choose % ("choose-expert", 9))
        self.browser.settle()
        self.expect_expert(3, 9, "expert")
        self.assertEqual(self.browser.evaluate("location.hash"), "#layer=3&expert=9&colour=shard")
        self.browser.evaluate(choose % ("choose-expert", ""))
        self.browser.settle()
        self.assertEqual(self.text("#chosen-title"), "Layer 3, without its routed experts")
        self.assert_quiet()

    def test_an_address_of_something_that_is_not_there_shows_the_first_expert(self):
        for fragment in ("#layer=99", "#layer=3&expert=64", "#part=nothing", "#layer=0&expert=0", "#%"):
            self.look(self.data(), fragment)
            self.expect_expert(1, 0, "expert")

    def test_the_map_is_drawn_in_every_colouring_and_scheme(self):
        seen = []
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for colour in ("size", "dtype", "shard"):
                self.look(self.data(), "#layer=3&expert=5&colour=" + colour)
                pixels = [pixel for row in self.browser.picture_of("#map") for pixel in row]
                paper = pixels[0]
                self.assertEqual(sum(paper) > 384, scheme == "light", paper)
                drawn = [pixel for pixel, count in collections.Counter(pixels).items() if count > 100]
                # The paper, and: sizes of four kinds at least; two dtypes; five shards.
                self.assertGreaterEqual(len(drawn), 1 + {"size": 4, "dtype": 2, "shard": 5}[colour], (scheme, colour))
                seen.append(hash(tuple(pixels)))
        self.assertEqual(len(set(seen)), 6, "two of the drawings are the same")

    def test_nothing_sticks_out_sideways(self):
        for width in (1280, 800, 400, 320):
            for source in (self.data(), packed_tiny("layer")):
                self.look(source, "#layer=3&expert=5", width=width)
                self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width)

    def test_deepseek_v3_is_small_and_opens_quickly(self):
        source = self.scratch / "v3"
        tool = Path(__file__).resolve().parent.parent / "tools" / "v3_checkpoint.py"
        subprocess.run([sys.executable, "-B", tool, source], check=True, stdout=subprocess.DEVNULL)
        page = self.scratch / "page.html"
        self.assert_ok(self.run_program("inspect", source, "--html", page))
        self.assertLess(page.stat().st_size, 3_000_000)
        self.browser.resize(1280, 1000)
        seconds = self.browser.open(page.as_uri() + "#layer=3&expert=31")
        print("the page of DeepSeek-V3: %d bytes, loaded and drawn in %.2f s" % (page.stat().st_size, seconds))
        self.assertLess(seconds, 20)  # a second or two, but on a machine that does nothing else
        self.assertEqual(self.browser.evaluate("document.querySelector('#map').dataset.cells"), str(59 * 256 + 62 + 2))
        for figure in ("688,574,839,360 bytes", "91,991", "15,104", "163 → 15,168", "256 in each of 59 layers"):
            self.assertIn(figure, self.text("#figures"))
        extents = self.extents()
        before = {key: value for key, value in extents.items() if key[0] == "before"}
        self.assertEqual(before, self.expected_extents("before", source, "model.layers.3.mlp.experts.31."))
        self.assertEqual(len(before), 2, "this expert lies in two shards")
        # By docs/format.md: a page of header, three matrices of 2048 x 7168 bytes, three scales of 16 x 56 floats.
        self.assertEqual(extents["after", "model/layers/003/experts/031.safetensors"],
                         [(4096, 4096 + 3 * (2048 * 7168 + 16 * 56 * 4))])
        self.assert_quiet()

    def test_hostile_names_are_shown_and_do_nothing(self):
        source = self.hostile_source()
        self.look(source, width=400)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 400)
        for fragment in ("#part=other", "#layer=0&expert=0", "#layer=0&expert=1", "#layer=65535&expert=65535"):
            self.look(source, fragment)
            self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, svg, iframe, b').length"), 0)
            self.assertEqual(self.browser.evaluate("document.scripts.length"), 2)
        self.look(source, "#part=other")
        names = self.browser.evaluate("[...document.querySelectorAll('.tensors tbody th')]"
                                      ".map((cell) => cell.textContent)")
        for name in ("</script><img src=x onerror=alert(1)>", "{{script}} {{catalogue}}", "a\\u000ab", "\\u202egnp.exe",
                     "&lt;b&gt;&amp;", "__proto__"):
            self.assertIn(name, names)
        self.assertTrue(any(name.endswith("(10,000 characters)") for name in names))

    def test_a_side_that_is_missing_is_explained(self):
        packed = Path(shutil.copytree(packed_tiny("layer"), self.scratch / "packed"))
        os.remove(packed / "provenance" / "headers.json.zst")
        self.look(packed, "#layer=3&expert=5")
        self.assertRegex(self.text("#chosen"), "Not shown: .*headers.json.zst")
        self.assertEqual({side for side, _ in self.extents()}, {"after"})


if __name__ == "__main__":
    main()
