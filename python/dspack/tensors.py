"""A tensor as its bytes, and several as a safetensors file."""

import json
import struct
from dataclasses import dataclass
from typing import Mapping, Tuple

# Bits of an element, by safetensors' names.
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64}


@dataclass(frozen=True)
class Tensor:
    dtype: str  # as safetensors names it: "F8_E4M3"
    shape: Tuple[int, ...]
    data: bytes


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of these tensors, in this order: the official library opens it (safetensors.torch.load)."""
    header: "dict[str, object]" = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(tensor.data)]}
        at += len(tensor.data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(tensor.data for tensor in tensors.values())])
