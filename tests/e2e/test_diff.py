"""`reshard diff`: what two places have different, and how little is read to tell."""

import json
import shutil

import safetensors_io
from checkpoints import packed_tiny, small_tensors, write_small
from common import EndToEnd, exact_size, flip_bit, main

EXPERT = "model.layers.1.mlp.experts.0.gate_proj.weight"


class Diff(EndToEnd):
    def setUp(self):
        super().setUp()
        self.source = write_small(self.scratch / "source")
        self.packed = self.scratch / "packed"
        self.assert_ok(self.repack(self.source, self.packed))

    def diff(self, a, b, *arguments, code=None, **options):
        result = self.run_program("diff", a, b, *arguments, **options)
        if code is not None:
            self.assertEqual(result.code, code, str(result))
        return result

    def objects(self, a, b, *arguments):
        return [json.loads(line) for line in self.diff(a, b, "--json", *arguments).stdout.split("\n")[:-1]]

    def changed(self, name="changed"):
        shards = small_tensors()
        del shards[1]["model.norm.weight"]
        shards[1]["model.layers.1.new"] = ("U8", [1], b"x")
        dtype, shape, data = shards[0][EXPERT]
        shards[0][EXPERT] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
        shards[1]["lm_head.weight"] = ("BF16", [8, 4], shards[1]["lm_head.weight"][2])
        folder = write_small(self.scratch / name, shards)
        (folder / "config.json").write_text("{}")
        (folder / "LICENSE").write_text("x")
        return folder

    def test_equal_places_in_every_form(self):
        plain = self.scratch / "plain"
        self.assert_ok(self.run_program("unpack", self.packed, "--out", plain, "--shard-size", "5KB"))
        server = self.serve(self.scratch)
        places = [self.source, self.packed, plain, server.url + "/source", server.url + "/packed"]
        for a in places:
            for b in places:
                result = self.diff(a, b, code=0)
                self.assertIn("18 tensors equal, 0 differ; 2 companions equal, 0 differ", result.stdout)
                self.assertEqual(self.diff(a, b, "--json", code=0).stdout, "")

    def test_two_packed_places_cost_no_payload(self):
        server = self.serve(self.scratch)
        shutil.copytree(self.packed, self.scratch / "copy")
        result = self.diff(server.url + "/packed", server.url + "/copy", code=0)
        self.assertIn("; 0 bytes read", result.stdout)
        self.assertEqual({request.path.split("/")[1] for request in server.requests()}, {"manifest.json"})

    def test_one_packed_place_costs_the_other_ones_payload_once(self):
        server = self.serve(packed_tiny())
        payload = sum(len(data) for _, _, data in safetensors_io.read_checkpoint(self.data()).values())
        result = self.diff(server.url, self.data(), "--tensors-only", code=0)
        self.assertIn("; %s read" % exact_size(payload), result.stdout)
        self.assertEqual(server.requests("model/*"), [])
        other = self.serve(self.data())
        self.diff(server.url, other.url, "--tensors-only", code=0)
        sent = sum(request.sent for request in other.requests("*.safetensors"))
        self.assertLess(sent, payload * 1.1)

    def test_every_kind_of_difference(self):
        changed = self.changed()
        changed_packed = self.scratch / "changed-packed"
        self.assert_ok(self.repack(changed, changed_packed))
        want = [{"kind": "only_in_a", "tensor": "model.norm.weight"}, {"kind": "only_in_b", "tensor": "model.layers.1.new"},
                {"kind": "type", "tensor": "lm_head.weight", "detail": "BF16 [4,8] in A, BF16 [8,4] in B"},
                {"kind": "bytes", "tensor": EXPERT}, {"kind": "only_in_b", "companion": "LICENSE"},
                {"kind": "bytes", "companion": "config.json"}]
        for a in (self.source, self.packed):
            for b in (changed, changed_packed):
                for jobs in (1, 8):
                    self.assertEqual(self.objects(a, b, "--jobs", jobs), want)
                self.assertEqual(self.objects(a, b, "--tensors-only"), want[:4])
                text = self.diff(a, b, code=1).stdout
                for line in ('tensors, only in A (1):', '  "model.norm.weight"', 'companions, only in B (1):',
                             '  "lm_head.weight": BF16 [4,8] in A, BF16 [8,4] in B'):
                    self.assertIn(line + "\n", text)
                self.assertIn("15 tensors equal, 4 differ; 1 companions equal, 2 differ", text)
        swapped = {"only_in_a": "only_in_b", "only_in_b": "only_in_a"}
        self.assertEqual({(d.get("tensor"), swapped.get(d["kind"], d["kind"])) for d in want if "tensor" in d},
                         {(d["tensor"], d["kind"]) for d in self.objects(changed, self.packed) if "tensor" in d})

    def test_a_server_that_cannot_list_is_asked_for_the_other_places_files(self):
        (self.source / "weird_name.txt").write_text("x")
        other = self.scratch / "other"
        self.assert_ok(self.repack(self.source, other))
        server = self.serve(self.source)
        self.diff(server.url, other, code=0)
        self.diff(other, server.url, code=0)
        (self.source / "weird_name.txt").write_text("y")
        self.assertEqual(self.objects(server.url, other), [{"kind": "bytes", "companion": "weird_name.txt"}])

    def test_awkward_names_stay_one_line_each(self):
        names = ["a\nb", 'quo"te', "\x1b[31mred", "\u2028"]
        folders = []
        for number in range(2):
            folder = self.scratch / str(number)
            folder.mkdir()
            tensors = {name: ("U8", [1], b"xy"[number:number + 1]) for name in names}
            safetensors_io.write(folder / "model.safetensors", tensors)
            folders.append(folder)
        text = self.diff(*folders, code=1).stdout
        self.assertEqual(text.count("\n"), len(names) + 2)
        self.assertNotIn("\x1b", text)
        self.assertEqual(sorted(d["tensor"] for d in self.objects(*folders)), sorted(names))

    def test_what_cannot_be_read_is_an_error(self):
        self.assert_refused(self.diff(self.source, self.scratch / "nowhere"), "nowhere")
        server = self.serve(self.source)
        server.add_fault("*00002.safetensors", "404", skip=1)
        self.assert_refused(self.diff(server.url, self.packed), "404")
        self.assertEqual(self.diff(self.source, self.packed, "--nonsense").code, 2)
        self.assertEqual(self.run_program("diff", self.source).code, 2)

    def test_a_flipped_bit(self):
        copy = self.scratch / "copy"
        shutil.copytree(self.source, copy)
        flip_bit(copy / "model-00001-of-00002.safetensors", -1)
        last = list(small_tensors()[0])[-1]
        self.assertEqual(self.objects(copy, self.packed), [{"kind": "bytes", "tensor": last}])


if __name__ == "__main__":
    main()
