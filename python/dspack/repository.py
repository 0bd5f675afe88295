"""A packed repository, opened: its experts, and their tensors read and verified."""

import hashlib
import os
from typing import Dict, List, Union

from .errors import DspackError, IntegrityError, UnsupportedError
from .manifest import MAX_MANIFEST_BYTES, Expert, Manifest, WeightFile
from .places import Place, open_place
from .tensors import Tensor

DEFAULT_MOST_BYTES = 4 << 30  # an expert of DeepSeek-V3 has 44 MB


class Repository:
    def __init__(self, place: Place):
        self.place = place
        self.manifest = Manifest.parse(place.read_all("manifest.json", MAX_MANIFEST_BYTES))

    @property
    def experts(self) -> List[Expert]:
        """Ascending by layer and number."""
        return [expert for _, expert in sorted(self.manifest.experts.items())]

    def expert(self, layer: int, expert: int) -> Expert:
        found = self.manifest.experts.get((layer, expert))
        if found is None:
            raise KeyError("there is no expert %d in layer %d" % (expert, layer))
        return found

    def read_expert(self, layer: int, expert: int, *, verify: bool = True,
                    most_bytes: int = DEFAULT_MOST_BYTES) -> Dict[str, Tensor]:
        """The tensors of one expert by name, read in as few ranges as they lie in.

        Raises KeyError (no such expert), IntegrityError (bytes that do not fit their digests; not without `verify`),
        UnsupportedError (a compressed file), OSError, and DspackError for an expert of more than `most_bytes`.
        """
        found = self.expert(layer, expert)
        file = self.manifest.files[found.path]
        if file.compressed:
            raise UnsupportedError("%s is stored compressed (zstd), which dsrun reads and this package does not"
                                   % found.path)
        if found.payload_bytes > most_bytes:
            raise DspackError("expert %d of layer %d has %d bytes, more than %d" % (expert, layer, found.payload_bytes,
                                                                                   most_bytes))
        tensors = self._read_tensors(found, file)
        if verify:
            self._check(found, tensors)
        return tensors

    def _read_tensors(self, expert: Expert, file: WeightFile) -> Dict[str, Tensor]:
        ranges = [(extent.offset, self.place.read(extent.path, extent.offset, extent.length, file.size))
                  for extent in expert.extents]
        tensors = {}
        for tensor in expert.tensors:
            data = b""
            for offset, raw in ranges:
                if tensor.end > tensor.begin and offset <= tensor.begin < offset + len(raw):
                    data = raw[tensor.begin - offset:tensor.end - offset]
            tensors[tensor.name] = Tensor(tensor.dtype, tensor.shape, data)
        return tensors

    @staticmethod
    def _check(expert: Expert, tensors: Dict[str, Tensor]) -> None:
        digests = {name: hashlib.sha256(tensor.data).hexdigest() for name, tensor in tensors.items()}
        for entry in expert.tensors:
            if digests[entry.name] != entry.sha256:
                raise IntegrityError("%s: %s is not what was sealed" % (expert.path, entry.name))
        if expert.digest_of(digests) != expert.sha256:
            raise IntegrityError("%s: the digest of expert %d of layer %d does not fit its tensors'"
                                 % (expert.path, expert.number, expert.layer))

    def verify_expert(self, layer: int, expert: int) -> None:
        """Reads it and raises IntegrityError if a byte differs from what was sealed."""
        self.read_expert(layer, expert)


def open(source: "Union[str, os.PathLike[str]]") -> Repository:  # noqa: A001  (dspack.open reads best)
    """A folder, an http(s) folder, or a repository on the Hub: org/name[@revision]. Reads the manifest and no weights."""
    return Repository(open_place(source))
