"""`reshard inspect SOURCE --html FILE`: what the page holds, that it is harmless and complete in itself; and, where
there is a Chromium, what a person sees and does."""

import collections
import hashlib
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import safetensors_io
from checkpoints import packed_tiny, write_small
from common import INDEX, EndToEnd, main, tree
from browser import Browser, find_browser  # in tests/support, which common puts into the path
from inspect_page import Page, digest

GROUPINGS = ("expert", "expert:3", "layer", "shard:2MB")
HOSTILE = ["</script><img src=x onerror=alert(1)>", "<!--<script>",
           "model.layers.0.mlp.experts.0.</script><svg onload=alert(2)>",
           "model.layers.0.mlp.experts.1.w\"' onmouseover=alert(3)", "{{script}} {{catalogue}}", "a\nb", "\x1b[31mred",
           "\u202egnp.exe", "\u2028\U0001f600", "", "x" * 10_000, "&lt;b&gt;&amp;", "model.layers.7.{layer}.{expert}.w",
           "model.layers.65535.mlp.experts.65535.w", "model.layers.007.mlp.experts.01.w", "__proto__", "constructor"]


def header_places(folder):
    """{name: (file, begin, end)} of all safetensors files below a folder, from their own headers."""
    places = {}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        with open(path, "rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(start - 8))
        header.pop("__metadata__", None)
        for name, info in header.items():
            begin, end = info["data_offsets"]
            places[name] = (path.relative_to(folder).as_posix(), start + begin, start + end)
    return places


class InspectHtml(EndToEnd):
    def write_page(self, source, *arguments, name="page.html"):
        out = self.scratch / name
        result = self.assert_ok(self.run_program("inspect", source, "--html", out, *arguments))
        self.assertRegex(result.stdout, r"^[^\n]*page\.html: [\d.]+ kB of \d+ tensors [^\n]*\n$")
        for line in result.stderr.splitlines():
            self.assertTrue(line.startswith("warning: ") and "of no known family" in line, result.stderr)
        return out

    def page(self, source, *arguments):
        return Page(self.write_page(source, *arguments).read_text(encoding="utf-8"))

    def hostile_source(self, shards=HOSTILE):
        source = self.scratch / "a<img src=x onerror=alert(0)>\u202e"
        source.mkdir()
        safetensors_io.write(source / "model.safetensors", {name: ("U8", [3], b"abc") for name in shards})
        return source


class Content(InspectHtml):
    def test_before_and_after_are_where_the_bytes_lie_and_will_lie(self):
        before = header_places(self.data())
        for by in GROUPINGS:
            after = header_places(packed_tiny(by))
            for source, arguments in ((self.data(), ("--by", by)), (packed_tiny(by), ())):
                with self.subTest(by=by, source=source):
                    page = self.page(source, *arguments)
                    self.assertEqual(page.places("before"), before)
                    self.assertEqual(page.places("after"), after)
                    for side, folder in (("before", self.data()), ("after", packed_tiny(by))):
                        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size
                                 for path in folder.rglob("*.safetensors")}
                        self.assertEqual(page.files(side), sizes)

    def test_by_expert_is_what_it_shows_unless_asked(self):
        self.assertEqual(self.page(self.data()).catalogue, self.page(self.data(), "--by", "expert").catalogue)

    def test_every_tensor_is_there_once_with_dtype_shape_and_size(self):
        found = {name: (dtype, shape, size) for name, dtype, shape, size, _ in self.page(self.data()).tensors()}
        self.assertEqual(found, {name: (dtype, shape, len(raw)) for name, (dtype, shape, raw)
                                 in safetensors_io.read_checkpoint(self.data()).items()})

    def test_experts_and_roles_are_those_of_the_names(self):
        page = self.page(self.data())
        experts = [(place, expert) for place, expert, _, _ in page.units() if expert is not None]
        self.assertEqual(experts, [(layer, expert) for layer in range(1, 6) for expert in range(64)])
        for name, _, _, _, role in page.tensors():
            self.assertEqual(role == "routed_expert", ".mlp.experts." in name, name)

    def test_it_is_complete_in_itself_and_its_policy_lets_nothing_else_in(self):
        page = self.page(self.data())
        self.assertNotRegex(page.text, r"(?i)https?:|//[a-z]|@import|url\(")
        links = [attributes[key] for _, attributes in page.elements for key in ("src", "href") if key in attributes]
        self.assertEqual(links, ["data:,"])
        policy = page.policy()
        self.assertEqual(policy["default-src"], ["'none'"])
        self.assertEqual(policy["script-src"], [digest(page.bodies["script"][1])])
        self.assertEqual(policy["style-src"], [digest(page.bodies["style"][0])])
        self.assertNotIn("connect-src", policy)
        self.assertEqual([attributes.get("type") for tag, attributes in page.elements if tag == "script"],
                         ["application/json", None])

    def test_the_same_source_gives_the_same_page(self):
        one, two = (self.write_page(self.data(), "--jobs", jobs).read_bytes() for jobs in (1, 9))
        self.assertEqual(hashlib.sha256(one).digest(), hashlib.sha256(two).digest())

    def test_hostile_names_stay_text(self):
        harmless = self.page(write_small(self.scratch / "small"))
        page = self.page(self.hostile_source())
        self.assertEqual([tag for tag, _ in page.elements], [tag for tag, _ in harmless.elements])
        self.assertEqual({name for name, *_ in page.tensors()}, set(HOSTILE))
        self.assertEqual(page.places("before"), header_places(self.hostile_source_folder()))
        self.assertNotIn("<", page.bodies["script"][0])
        self.assertTrue(page.bodies["script"][0].isascii())
        self.assertEqual(page.catalogue["place"], str(self.hostile_source_folder()))

    def hostile_source_folder(self):
        return next(self.scratch.glob("a<img*"))

    def test_a_folder_whose_name_is_no_text(self):
        source = Path(os.fsdecode(os.fsencode(self.scratch) + b"/caf\xe9"))
        write_small(source)
        page = self.page(source)
        self.assertTrue(page.catalogue["place"].endswith("/caf\ufffd"), page.catalogue["place"])

    def test_names_of_no_known_kind_and_holes_of_no_bytes(self):
        source = self.scratch / "source"
        source.mkdir()
        tensors = {"blocks.0.w": ("F32", [2], b"12345678"), "empty": ("F32", [0, 7], b""),
                   "model.layers.0.mlp.experts.gate_up_proj": ("BF16", [4, 2, 2], bytes(32)), "scalar": ("U8", [], b"1")}
        safetensors_io.write(source / "model.safetensors", tensors)
        page = self.page(source)
        self.assertEqual(sum(size for _, _, _, size, _ in page.tensors()), 41)
        self.assertEqual({path for path, _, _ in page.places("before").values()}, {"model.safetensors"})

    def test_over_http_it_costs_the_headers_alone(self):
        server = self.serve(packed_tiny("layer"))
        page = self.page(server.url)
        self.assertEqual(page.places("before"), header_places(self.data()))
        self.assertEqual([request.path for request in server.log if request.path.endswith(".safetensors")], [])

    def test_a_password_in_the_address_stays_out_of_it(self):
        packed = Path(shutil.copytree(packed_tiny("layer"), self.scratch / "packed"))
        os.remove(packed / "provenance" / "headers.json.zst")  # so that there is a reason, with the address, too
        server = self.serve(packed)
        page = self.page(server.url.replace("http://", "http://me:s3cret@"))
        self.assertEqual(page.catalogue["place"].rstrip("/"), server.url.rstrip("/"))
        self.assertIn("headers.json.zst", page.catalogue["before_reason"])
        self.assertNotIn("s3cret", page.text)

    def test_what_is_odd_is_said_here_and_there(self):
        source = write_small(self.scratch / "source")
        index = json.loads((source / INDEX).read_text())
        del index["weight_map"]["model.norm.weight"]
        (source / INDEX).write_text(json.dumps(index))
        result = self.assert_ok(self.run_program("inspect", source, "--html", self.scratch / "page.html"))
        self.assertRegex(result.stderr, r'^warning: [^\n]*"model.norm.weight"[^\n]*\n$')
        warnings = Page((self.scratch / "page.html").read_text()).catalogue["warnings"]
        self.assertEqual(["warning: %s\n" % text for text in warnings], [result.stderr])

    def test_a_layer_map_is_told(self):
        recipe = self.scratch / "recipe.json"
        recipe.write_text('{"by": "layer", "layer_map": "0-3,2-4"}')
        packed = self.scratch / "packed"
        self.assert_ok(self.run_program(self.data(), "--recipe", recipe, "--out", packed))
        self.assertEqual(self.page(packed).catalogue["layer_map"], "0-3,2-4")

    def test_without_the_kept_headers_it_says_why_it_lacks_a_side(self):
        packed = Path(shutil.copytree(packed_tiny("layer"), self.scratch / "packed"))
        os.remove(packed / "provenance" / "headers.json.zst")
        page = self.page(packed)
        self.assertIsNone(page.catalogue["before"])
        self.assertIn("headers.json.zst", page.catalogue["before_reason"])
        self.assertEqual(page.places("after"), header_places(packed))


