"""Packed repositories whose manifest is sealed and lies: anybody can compute a seal."""

import hashlib
import json
import os
import shutil
import struct

import zstd_frames
from checkpoints import SHARDS
from hostile.cases import DSRUN, NUMBERS, PATHS, RESHARD, URL, Case, compact, is_number, places, replaced, title, value_at
from range_server import RangeServer

MANIFEST = "manifest.json"


def sealed(document):
    document = dict(document, seal="")
    document["seal"] = hashlib.sha256(compact(document).encode("utf-8", "surrogatepass")).hexdigest()
    return (compact(document) + "\n").encode("utf-8", "surrogatepass")


def read(folder):
    return json.loads((folder / MANIFEST).read_text())


def verbs(folder, url=False):
    packed = folder / "packed"
    yield (RESHARD, ["verify", packed])
    yield (RESHARD, ["unpack", packed, "--exact", "--out", folder / "shards"])
    yield (RESHARD, ["link", packed, "--out", folder / "flat"])
    yield (RESHARD, ["inspect", packed, "--html", folder / "page.html"])
    yield (DSRUN, [URL if url else packed, "--tokens", "0", "-n", "1", "--device", "cpu"])


def nothing_made(test, folder):
    for name in ("shards", "flat", "page.html", "outside", "../outside"):
        test.assert_absent(folder / name)


def manifest_case(packed, name, change, all_verbs=False):
    """`change` takes the manifest and returns another, or bytes."""
    def prepare(folder):
        shutil.copytree(packed, folder / "packed", copy_function=os.link)
        document = change(read(packed))
        path = folder / "packed" / MANIFEST
        path.unlink()
        path.write_bytes(document if isinstance(document, bytes) else sealed(document))
        return list(verbs(folder))[:None if all_verbs else 1]
    return Case("manifest: " + name, prepare, after=nothing_made)


def numbers(document):
    """Every kind of number once: the first file that has it speaks for all."""
    seen = set()
    for place in places(document):
        kind = tuple("*" if isinstance(key, int) else key for key in place)
        if is_number(value_at(document, place)) and kind not in seen and place != ("format", "minor"):
            seen.add(kind)
            yield place


def broken_numbers(document):
    for place in numbers(document):
        for name, number in NUMBERS.items():
            if number == 2**57 and place[-1] in ("rows_per_block", "size"):
                continue  # one block of all rows; and a source shard that nobody here has may have any size
            yield "%s is %s" % (title(place), name), place, number


def broken_paths(document):
    seen = set()
    for place in places(document):
        kind = tuple("*" if isinstance(key, int) else key for key in place)
        if place and place[-1] == "path" and kind not in seen:
            seen.add(kind)
            for name, path in PATHS.items():
                yield "%s is %s" % (title(place), name), place, path


def broken_digests(document):
    seen = set()
    for place in places(document):
        value = value_at(document, place)
        kind = tuple("*" if isinstance(key, int) else key for key in place)
        if isinstance(value, str) and len(value) == 64 and kind not in seen and place != ("seal",) and place != ("plan",):
            seen.add(kind)
            for name, digest in {"empty": "", "short": "ab", "capital": value.upper(), "no digits": "g" * 64, "a number": 5,
                                 "null": None}.items():
                if digest != value:
                    yield "%s is %s" % (title(place), name), place, digest


