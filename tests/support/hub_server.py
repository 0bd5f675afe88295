#!/usr/bin/env python3
"""A server that speaks the Hugging Face Hub's protocol, and misbehaves on request. For tests and for trying by hand.

As a module:

    with HubServer(page_size=3) as hub:
        hub.add("org/name", folder)                      # every file of a folder as one commit on main
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token}
        hub.add_fault("POST", "api/models/*/commit/*", "lost", times=1)
        ...
        hub.files("org/name")                            # {path: SHA-256} of main
        hub.read("org/name", "config.json")              # bytes
        [commit.title for commit in hub.commits("org/name")]
        hub.requests("PUT", host="storage")              # the log
        hub.token_leaks()                                # must be []

From the command line (prints its URL as the first line, then one line a request with --verbose):

    hub_server.py [--repo ORG/NAME[=FOLDER] ...] [--port N] [--token T] [--link-seconds S]
                  [--fault 'METHOD PATTERN:KIND:key=value,...']

There are two hosts: the Hub (127.0.0.1) and its storage (127.0.0.2, another port), to which large files are redirected
and uploaded by signed links that expire. `hub.token` may write everything; add_token() makes accounts that may less.
A request without a token sees what is public. What goes wrong on request is described in hub/faults.py; what each
endpoint does, in the other files of that folder. The official client uploads here with HF_HUB_DISABLE_XET=1.

Standard library only; Python 3.9 or later.
"""

import argparse
import fnmatch
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hub import changing, large_files, listing, pulls, resolving, routes  # noqa: E402,F401  (they register themselves)
from hub.faults import Faults, parse_fault  # noqa: E402
from hub.objects import Commit, Content, lfs_file, regular_file  # noqa: E402
from hub.repository import PullRequest, Refused, Repository  # noqa: E402
from hub.storage import Storage  # noqa: E402
from hub.wire import Host, Log, Request  # noqa: E402

MIB = 1 << 20


@dataclass
class Account:
    name: str
    namespaces: Optional[List[str]]  # whose repositories it owns; None: everybody's
    read_only: bool = False

    def owns(self, repo):
        return self.namespaces is None or repo.partition("/")[0] in self.namespaces


