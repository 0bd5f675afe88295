"""Checks a packed folder with the official safetensors library: same tensors, same bytes, nothing missing.

    python check_safetensors.py SOURCE_DIR PACKED_DIR

Opens every *.safetensors file anywhere below PACKED_DIR and asserts that every tensor's dtype, shape and raw bytes
equal the source's, the MTP module's included, that none is missing, none is added and none stands twice.
"""
import pathlib
import sys

import torch
from safetensors import safe_open


def tensors(folder):
    out = {}
    for file in sorted(pathlib.Path(folder).rglob("*.safetensors")):
        with safe_open(file, framework="pt") as f:
            for name in f.keys():
                assert name not in out, f"{name} stands in {out[name][0]} and in {file}"
                t = f.get_tensor(name)
                out[name] = (file, f.get_slice(name).get_dtype(), tuple(t.shape),
                             t.contiguous().reshape(-1).view(torch.uint8))
    return out


def main(source, packed):
    want, got = tensors(source), tensors(packed)
    assert want, f"no tensor below {source}"
    missing, added = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
    assert not missing, f"{len(missing)} missing, first {missing[0]}"
    assert not added, f"{len(added)} added, first {added[0]}"
    for name, (file, dtype, shape, data) in want.items():
        other_file, other_dtype, other_shape, other_data = got[name]
        assert (dtype, shape) == (other_dtype, other_shape), f"{name}: {dtype} {shape} became {other_dtype} {other_shape}"
        assert torch.equal(data, other_data), f"{name}: bytes differ between {file} and {other_file}"
    print(f"{len(want)} tensors in {len({v[0] for v in want.values()})} files equal those in "
          f"{len({v[0] for v in got.values()})} files")


if __name__ == "__main__":
    main(*sys.argv[1:3])