def broken_texts(packed):
    good = (packed / MANIFEST).read_bytes()
    yield "empty", b""
    yield "half", good[:len(good) // 2]
    yield "without its seal", good.replace(b'"seal":"', b'"seal":"0', 1)
    yield "behind it", good + b"x"
    yield "deep", b'{"a":' * 100_000
    yield "40 MB of empty arrays", b'{"files":[' + b"[]," * 13_000_000 + b"[]]}"
    yield "40 MB of numbers", b'{"files":[' + b"1," * 20_000_000 + b"1]}"
    yield "a name of 8 MB", b'{"' + b"a" * 8_000_000 + b'":1}'


def row_blocks(document, **changes):
    for file in document["files"]:
        for blocks in file.get("row_blocks", ()):
            blocks.update(changes)
    return document


def many_files(document):
    document["companions"] += [{"path": "c/%d" % i, "sha256": "0" * 64, "size": 1} for i in range(300_000)]
    document["companions"].sort(key=lambda file: file["path"])
    return document


def cases(packed, compressed):
    """`packed` and `compressed` are one checkpoint's, whose folder "source" lies beside them."""
    yield from compressed_cases(compressed)
    document = read(packed)
    for number, (name, place, value) in enumerate(broken_numbers(document)):
        yield manifest_case(packed, name, lambda found, p=place, v=value: replaced(found, p, v), number % 17 == 0)
    for number, (name, place, value) in enumerate(broken_paths(document)):
        yield manifest_case(packed, name, lambda found, p=place, v=value: replaced(found, p, v), number % 5 == 0)
    for name, place, value in broken_digests(document):
        yield manifest_case(packed, name, lambda found, p=place, v=value: replaced(found, p, v))
    for name, text in broken_texts(packed):
        yield manifest_case(packed, name, lambda _, t=text: t)
    for rows in (2**63, 2**64 - 1, 0):
        change = lambda found, r=rows: row_blocks(found, rows_per_block=r)  # noqa: E731
        yield manifest_case(packed, "rows_per_block %d" % rows, change, True)
        yield over_http(packed, "rows_per_block %d, over HTTP" % rows, change)
    yield manifest_case(packed, "row blocks of a tensor that is not there", lambda found: row_blocks(found, tensor=7), True)
    yield manifest_case(packed, "row blocks without digests", lambda found: row_blocks(found, sha256=[]), True)
    yield manifest_case(packed, "300,000 companions that are not there", many_files)
    yield from kept_headers(packed)


def compressed_cases(packed):
    document = read(packed)
    for name, place, value in broken_numbers(document):
        if "zstd" in place:
            yield manifest_case(packed, "compressed: " + name, lambda found, p=place, v=value: replaced(found, p, v), True)
    at = next(number for number, file in enumerate(document["files"]) if "zstd" in file)
    for name, frames in {"none": [], "a million": [1] * 1_000_000, "a number": 5, "one too many": [1] * 1000}.items():
        yield manifest_case(packed, "compressed: frames are " + name,
                            lambda found, f=frames: replaced(found, ("files", at, "zstd", "frames"), f), True)
    yield frames_case(packed, "a frame that makes 4 GB", zstd_frames.repeated(b"x", 4_000_000_000))
    yield frames_case(packed, "no frame", b"hello" * 100)
    yield frames_case(packed, "half a frame", zstd_frames.stored(b"x" * 4000)[:2000])


def frames_case(packed, name, content):
    """A compressed file whose manifest fits its bytes."""
    def prepare(folder):
        shutil.copytree(packed, folder / "packed")
        document = read(packed)
        file = next(file for file in document["files"] if "zstd" in file)
        file["zstd"] = {"frames": [len(content)], "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        (folder / "packed" / (file["path"] + ".zst")).write_bytes(content)
        (folder / "packed" / MANIFEST).write_bytes(sealed(document))
        return list(verbs(folder))[:2]
    return Case("compressed: " + name, prepare, after=nothing_made)


def over_http(packed, name, change):
    def prepare(folder):
        shutil.copytree(packed, folder / "packed")
        (folder / "packed" / MANIFEST).write_bytes(sealed(change(read(packed))))
        return [(DSRUN, [URL, "--tokens", "0", "-n", "1", "--device", "cpu", "--cache", folder / "cache"])]
    return Case("manifest: " + name, prepare, serve=lambda folder: RangeServer(folder / "packed"))


def kept_headers(packed):
    """The source's headers, compressed: the manifest's entry fits what is there, and what is there lies."""
    good = {name: header_text(packed.parent / "source" / name) for name in SHARDS}
    first = SHARDS[0]
    texts = {"not zstd": b"hello", "empty": b"", "half a frame": zstd_frames.stored(b"{}")[:5],
             "a frame of 4 GB of spaces": zstd_frames.repeated(b" ", 4_000_000_000),
             "a frame of 4 GB of brackets": zstd_frames.repeated(b"[", 4_000_000_000),
             "not JSON": zstd_frames.stored(b"{"), "an array": zstd_frames.stored(b"[]"),
             "no header": zstd_frames.stored(b"{}"), "a header is a number": zstd_frames.stored(compact({first: 5}).encode()),
             "a header is no JSON": zstd_frames.stored(compact(dict(good, **{first: "{"})).encode()),
             "a header of another file": zstd_frames.stored(compact({"x": good[first]}).encode()),
             "deep": zstd_frames.stored(b'{"a":' * 50_000)}
    for name, content in texts.items():
        yield headers_case(packed, name, content)


def header_text(shard):
    content = shard.read_bytes()
    return content[8:8 + struct.unpack("<Q", content[:8])[0]].decode()


def headers_case(packed, name, content):
    def prepare(folder):
        shutil.copytree(packed, folder / "packed")
        document = read(packed)
        for file in document["companions"]:
            if file["path"] == "provenance/headers.json.zst":
                file.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (folder / "packed/provenance/headers.json.zst").write_bytes(content)
        (folder / "packed" / MANIFEST).write_bytes(sealed(document))
        return [(RESHARD, ["unpack", folder / "packed", "--exact", "--out", folder / "shards"])]
    return Case("kept headers: " + name, prepare, after=nothing_made)
