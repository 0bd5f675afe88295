"""Manifests as a stranger may publish them: changed, with a seal that fits."""

import hashlib
import json
import os
import shutil


def canonical(manifest):
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_manifest(packed):
    return json.loads((packed / "manifest.json").read_text())


def reseal(packed, manifest):
    """Writes a changed manifest and its seal, as a new file: the old one may have names elsewhere."""
    seal = hashlib.sha256(canonical({**manifest, "seal": ""}).encode()).hexdigest()
    (packed / "manifest.json").unlink(missing_ok=True)
    (packed / "manifest.json").write_text(canonical({**manifest, "seal": seal}) + "\n")


def link_tree(source, folder):
    """A copy whose files are the source's own by other names: to replace, not to change."""
    return shutil.copytree(source, folder, copy_function=os.link)


def state(folder):
    """What is below a folder, and what a program that writes there changes, whatever it writes."""
    return {path: (found.st_ino, found.st_size, found.st_mtime_ns)
            for path, found in ((path, path.lstat()) for path in sorted(folder.rglob("*")))}


def add_companion(packed, manifest, path, content):
    """A further file of the repository, and its entry."""
    (packed / path).parent.mkdir(parents=True, exist_ok=True)
    (packed / path).unlink(missing_ok=True)
    (packed / path).write_bytes(content)
    manifest["companions"].append({"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    manifest["companions"].sort(key=lambda companion: companion["path"])


def zstd_of(content):
    """A zstd frame that holds the content uncompressed (RFC 8878, 3.1.1): a header with a size of 4 bytes and a single
    segment, then raw blocks of at most 128 KiB."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b10100000]) + len(content).to_bytes(4, "little")
    pieces = [content[i:i + 131072] for i in range(0, len(content), 131072)] or [b""]
    for number, piece in enumerate(pieces):
        frame += (len(piece) << 3 | (number + 1 == len(pieces))).to_bytes(3, "little") + piece
    return frame
