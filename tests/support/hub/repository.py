"""One repository: its commits, branches, tags and pull requests, and the large objects that it holds."""

import fnmatch
import functools
import re
import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional

from .objects import Commit, Content, File, lfs_file, make_commit, regular_file

# File names that a new repository stores as LFS objects, as the Hub's first commit says.
LFS_PATTERNS = ("*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy "
                "*.npz *.onnx *.ot *.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* "
                "*.tar.* *.tar *.tflite *.tgz *.wasm *.xz *.zip *.zst *tfevents*").split()
ATTRIBUTES = ".gitattributes"
LFS_ATTRIBUTES = "filter=lfs diff=lfs merge=lfs -text"


class Refused(Exception):
    """A request that is answered by an error: status, text, and the Hub's name for it (X-Error-Code) if it has one."""

    def __init__(self, status, message, code=None, headers=None):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers or {}


@dataclass
class PullRequest:
    num: int
    title: str
    description: str
    author: str
    status: str  # draft, open, closed, merged
    time: float
    branch: str  # where it will be merged
    base: str  # the branch's commit that it began at
    head: str  # refs/pr/<num>
    merge_commit: Optional[str] = None
    events: List[dict] = field(default_factory=list)


@dataclass
class Upload:
    """An object on its way. `chunk_size` 0 means in one piece; parts are numbered from 1."""
    id: str
    oid: str
    size: int
    chunk_size: int = 0
    parts: Dict[int, bytes] = field(default_factory=dict)

    @property
    def part_count(self):
        return -(-self.size // self.chunk_size) if self.chunk_size else 1


class Repository:
    """Not thread-safe: the hub's lock guards it."""

    def __init__(self, number, repo_id, author, private=False, gated=False):
        self.number = number  # survives renaming; part of storage links
        self.id = repo_id
        self.private = private
        self.gated = gated  # False, "auto" or "manual"
        self.granted = set()  # users who may read the files of a gated repository
        self.created = time.time()
        self.history: Dict[str, Commit] = {}
        self.branches: Dict[str, str] = {}
        self.tags: Dict[str, str] = {}
        self.pulls: Dict[int, PullRequest] = {}
        self.objects: Dict[str, Content] = {}  # SHA-256 -> LFS object that was verified
        self.received: Dict[str, Content] = {}  # SHA-256 as announced -> what came, not verified yet
        self.uploads: Dict[str, Upload] = {}
        attributes = "".join("%s %s\n" % (pattern, LFS_ATTRIBUTES) for pattern in LFS_PATTERNS)
        self.commit("main", {ATTRIBUTES: regular_file(attributes.encode())}, "initial commit", "", author)

    # Reading ------------------------------------------------------------------------------------------------------

    def head(self, revision="main") -> Commit:
        """The commit that a branch, tag, refs/..., or a commit's id of at least 7 digits stands for."""
        name = revision[len("refs/heads/"):] if revision.startswith("refs/heads/") else revision
        if name in self.branches:
            return self.history[self.branches[name]]
        if revision in self.tags:
            return self.history[self.tags[revision]]
        pull = self.pull_of(revision)
        if pull:
            return self.history[pull.head]
        if revision in self.history:
            return self.history[revision]
        found = [commit for key, commit in self.history.items() if len(revision) >= 7 and key.startswith(revision)]
        if len(found) == 1:
            return found[0]
        raise Refused(404, "Invalid rev id: " + revision, "RevisionNotFound")

    def pull_of(self, revision) -> Optional[PullRequest]:
        number = revision[len("refs/pr/"):] if revision.startswith("refs/pr/") else ""
        return self.pulls.get(int(number)) if number.isdigit() else None

    def chain(self, commit: Commit) -> List[Commit]:
        """The commit and its ancestors, the newest first."""
        result = [commit]
        while result[-1].parent:
            result.append(self.history[result[-1].parent])
        return result

    def last_change(self, commit: Commit, path):
        """The newest commit at or below `commit` that changed a file or folder."""
        for candidate in self.chain(commit):
            if candidate.parent is None:
                return candidate
            parent = self.history[candidate.parent]
            if oid_at(candidate, path) != oid_at(parent, path):
                return candidate
        return commit

    def stores_as_lfs(self, path, commit: Commit, extra_attributes=""):
        attributes = commit.files[ATTRIBUTES].content.read().decode() if ATTRIBUTES in commit.files else ""
        return lfs_matcher(attributes + "\n" + extra_attributes)(path)

    # Changing -----------------------------------------------------------------------------------------------------

    def commit(self, revision, files: Dict[str, File], title, message, author) -> Commit:
        """A commit with exactly these files on top of a branch (made if it is new) or of a pull request."""
        pull = self.pull_of(revision)
        parent = pull.head if pull else self.branches.get(revision)
        commit = self.record(files, parent, title, message, author)
        if pull:
            pull.head = commit.id
            pull.events.append(event(pull, "commit", author, {"subject": title, "oid": commit.id}))
        else:
            self.branches[revision] = commit.id
        return commit

    def record(self, files, parent, title, message, author) -> Commit:
        commit = make_commit(files, parent, title, message, author, time.time())
        self.history[commit.id] = commit
        return commit

    def with_attributes(self, files: Dict[str, File]):
        """The same files, with a line in .gitattributes for each LFS file that no pattern covers."""
        text = files[ATTRIBUTES].content.read().decode() if ATTRIBUTES in files else ""
        covered = lfs_matcher(text)
        missing = [path for path in sorted(files) if files[path].lfs and not covered(path)]
        if not missing:
            return files
        if text and not text.endswith("\n"):
            text += "\n"
        text += "".join("%s %s\n" % (path.replace(" ", "[[:space:]]"), LFS_ATTRIBUTES) for path in missing)
        return {**files, ATTRIBUTES: regular_file(text.encode())}

    def open_pull(self, title, description, author, branch="main", status="open") -> PullRequest:
        base = self.head(branch).id
        pull = PullRequest(len(self.pulls) + 1, title, description, author, status, time.time(), branch, base, base)
        pull.events.append(event(pull, "comment", author, {
            "edited": False, "hidden": False, "latest": {"raw": description, "html": "", "updatedAt": iso(pull.time)}}))
        self.pulls[pull.num] = pull
        return pull

    def conflicts(self, pull: PullRequest):
        """Paths that both sides changed since the pull request began, and not alike."""
        base, head = self.history[pull.base].files, self.history[pull.head].files
        onto = self.head(pull.branch).files
        return [path for path in sorted({*base, *head, *onto} - {ATTRIBUTES})
                if blob(head, path) != blob(base, path) != blob(onto, path) != blob(head, path)]

    def merge(self, pull: PullRequest, author) -> Commit:
        """Puts the changes of a pull request on its branch as one commit, as the Hub does."""
        if pull.status != "open":
            raise Refused(400, "This pull request is %s and cannot be merged" % pull.status)
        conflicts = self.conflicts(pull)
        if conflicts:
            raise Refused(409, "This pull request has conflicts in " + ", ".join(conflicts[:5]))
        base, head = self.history[pull.base].files, self.history[pull.head].files
        merged = dict(self.head(pull.branch).files)
        for path in {*base, *head}:
            if blob(base, path) == blob(head, path):
                continue
            if path in head:
                merged[path] = head[path]
            else:
                merged.pop(path, None)
        commit = self.commit(pull.branch, self.with_attributes(merged), "%s (#%d)" % (pull.title, pull.num), "", author)
        pull.merge_commit = commit.id
        pull.status = "merged"
        pull.events.append(event(pull, "status-change", author, {"status": "merged"}))
        return commit


def blob(files, path):
    return files[path].oid if path in files else None


def oid_at(commit, path):
    return blob(commit.files, path) or commit.folders.get(path)


@functools.lru_cache(maxsize=100)
def lfs_matcher(attributes: str):
    """path -> whether .gitattributes makes it an LFS object. A pattern without a slash is for names in any folder."""
    rows = [line.split() for line in attributes.splitlines()]
    patterns = [row[0].replace("[[:space:]]", " ").replace("/**/", "/*") for row in rows if "filter=lfs" in row[1:]]

    def any_of(some):
        return re.compile("|".join(map(fnmatch.translate, some)) or r"(?!)")
    for_names = any_of(pattern for pattern in patterns if "/" not in pattern)
    for_paths = any_of(pattern for pattern in patterns if "/" in pattern)
    return lambda path: bool(for_names.match(path.rpartition("/")[2]) or for_paths.match(path))


def iso(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".%03dZ" % (seconds % 1 * 1000)


def event(pull: PullRequest, kind, author, data):
    return {"id": "%024x" % (pull.num * 1000 + len(pull.events)), "type": kind, "createdAt": iso(time.time()),
            "author": {"name": author, "type": "user"}, "data": data}


def content_file(content: Content, lfs: bool):
    return lfs_file(content) if lfs else regular_file(content.read())
