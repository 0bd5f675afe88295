"""The manifest of a packed repository, read and checked: weight files, their tensors, and where every expert lies."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .errors import FormatError, IntegrityError, UnsupportedError
from .json_text import parse_json
from .tensors import BITS

MAX_MANIFEST_BYTES = 64 << 20
MAX_REPOSITORY_BYTES = 1 << 62
MAX_TENSORS = 2_000_000  # of all files together
# Features of `requires` that this reader needs no code for, or has it.
KNOWN_FEATURES = {"layer_map", "aliases", "name_families", "fused_experts", "zstd"}

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\\\\]")
_EXPERT_NAME = re.compile(
    r"(?:model\.(?:language_model\.)?|language_model\.(?:model\.)?|thinker\.(?:model\.)?)?"
    r"(?:layers\.(0|[1-9][0-9]*)|mtp\.(?:layers\.)?(0|[1-9][0-9]*))\."
    r"(?:mlp\.|block_sparse_moe\.|feed_forward\.|ffn\.)?experts\.(0|[1-9][0-9]*)\.")
_LAYER_HOLE = re.compile(r"(?<=layers\.)\{layer\}")
_EXPERT_HOLE = re.compile(r"(?<=experts\.)\{expert(?:\[(0|[1-9][0-9]{0,8})\])?\}")
FIRST_COUNTED_APART = 60000  # the layer of mtp.0


@dataclass(frozen=True)
class TensorEntry:
    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int  # byte offsets in its file
    end: int
    sha256: str


@dataclass(frozen=True)
class Extent:
    """Consecutive bytes of a file."""
    path: str
    offset: int
    length: int


@dataclass(frozen=True)
class Expert:
    layer: int
    number: int
    path: str  # of the file that has all of it
    sha256: str  # over its tensors (digest_of), the same in every grouping
    tensors: Tuple[TensorEntry, ...]  # by offset

    @property
    def extents(self) -> List[Extent]:
        """Its bytes in the fewest ranges."""
        ranges: List[Extent] = []
        for tensor in self.tensors:
            last = ranges[-1] if ranges else None
            if last and last.offset + last.length == tensor.begin:
                ranges[-1] = Extent(self.path, last.offset, tensor.end - last.offset)
            elif tensor.end > tensor.begin:
                ranges.append(Extent(self.path, tensor.begin, tensor.end - tensor.begin))
        return ranges

    @property
    def payload_bytes(self) -> int:
        return sum(tensor.end - tensor.begin for tensor in self.tensors)

    def digest_of(self, digests: Dict[str, str]) -> str:
        """The expert's digest, of its tensors' digests by name."""
        lines = ["%s %s [%s] %s\n" % (tensor.name, tensor.dtype, ",".join(map(str, tensor.shape)), digests[tensor.name])
                 for tensor in sorted(self.tensors, key=lambda tensor: tensor.name.encode("utf-8"))]
        return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class WeightFile:
    path: str
    part: str
    layer: Optional[int]
    size: int  # of the raw file
    sha256: str
    compressed: bool  # stored as PATH.zst
    tensors: Tuple[TensorEntry, ...]
    experts: Tuple[Expert, ...]


def _need(holds: bool, *reason: object) -> None:
    if not holds:
        raise FormatError("manifest.json: " + " ".join(str(word) for word in reason))


def _object(value: Any, what: str) -> Dict[str, Any]:
    _need(isinstance(value, dict), what, "is no object")
    return value  # type: ignore[no-any-return]


def _list(value: Any, what: str) -> List[Any]:
    _need(isinstance(value, list), what, "is no list")
    return value  # type: ignore[no-any-return]


def _text(value: Any, what: str) -> str:
    _need(isinstance(value, str), what, "is no text")
    return value  # type: ignore[no-any-return]


def _number(value: Any, what: str, most: int = MAX_REPOSITORY_BYTES) -> int:
    _need(type(value) is int and 0 <= value <= most, what, "is no whole number from 0 to", most)
    return value  # type: ignore[no-any-return]


def _digest(value: Any, what: str) -> str:
    text = _text(value, what)
    _need(_DIGEST.fullmatch(text) is not None, what, "is no SHA-256")
    return text


def checked_path(value: Any) -> str:
    """A path that leads nowhere but into the repository."""
    path = _text(value, "a path")
    _need(not _CONTROL.search(path) and all(part and not part.startswith(".") for part in path.split("/")),
          repr(path[:200]), "is no path of a repository")
    return path


def _no_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    keys = dict(pairs)
    _need(len(keys) == len(pairs), "a key stands twice")
    return keys


def _parse_json(text: str) -> Any:
    try:
        return parse_json(text, pairs_hook=_no_duplicates)
    except ValueError as error:
        raise FormatError("manifest.json: " + str(error)[:200]) from None


@dataclass(frozen=True)
class _Shape:
    """A layout's tensor: its name has holes for the numbers of layer and expert."""
    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int


def _read_layout(value: Any) -> List[_Shape]:
    shapes: List[_Shape] = []
    at = 0
    for entry in _list(_object(value, "a layout").get("tensors"), "a layout's tensors"):
        entry = _object(entry, "a tensor")
        name, dtype = _text(entry.get("name"), "a name"), _text(entry.get("dtype"), "a dtype")
        _need(dtype in BITS, name[:200], "has the dtype", repr(dtype[:40]))
        shape = tuple(_number(size, "a dimension") for size in _list(entry.get("shape"), "a shape"))
        offsets = _list(entry.get("data_offsets"), "data_offsets")
        _need(len(offsets) == 2, "data_offsets are not two numbers")
        begin, end = (_number(offset, "an offset") for offset in offsets)
        bits = BITS[dtype]
        for size in shape:
            bits *= size
            _need(bits < 1 << 66, "a shape exceeds 64 bits")
        _need(begin == at and end >= begin and bits == 8 * (end - begin), name[:200], "has a shape that its bytes do not fit")
        at = end
        shapes.append(_Shape(name, dtype, shape, begin, end))
    return shapes


