"""What the tests of recipes that take a part share: which tensors these are, and where in the source they lie."""

import json

import safetensors_io
from common import INDEX, EndToEnd

QUESTION, ANSWER = "What is the capital of Spain?", "The capital of Spain is Madrid.\n"
GAP = 65536  # bytes between wanted ones that are read along
TINY = ["model-%05d-of-000005.safetensors" % (number + 1) for number in range(5)]


def in_layers(*layers):
    return lambda name: any(name.startswith("model.layers.%d." % layer) for layer in layers)


def ranges_of(path, wanted):
    """Where the tensors of a shard that are wanted lie: [begin, end) of the file, near ones as one; and their bytes."""
    header = json.loads(path.read_bytes()[8:8 + int.from_bytes(path.read_bytes()[:8], "little")])
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    ranges = []
    for info in sorted((info for name, info in header.items() if name != "__metadata__" and wanted(name)),
                       key=lambda info: info["data_offsets"]):
        begin, end = (start + offset for offset in info["data_offsets"])
        if begin == end:
            continue
        if ranges and begin <= ranges[-1][1] + GAP:
            ranges[-1][1] = end
        else:
            ranges.append([begin, end])
    return ranges


class RecipeCase(EndToEnd):
    def setUp(self):
        super().setUp()
        self.out = self.scratch / "packed"

    def manifest(self, packed=None):
        return json.loads(((packed or self.out) / "manifest.json").read_text())

    def assert_holds(self, packed, source, wanted):
        """Exactly those tensors of the source, byte for byte."""
        expected = {name: value for name, value in safetensors_io.read_checkpoint(source).items() if wanted(name)}
        self.assertTrue(expected)
        found = safetensors_io.read_checkpoint(packed)
        self.assertEqual(sorted(set(found) ^ set(expected)), [])
        self.assertEqual([name for name in expected if expected[name] != found[name]], [])
        index = json.loads((packed / INDEX).read_text())["weight_map"]
        self.assertEqual(sorted(index), sorted(expected))

    def assert_verified(self, packed, source):
        self.assert_ok(self.run_program("verify", packed))
        said = self.assert_ok(self.run_program("verify", packed, "--source", source)).stdout
        self.assertIn("equal to what its recipe makes of the source", said)

    def ask(self, folder, *arguments):
        return self.run_program(folder, "-p", QUESTION, *arguments, program="DSPACK_DSRUN")
