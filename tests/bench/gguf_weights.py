"""What the tensors of a .gguf file take, for compare_llama.py: parameters, and bytes that a decoded token uses."""

import os
import struct
import sys
from math import prod


class Weights:
    """Only names, shapes and places are read; a tensor's bytes end where the next begins, or just before."""
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type
    STRING, ARRAY = 8, 9

    def __init__(self, path):
        with open(path, "rb") as self.file:
            if self.file.read(4) != b"GGUF":
                sys.exit("%s: not a GGUF file: a candidate is NAME=PROGRAM MODEL, with a folder or a .gguf" % path)
            _, tensors, values = self.read("<IQQ")
            fields = {self.text(): self.value(self.read("<I")[0]) for _ in range(values)}
            found = [(self.text(), self.read("<%dQ" % self.read("<I")[0]), self.read("<IQ")[1]) for _ in range(tensors)]
            begin = -(-self.file.tell() // 32) * 32
        ends = sorted(offset for _, _, offset in found)[1:] + [os.stat(path).st_size - begin]
        end = dict(zip(sorted(offset for _, _, offset in found), ends))
        kind = fields["general.architecture"]
        chosen = fields.get(kind + ".expert_used_count", 1) / fields.get(kind + ".expert_count", 1)
        self.parameters = sum(prod(shape) for _, shape, _ in found)
        self.token_bytes = sum((end[offset] - offset) * (chosen if "_exps." in name else 1)
                               for name, _, offset in found if name != "token_embd.weight")

    def read(self, form):
        return struct.unpack(form, self.file.read(struct.calcsize(form)))

    def text(self):
        return self.file.read(self.read("<Q")[0]).decode(errors="replace")

    def value(self, kind):
        if kind == self.STRING:
            return self.text()
        if kind == self.ARRAY:
            of, count = self.read("<IQ")
            return [self.value(of) for _ in range(count)]
        return int.from_bytes(self.file.read(self.SIZES[kind]), "little")  # floats are not asked for