def _filled(name: str, layer: Optional[int], experts: List[int]) -> str:
    if layer is None:
        return name

    def number(match: "re.Match[str]") -> str:
        index = int(match.group(1) or 0)
        _need(index < len(experts), name[:200], "names an expert that the file lacks")
        return str(experts[index])

    return _EXPERT_HOLE.sub(number, _LAYER_HOLE.sub(str(layer), name))


def expert_of(name: str) -> Optional[Tuple[int, int]]:
    """Layer and number of the routed expert that a tensor belongs to, by its name."""
    match = _EXPERT_NAME.match(name)
    if not match:
        return None
    layer, module, expert = match.groups()
    return (int(layer) if layer is not None else FIRST_COUNTED_APART + int(module)), int(expert)


def _read_file(value: Any, layouts: List[List[_Shape]]) -> WeightFile:
    value = _object(value, "a file")
    path = checked_path(value.get("path"))
    layer = None if "layer" not in value else _number(value["layer"], path + ": layer", 65535)
    named = [_object(entry, "an expert") for entry in _list(value.get("experts", []), path + ": experts")]
    numbers = [(_number(entry.get("layer"), "a layer", 65535), _number(entry.get("expert"), "an expert", 65535))
               for entry in named]
    _need(numbers == sorted(set(numbers)), path + ": experts are not ascending")
    index = _number(value.get("layout"), path + ": layout")
    _need(index < len(layouts), path + ": there is no layout", index)
    start, size = _number(value.get("data_start"), "data_start"), _number(value.get("size"), path + ": size")
    digests = _list(value.get("tensors"), path + ": tensors")
    layout = layouts[index]
    _need(len(digests) == len(layout), path + ": digests and tensors differ in number")
    _need(start > 8 and size == start + (layout[-1].end if layout else 0), path + ": size and layout differ")
    tensors = tuple(TensorEntry(_filled(shape.name, layer, [number for _, number in numbers]), shape.dtype, shape.shape,
                                start + shape.begin, start + shape.end, _digest(digest, "a digest"))
                    for shape, digest in zip(layout, digests))
    of_expert: Dict[Tuple[int, int], List[TensorEntry]] = {number: [] for number in numbers}
    for tensor in tensors:
        number = expert_of(tensor.name)
        if number is not None and number in of_expert:
            of_expert[number].append(tensor)
    experts = []
    for number, entry in zip(numbers, named):
        _need(bool(of_expert[number]), path + ": no tensor of the expert", number)
        experts.append(Expert(number[0], number[1], path, _digest(entry.get("sha256"), "a digest"),
                              tuple(of_expert[number])))
    return WeightFile(path, _text(value.get("part"), path + ": part"), layer, size,
                      _digest(value.get("sha256"), path + ": sha256"), "zstd" in value, tensors, tuple(experts))


class Manifest:
    """`files` by path, `experts` by (layer, number), `fields`: the JSON itself."""

    def __init__(self, fields: Dict[str, Any], files: List[WeightFile]):
        self.fields = fields
        self.files: Dict[str, WeightFile] = {}
        self.experts: Dict[Tuple[int, int], Expert] = {}
        for file in files:
            _need(file.path not in self.files, file.path, "stands twice")
            self.files[file.path] = file
            for expert in file.experts:
                key = (expert.layer, expert.number)
                _need(key not in self.experts, "expert", key, "lies in two files")
                self.experts[key] = expert

    @staticmethod
    def parse(data: bytes) -> "Manifest":
        """Checks the seal first. Raises FormatError, IntegrityError (a seal that does not fit) or UnsupportedError."""
        _need(len(data) <= MAX_MANIFEST_BYTES, "larger than", MAX_MANIFEST_BYTES, "bytes")
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("manifest.json: no UTF-8: %s" % error) from None
        if line.endswith("\n"):
            line = line[:-1]
        fields = _object(_parse_json(line), "it")
        version = _object(fields.get("format"), "format")
        major = _number(version.get("major"), "format.major")
        if major != 1:
            raise UnsupportedError("manifest.json: format %d; this package reads format 1" % major)
        unknown = sorted(set(_text(name, "a feature") for name in _list(fields.get("requires"), "requires"))
                         - KNOWN_FEATURES)
        if unknown:
            raise UnsupportedError("manifest.json requires %s, which this package does not know"
                                   % ", ".join(repr(name[:60]) for name in unknown[:8]))
        seal = _digest(fields.get("seal"), "seal")
        field = '"seal":"%s"' % seal
        _need(line.count(field) == 1, "its seal is not written as canonical JSON")
        if hashlib.sha256(line.replace(field, '"seal":""').encode("utf-8")).hexdigest() != seal:
            raise IntegrityError("manifest.json: it was changed after it was sealed")
        layouts = [_read_layout(layout) for layout in _list(fields.get("layouts"), "layouts")]
        files = []
        tensors = total = 0
        for entry in _list(fields.get("files"), "files"):
            files.append(_read_file(entry, layouts))
            tensors += len(files[-1].tensors)
            total += files[-1].size
            _need(tensors <= MAX_TENSORS and total <= MAX_REPOSITORY_BYTES, "more than a repository can have")
        return Manifest(fields, files)
