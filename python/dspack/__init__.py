"""Reads packed repositories (docs/format.md): which file has which expert, its bytes, and their digests.

    import dspack
    repository = dspack.open("./ds-packed")            # or "https://host/ds-packed/", or "org/name" on the Hub
    tensors = repository.read_expert(layer=3, expert=17)

Pure Python, without dependencies. Everything that is read is checked: the manifest's seal and its numbers, sizes of files,
and the digest of every tensor.
"""

from .errors import DspackError, FormatError, IntegrityError, UnsupportedError
from .manifest import Expert, Extent, Manifest, TensorEntry, WeightFile
from .repository import Repository, open
from .tensors import Tensor, to_safetensors

__version__ = "0.1.0"
__all__ = ["DspackError", "Expert", "Extent", "FormatError", "IntegrityError", "Manifest", "Repository", "Tensor",
           "TensorEntry", "UnsupportedError", "WeightFile", "open", "to_safetensors", "__version__"]
