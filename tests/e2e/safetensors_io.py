"""An independent, small reader and writer of safetensors files: the rules are written down here a second time, from
the format's own description, so that a misreading in the program is not repeated by its test."""

import json
import struct
from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64}


class BrokenFile(Exception):
    pass


def require(condition, *reason):
    if not condition:
        raise BrokenFile(" ".join(str(word) for word in reason))


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    require(len(set(keys)) == len(keys), "a key stands twice")
    return dict(pairs)


def parse(data):
    """{name: (dtype, shape, raw bytes)}, data start. Raises BrokenFile with the rule that is broken."""
    require(len(data) >= 8, "rule 1: no room for the header's length")
    length = struct.unpack("<Q", data[:8])[0]
    require(length <= MAX_HEADER_BYTES, "rule 2: header too long")
    require(8 + length <= len(data), "rule 3: header runs past the file")
    try:
        text = data[8:8 + length].decode("utf-8")  # rule 4
        header = json.loads(text, object_pairs_hook=no_duplicates)
    except ValueError as error:
        raise BrokenFile("rule 4 or 5: " + str(error)) from error
    require(isinstance(header, dict) and text.startswith("{"), "rule 5: not an object from the first byte on")
    metadata = header.pop("__metadata__", {})
    require(all(isinstance(value, str) for value in metadata.values()), "rule 5: metadata is not text")
    payload = data[8 + length:]
    tensors = {}
    end_before = 0
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        require(set(info) == {"dtype", "shape", "data_offsets"} and info["dtype"] in BITS, "rule 5:", name)
        require(all(type(number) is int and number >= 0 for number in info["shape"] + info["data_offsets"]),
                "rule 5: no size in", name)
        begin, end = info["data_offsets"]
        require(begin == end_before and end >= begin, "rule 6: hole or overlap at", name)
        bits = BITS[info["dtype"]]
        for dimension in info["shape"]:
            bits *= dimension
            require(bits < 2**64, "rule 7: overflow in", name)
        require(bits % 8 == 0, "rule 8: part of a byte in", name)
        require(end - begin == bits // 8, "rule 9: shape and offsets differ in", name)
        tensors[name] = (info["dtype"], info["shape"], payload[begin:end])
        end_before = end
    require(end_before == len(payload), "rule 10: bytes behind the last tensor, or too few")
    return tensors, 8 + length


def read_checkpoint(folder):
    """{name: (dtype, shape, raw bytes)} of all safetensors files below a folder; a name must not occur twice."""
    tensors = {}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        for name, value in parse(path.read_bytes())[0].items():
            require(name not in tensors, name, "stands in two files, the second is", path)
            tensors[name] = value
    return tensors


def with_length(header):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw


def header_of(tensors):
    """{name: (dtype, shape, raw bytes)} -> header in the order given, back to back."""
    header = {}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    return header


def write(path, tensors):
    payload = b"".join(raw for _, _, raw in tensors.values())
    Path(path).write_bytes(with_length(header_of(tensors)) + payload)


def write_sparse(path, sizes, dtype="U8"):
    """A file of any size that takes no room: {name: bytes}, all zero."""
    header = {}
    at = 0
    for name, size in sizes.items():
        header[name] = {"dtype": dtype, "shape": [size * 8 // BITS[dtype]], "data_offsets": [at, at + size]}
        at += size
    head = with_length(header)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + at)


def write_index(folder, weight_map):
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (Path(folder) / "model.safetensors.index.json").write_text(text)