class HubServer:
    """See the module's text. Everything is thread-safe; options may be changed while the server runs."""

    def __init__(self, port=0, token="hf_" + "t" * 34, user="tester", storage_address="127.0.0.2", random_seed=0,
                 verbose=False, **options):
        self.token, self.user = token, user
        # Links: seconds that they are good for.
        self.link_seconds = 3600.0
        self.upload_link_seconds = 3600.0
        # Pages of trees and commits; how many siblings a model's info names.
        self.page_size = 1000
        self.siblings_limit = 1000
        # Files above `lfs_threshold` are LFS objects; objects above `multipart_threshold` come in parts.
        self.lfs_threshold = 10 * MIB
        self.multipart_threshold = 5 * 1024 * MIB
        self.chunk_size = 64 * MIB
        self.lfs_size_limit = 500 * 1000 ** 3
        self.lfs_batch_limit = 256
        self.lfs_errors: Dict[str, tuple] = {}  # SHA-256 -> (code, message): refused in a batch
        # A commit: operations, bytes, entries of one folder.
        self.commit_operations_limit: Optional[int] = None
        self.commit_bytes_limit: Optional[int] = 150 * MIB
        self.folder_entries_limit = 10000
        # {"api" or "resolvers": (requests, seconds of the window)}; `retry_after` adds that header to a 429. `second`:
        # how long a second of the window is on the clock, as --dev pause is for the programs.
        self.rate_limits: Dict[str, tuple] = {}
        self.retry_after = False
        self.second = 1.0
        # Variants of the real Hub: whether a 401 names RepoNotFound; small files behind a relative redirect; large
        # files said to be on Xet as well (there is no Xet here); actions that point to the official host, whatever the
        # client's endpoint is.
        self.code_with_401 = True
        self.small_file_redirect = False
        self.announce_xet = False
        self.official_action_urls = False
        # A function that is given the actions of an upload, {"upload": ..., "verify": ...}, and may falsify them.
        self.falsify_actions = None
        for name, value in options.items():
            if not hasattr(self, name):
                raise TypeError("HubServer has no option %r" % name)
            setattr(self, name, value)

        self.lock = threading.RLock()
        self.log = Log(verbose)
        self.faults = Faults(random_seed)
        self.accounts: Dict[str, Account] = {token: Account(user, None)}
        self.repositories: Dict[str, Repository] = {}
        self.renames: Dict[str, str] = {}
        self.rate_windows: Dict[tuple, tuple] = {}
        self.defects: List[str] = []  # tracebacks of what this server did not expect; leaving `with` raises the first
        self._number = 0
        self.storage = Storage(self)
        self._hub_host = Host(self, "hub", "127.0.0.1", port, lambda request: routes.answer(self, request))
        self._storage_host = Host(self, "storage", storage_address, 0, self.storage.answer)
        self.url = self._hub_host.url
        self.storage.url = self.storage_url = self._storage_host.url

    def __enter__(self):
        self._hub_host.start()
        self._storage_host.start()
        return self

    def __exit__(self, *_):
        self._hub_host.stop()
        self._storage_host.stop()
        if self.defects:
            raise RuntimeError("hub_server failed %d times, first with:\n%s" % (len(self.defects), self.defects[0]))

    @property
    def action_url(self):
        return "https://huggingface.co" if self.official_action_urls else self.url

    def next_number(self):
        with self.lock:
            self._number += 1
            return self._number

    # What is there ------------------------------------------------------------------------------------------------

    def add_token(self, token, user, namespaces=(), read_only=False):
        """One more account: it owns the repositories of its own namespace and of those given."""
        with self.lock:
            self.accounts[token] = Account(user, [user, *namespaces], read_only)

    def new_repository(self, repo, author=None, private=False, gated=False) -> Repository:
        with self.lock:
            repository = Repository(self.next_number(), repo, author or self.user, private, gated)
            self.repositories[repo] = repository
            self.renames.pop(repo, None)
            return repository

    def add(self, repo, folder=None, private=False, gated=False, granted=(), revision="main", title="Add files"):
        """A repository with the files of a folder as one commit on top of the first, which holds .gitattributes alone.
        Large files are read from the folder whenever they are asked for: it must stay as it is. `gated` True means that
        only the users in `granted` may read files."""
        with self.lock:
            repository = self.repositories.get(repo) or self.new_repository(repo, None, private,
                                                                            "manual" if gated is True else gated)
            repository.granted.update(granted)
            if folder is None:
                return
            root = Path(folder)
            paths = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
            base = repository.branches.get(revision, repository.branches["main"])
            files = dict(repository.history[base].files)
            for name, path in paths.items():
                content = Content(path=str(path))
                large = repository.stores_as_lfs(name, repository.history[base]) or content.size > self.lfs_threshold
                files[name] = self._file(repository, content, large)
            repository.commit(revision, repository.with_attributes(files), title, "", self.user)

    def commit(self, repo, changes, title="Change files", revision="main") -> str:
        """A commit made by somebody else: {path: bytes, or None to delete}. Returns its id."""
        with self.lock:
            repository = self.repositories[repo]
            head = repository.head(revision)
            files = dict(head.files)
            for name, data in changes.items():
                if data is None:
                    del files[name]
                else:
                    files[name] = self._file(repository, Content(data), repository.stores_as_lfs(name, head)
                                             or len(data) > self.lfs_threshold)
            files = repository.with_attributes(files)
            return repository.commit(revision, files, title, "", "somebody").id

    @staticmethod
    def _file(repository, content, large):
        if not large or content.size == 0:
            return regular_file(content.read())
        repository.objects[content.sha256] = content
        return lfs_file(content)

    def rename(self, repo, new_name):
        """From now on requests to the old name are redirected, by an address relative to the host."""
        with self.lock:
            if new_name in self.repositories:
                raise Refused(409, "Target repo already exists")
            repository = self.repositories.pop(repo)
            repository.id = new_name
            self.repositories[new_name] = repository
            self.renames.pop(new_name, None)
            for old in [old for old, target in self.renames.items() if target == repo] + [repo]:
                self.renames[old] = new_name

    def expire_links(self):
        """All signed links that were handed out are expired at once; new ones are good."""
        with self.lock:
            self.storage.expire_all()

    # What came of it ----------------------------------------------------------------------------------------------

    def files(self, repo, revision="main") -> Dict[str, str]:
        """{path: SHA-256 of the content}."""
        with self.lock:
            return {path: file.content.sha256 for path, file in self.repositories[repo].head(revision).files.items()}

    def read(self, repo, path, revision="main") -> bytes:
        with self.lock:
            return self.repositories[repo].head(revision).files[path].content.read()

    def is_lfs(self, repo, path, revision="main") -> bool:
        with self.lock:
            return self.repositories[repo].head(revision).files[path].lfs

    def commits(self, repo, revision="main") -> List[Commit]:
        """The newest first; the last is the Hub's own, with .gitattributes alone."""
        with self.lock:
            repository = self.repositories[repo]
            return repository.chain(repository.head(revision))

    def branches(self, repo) -> Dict[str, str]:
        with self.lock:
            return dict(self.repositories[repo].branches)

    def pull_requests(self, repo) -> List[PullRequest]:
        with self.lock:
            return list(self.repositories[repo].pulls.values())

    def objects(self, repo) -> List[str]:
        """SHA-256 of the LFS objects that are stored and verified."""
        with self.lock:
            return sorted(self.repositories[repo].objects)

    def exists(self, repo) -> bool:
        with self.lock:
            return repo in self.repositories

    # What was asked -----------------------------------------------------------------------------------------------

    def requests(self, method="*", path="*", host="*") -> List[Request]:
        """The log's entries of a method and path (shell patterns; the path decoded, without its leading slash)."""
        return [entry for entry in self.log.entries() if fnmatch.fnmatchcase(entry.method, method)
                and fnmatch.fnmatchcase(entry.path, path) and fnmatch.fnmatchcase(entry.host, host)]

    def token_leaks(self) -> List[Request]:
        """Requests that carried a known token elsewhere than in the Authorization header to the Hub's host."""
        def leaks(entry):
            elsewhere = [entry.raw_path, *(value for name, value in entry.headers.items()
                                           if entry.host != "hub" or name != "authorization")]
            if entry.body is not None and len(entry.body) <= MIB:
                elsewhere.append(entry.body.decode("latin-1"))
            return entry.host != "hub" and entry.authorization is not None or any(
                token in text for token in self.accounts for text in elsewhere)
        return [entry for entry in self.log.entries() if leaks(entry)]

    def assert_token_stayed_home(self):
        found = self.token_leaks()
        assert not found, "a token went where it must not: %s" % [(entry.host, entry.method, entry.raw_path)
                                                                 for entry in found[:5]]

    # What goes wrong ----------------------------------------------------------------------------------------------

    def add_fault(self, method, pattern, kind, **options):
        """See hub/faults.py. Returns the fault; its `struck` counts."""
        return self.faults.add(method, pattern, kind, options)

    def clear_faults(self):
        self.faults.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", action="append", default=[], metavar="ORG/NAME[=FOLDER]",
                        help="a repository, with the folder's files")
    parser.add_argument("--private", action="append", default=[], metavar="ORG/NAME", help="hide it from strangers")
    parser.add_argument("--gated", action="append", default=[], metavar="ORG/NAME", help="nobody may read its files")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default="hf_" + "t" * 34, help="may read and write everything")
    parser.add_argument("--link-seconds", type=float, default=3600, help="how long links to large files are good for")
    parser.add_argument("--page-size", type=int, default=1000, help="entries of a page of a listing")
    parser.add_argument("--multipart-threshold", type=int, default=5 * 1024 * MIB, metavar="BYTES")
    parser.add_argument("--chunk-size", type=int, default=64 * MIB, metavar="BYTES", help="of a multipart upload")
    parser.add_argument("--rate-limit", action="append", default=[], metavar="api|resolvers:REQUESTS:SECONDS")
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print every request")
    parser.add_argument("--fault", action="append", default=[], metavar="'METHOD PATTERN:KIND[:key=value,...]'")
    arguments = parser.parse_args()
    hub = HubServer(arguments.port, arguments.token, random_seed=arguments.random_seed, verbose=arguments.verbose,
                    link_seconds=arguments.link_seconds, upload_link_seconds=arguments.link_seconds,
                    page_size=arguments.page_size, multipart_threshold=arguments.multipart_threshold,
                    chunk_size=arguments.chunk_size)
    for text in arguments.rate_limit:
        bucket, requests, seconds = text.split(":")
        hub.rate_limits[bucket] = (int(requests), float(seconds))
    for text in arguments.repo:
        name, _, folder = text.partition("=")
        if folder and not Path(folder).is_dir():
            sys.exit("hub_server: %s is not a folder" % folder)
        hub.add(name, folder or None, private=name in arguments.private, gated=name in arguments.gated)
    for text in arguments.fault:
        method, pattern, kind, options = parse_fault(text)
        hub.add_fault(method, pattern, kind, **options)
    with hub:
        print(hub.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
