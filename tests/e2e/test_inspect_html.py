"""`reshard inspect SOURCE --html FILE`: what the page holds, that it is harmless and complete in itself."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import safetensors_io
from checkpoints import packed_tiny, write_small
from common import INDEX, main, tree
from inspect_page import Page, digest
from inspecting import HOSTILE, InspectCase, header_places

GROUPINGS = ("expert", "expert:3", "layer", "shard:2MB")


class Content(InspectCase):
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
        self.assertRegex(result.stderr, r"^warning: 1 tensor of the shards, 16 B, is not read: [^\n]*\n$")
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


class CommandLine(InspectCase):
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


if __name__ == "__main__":
    main()
