"""What the tests of `reshard inspect --html` share: a page of a checkpoint, a checkpoint of hostile names, and where the
tensors of a folder lie."""

import json
from pathlib import Path

import safetensors_io
from common import EndToEnd
from inspect_page import Page

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


class InspectCase(EndToEnd):
    def write_page(self, source, *arguments, name="page.html"):
        out = self.scratch / name
        result = self.assert_ok(self.run_program("inspect", source, "--html", out, *arguments))
        self.assertRegex(result.stdout, r"^[^\n]*page\.html: [\d.]+ kB of \d+ tensors [^\n]*\n$")
        for line in result.stderr.splitlines():
            self.assertTrue(line.startswith("warning: ") and ("of no known family" in line or "is missing between others" in line), result.stderr)
        return out

    def page(self, source, *arguments):
        return Page(self.write_page(source, *arguments).read_text(encoding="utf-8"))

    def hostile_source(self, shards=HOSTILE):
        source = self.scratch / "a<img src=x onerror=alert(0)>\u202e"
        source.mkdir()
        safetensors_io.write(source / "model.safetensors", {name: ("U8", [3], b"abc") for name in shards})
        return source
