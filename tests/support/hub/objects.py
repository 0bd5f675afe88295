"""What a repository is made of: contents, git blobs and LFS pointers, tree and commit ids as git computes them."""

import hashlib
import os
from dataclasses import dataclass, field
from typing import Dict, List, Optional

READ_BYTES = 1 << 20


class Content:
    """The bytes of a file: in memory, or in a file on disk that nobody changes. The digest is taken when asked for."""

    def __init__(self, data: Optional[bytes] = None, path: Optional[str] = None):
        self._data = data
        self._path = path
        self._sha256: Optional[str] = None
        self.size = len(data) if data is not None else os.path.getsize(path)

    def read(self, begin=0, end=None):
        end = self.size if end is None else min(end, self.size)
        if self._data is not None:
            return bytes(self._data[begin:end])
        with open(self._path, "rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    @property
    def sha256(self):
        if self._sha256 is None:
            digest = hashlib.sha256()
            for at in range(0, self.size, READ_BYTES):
                digest.update(self.read(at, at + READ_BYTES))
            self._sha256 = digest.hexdigest()
        return self._sha256


def git_hash(kind: str, data: bytes):
    """The id of a git object: SHA-1 over its header and its bytes."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()


def pointer(sha256: str, size: int):
    return ("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (sha256, size)).encode()


@dataclass(frozen=True)
class File:
    """One entry of a commit. `oid` is the git blob's id: of the content itself, or of the pointer to an LFS object."""
    content: Content
    lfs: bool
    oid: str

    @property
    def size(self):
        return self.content.size

    @property
    def pointer_size(self):
        return len(pointer(self.content.sha256, self.content.size))

    @property
    def xet_hash(self):
        """A stand-in for the hash of Xet, where the server is told to announce one: 64 digits, not the SHA-256."""
        return self.content.sha256[::-1]

    @property
    def etag(self):
        """What the Hub names as the file's ETag: SHA-256 of an LFS object, git's id of any other."""
        return self.content.sha256 if self.lfs else self.oid


def regular_file(data: bytes):
    return File(Content(data), False, git_hash("blob", data))


def lfs_file(content: Content):
    return File(content, True, git_hash("blob", pointer(content.sha256, content.size)))


@dataclass(frozen=True)
class Commit:
    id: str
    parent: Optional[str]
    title: str
    message: str  # the description below the title
    author: str
    time: float  # seconds since 1970
    files: Dict[str, File] = field(repr=False)
    folders: Dict[str, str] = field(repr=False)  # path without a slash at the end -> id of the git tree; "" is the root


def tree_ids(files: Dict[str, File]):
    """{folder: id of its git tree} for all folders that the files lie in, the root ("") included."""
    entries: Dict[str, List[tuple]] = {"": []}

    def folder_of(path):
        parent = path.rpartition("/")[0]
        if parent not in entries:
            entries[parent] = []
            folder_of(parent)
        return entries[parent]

    for path, file in files.items():
        folder_of(path).append((path.rpartition("/")[2], b"100644", file.oid))
    ids = {}
    for folder in sorted(entries, key=lambda path: -path.count("/") - (path != "")):  # the deepest first
        # git sorts a folder as if its name ended in a slash.
        rows = sorted(entries[folder], key=lambda row: row[0].encode() + (b"/" if row[1] == b"40000" else b""))
        data = b"".join(b"%s %s\0%s" % (mode, name.encode(), bytes.fromhex(oid)) for name, mode, oid in rows)
        ids[folder] = git_hash("tree", data)
        if folder:
            parent, _, name = folder.rpartition("/")
            entries[parent].append((name, b"40000", ids[folder]))
    return ids


def make_commit(files, parent, title, message, author, time):
    folders = tree_ids(files)
    who = "%s <%s@users.noreply.hub.test> %d +0000" % (author, author, int(time))
    text = "tree %s\n%sauthor %s\ncommitter %s\n\n%s\n" % (
        folders[""], "parent %s\n" % parent if parent else "", who, who, "\n\n".join(filter(None, (title, message))))
    return Commit(git_hash("commit", text.encode()), parent, title, message, author, time, dict(files), folders)