class CommandLine(InspectHtml):
    def test_a_dash_is_stdout(self):
        result = self.assert_ok(self.run_program("inspect", self.data(), "--html", "-"))
        self.assertEqual(result.stdout_bytes, self.write_page(self.data()).read_bytes())

    def test_what_cannot_be_is_refused_and_leaves_nothing(self):
        packed = packed_tiny()
        cases = [((self.data(), "--html", self.scratch / "no" / "page.html"), ("no", "does not exist")),
                 ((self.data(), "--html", self.scratch), ("not an ordinary file",)),
                 ((packed, "--html", self.scratch / "p.html", "--by", "layer"), ("packed already", "--by")),
                 ((self.scratch / "nowhere", "--html", self.scratch / "p.html"), ("nowhere",))]
        for arguments, needles in cases:
            with self.subTest(arguments):
                self.assert_refused(self.run_program("inspect", *arguments), *needles)
        self.assertEqual(tree(self.scratch), {})

    def test_wrong_usage_is_status_2(self):
        for arguments in (["--html"], ["--by", "expert"], ["--html", "x", "--json"], ["--html", "x", "--by", "layers"]):
            result = self.run_program("inspect", self.data(), *arguments)
            self.assertEqual((result.code, result.stdout), (2, ""), str(result))

    def test_an_older_page_is_replaced_whole_or_kept(self):
        page = self.scratch / "page.html"
        page.write_text("older")
        self.assert_refused(self.run_program("inspect", self.scratch, "--html", page), "not a checkpoint")
        self.assertEqual(page.read_text(), "older")
        self.write_page(self.data())
        self.assertEqual(sorted(tree(self.scratch)), ["page.html"])

    def test_sizes_that_a_page_cannot_count_are_refused(self):
        source = self.scratch / "source"
        source.mkdir()
        try:
            safetensors_io.write_sparse(source / "model.safetensors", {"w": 2**53})
        except OSError as error:
            self.skipTest("no files of 8 PiB here: %s" % error)
        self.assert_refused(self.run_program("inspect", source, "--html", self.scratch / "p.html"), "2^53", "--json")


@unittest.skipUnless(find_browser(), "no Chromium is installed (Debian: apt-get install chromium)")
class InABrowser(InspectHtml):
    def setUp(self):
        super().setUp()
        self.browser = Browser(self.scratch).__enter__()
        self.addCleanup(self.browser.__exit__)

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
        pieces = sorted(place for name, place in header_places(folder).items() if name.startswith(prefix))
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
                before, after = header_places(self.data()), header_places(packed_tiny(by))
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
