"""Changing what is there: repositories, branches, tags, and commits with what precedes them."""

import base64
import binascii
import fnmatch
import json
import re

from .objects import Content, lfs_file, regular_file
from .repository import Refused
from .routes import NO_LOGIN, find, identify, need_login, need_write, route
from .wire import json_reply

PREUPLOAD_LIMIT = 256
NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,96}(?<![.-])")
SHA256 = re.compile(r"[0-9a-f]{64}")


# Repositories -------------------------------------------------------------------------------------------------------


def wanted_id(account, asked):
    name = asked.get("name") or ""
    namespace = asked.get("organization") or account.name
    if asked.get("type", "model") != "model":
        raise Refused(400, "This server has models only")
    if "/" in name:
        namespace, _, name = name.partition("/")
    if not NAME.fullmatch(name) or "--" in name or ".." in name:
        raise Refused(400, "Invalid repo name: " + name)
    return namespace + "/" + name


@route("POST", "api/repos/create")
def create(hub, request):
    account = need_login(hub, request)
    asked = request.json()
    repo = wanted_id(account, asked)
    need_write(account, repo)
    url = "%s/%s" % (hub.url, repo)
    if repo in hub.repositories:
        return json_reply({"error": "You already created this model repo", "url": url}, 409)
    private = asked.get("visibility", "private" if asked.get("private") else "public") == "private"
    repository = hub.new_repository(repo, account.name, private)
    return json_reply({"url": url, "name": repo, "id": "%024x" % repository.number})


@route("DELETE", "api/repos/delete")
def delete(hub, request):
    account = need_login(hub, request)
    repo = wanted_id(account, request.json())
    find(hub, request, repo, write=True)
    del hub.repositories[repo]
    return json_reply({})


@route("POST", "api/repos/move")
def move(hub, request):
    account = need_login(hub, request)
    asked = request.json()
    source, target = asked.get("fromRepo", ""), asked.get("toRepo", "")
    find(hub, request, source, write=True)
    need_write(account, target)
    hub.rename(source, target)
    return json_reply({})


@route("PUT", "api/models/{repo}/settings")
def settings(hub, request, repo):
    repository = find(hub, request, repo, write=True)
    asked = request.json()
    if "visibility" in asked or "private" in asked:
        repository.private = asked.get("visibility") == "private" or asked.get("private") is True
    if "gated" in asked:
        repository.gated = asked["gated"]
    return json_reply({"private": repository.private, "gated": repository.gated})


# Branches and tags --------------------------------------------------------------------------------------------------


@route("POST", "api/models/{repo}/branch/{branch}")
def create_branch(hub, request, repo, branch):
    repository = find(hub, request, repo, write=True)
    if branch in repository.branches:
        raise Refused(409, "Reference already exists")
    if branch.startswith("refs/"):
        raise Refused(400, "Invalid reference for a branch: " + branch)
    repository.branches[branch] = repository.head(request.json().get("startingPoint") or "main").id
    return json_reply({})


@route("DELETE", "api/models/{repo}/branch/{branch}")
def delete_branch(hub, request, repo, branch):
    repository = find(hub, request, repo, write=True)
    if branch == "main":
        raise Refused(403, "The default branch cannot be deleted")
    if branch not in repository.branches:
        raise Refused(404, "Invalid rev id: " + branch, "RevisionNotFound")
    del repository.branches[branch]
    return json_reply({})


@route("POST", "api/models/{repo}/tag/{revision}")
def create_tag(hub, request, repo, revision):
    repository = find(hub, request, repo, write=True)
    tag = request.json().get("tag", "")
    if tag in repository.tags:
        raise Refused(409, "Tag reference exists already")
    repository.tags[tag] = repository.head(revision).id
    return json_reply({})


# Commits ------------------------------------------------------------------------------------------------------------


def target(hub, request, repo, revision):
    """The repository that a commit is meant for, and whether it becomes a pull request. Every reader may open one, and
    whoever opened it may add to it."""
    pull = request.argument("create_pr") in ("1", "true", "True")
    account = identify(hub, request)
    if account is None:
        raise Refused(401, NO_LOGIN)
    opened = find(hub, request, repo).pull_of(revision)
    own = opened is not None and opened.author == account.name
    return find(hub, request, repo, write=not (pull or own)), pull


@route("POST", "api/models/{repo}/preupload/{revision}")
def preupload(hub, request, repo, revision):
    """For each file: as an LFS object or in the commit, whether .gitignore names it, what lies at its path now."""
    repository, _ = target(hub, request, repo, revision)
    commit = repository.head(revision)
    asked = request.json()
    files = asked.get("files")
    if not isinstance(files, list) or not files:
        raise Refused(400, "files must be a list with at least one element")
    if len(files) > PREUPLOAD_LIMIT:
        raise Refused(413, "files must have at most %d elements" % PREUPLOAD_LIMIT)
    ignored = [line.strip() for line in asked.get("gitIgnore", "").splitlines() if line.strip()[:1] not in ("", "#")]
    result = []
    for file in files:
        path = checked_path(file.get("path"))
        try:
            sample = base64.b64decode(file["sample"], validate=True)
            size = int(file["size"])
        except (KeyError, ValueError):
            raise Refused(400, "%s: sample (base64) and size are needed" % path) from None
        if len(sample) != min(size, 512):
            raise Refused(400, "%s: the sample has %d bytes of a file of %d" % (path, len(sample), size))
        lfs = (repository.stores_as_lfs(path, commit, asked.get("gitAttributes", "")) or size > hub.lfs_threshold
               or b"\0" in sample)
        value = {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": any(
            fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path.rpartition("/")[2], pattern) for pattern in ignored)}
        if path in commit.files:
            value["oid"] = commit.files[path].etag
        result.append(value)
    return json_reply({"files": result, "commitOid": commit.id})


def checked_path(path):
    if not isinstance(path, str) or not path or any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise Refused(400, "Invalid path: %s" % path)
    return path


@route("POST", "api/models/{repo}/commit/{revision}")
def commit(hub, request, repo, revision):
    repository, as_pull = target(hub, request, repo, revision)
    account = identify(hub, request)
    if not request.headers.get("content-type", "").startswith("application/x-ndjson"):
        raise Refused(400, "a commit is application/x-ndjson")
    if hub.commit_bytes_limit is not None and len(request.body) > hub.commit_bytes_limit:
        raise Refused(413, "request entity too large")
    head, pull = repository.head(revision), repository.pull_of(revision)
    if not pull and revision not in repository.branches:
        raise Refused(400, "%s is not a branch" % revision)
    if pull and pull.status not in ("draft", "open"):
        raise Refused(403, "The pull request is %s" % pull.status)
    header, operations = parse(hub, request.body)
    expected = header.get("parentCommit")
    if expected and expected != head.id:
        raise Refused(412, "A commit has happened since. Please refresh and try again.")
    files = repository.with_attributes(apply(hub, repository, head.files, operations))
    check_folders(hub, files)
    description = header.get("description") or ""
    if as_pull:
        pull = repository.open_pull(header["summary"], description, account.name, revision)
        revision = "refs/pr/%d" % pull.num
    made = repository.commit(revision, files, header["summary"], description, account.name)
    value = {"success": True, "commitOid": made.id, "commitUrl": "%s/%s/commit/%s" % (hub.url, repository.id, made.id),
             "hookOutput": ""}
    if as_pull:
        value["pullRequestUrl"] = "%s/%s/discussions/%d" % (hub.url, repository.id, pull.num)
    return json_reply(value)


def parse(hub, body):
    """The header and the [(key, value)] of a commit's lines."""
    lines = []
    for number, line in enumerate(body.splitlines(), 1):
        try:
            item = json.loads(line)
            lines.append((item["key"], item["value"]))
        except (ValueError, KeyError, TypeError):
            raise Refused(400, "line %d of the commit is not understood" % number) from None
    if not lines or lines[0][0] != "header" or not lines[0][1].get("summary"):
        raise Refused(400, "a commit begins with a header that has a summary")
    if hub.commit_operations_limit is not None and len(lines) - 1 > hub.commit_operations_limit:
        raise Refused(413, "a commit may have at most %d operations" % hub.commit_operations_limit)
    return lines[0][1], lines[1:]


def apply(hub, repository, files, operations):
    """The files after the operations. Either all are carried out or none."""
    files = dict(files)
    for key, value in operations:
        path = checked_path(str(value.get("path", "")).rstrip("/"))
        if key == "file":
            files[path] = regular_file(decoded(hub, path, value))
        elif key == "lfsFile":
            files[path] = lfs_file(stored_object(repository, path, value))
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "A file with this name doesn't exist: " + path, "EntryNotFound")
        elif key == "deletedFolder":
            inside = [name for name in files if name.startswith(path + "/")]
            if not inside:
                raise Refused(404, "A folder with this name doesn't exist: " + path, "EntryNotFound")
            for name in inside:
                del files[name]
        else:
            raise Refused(400, "unknown operation: %s" % key)
    folders = {parent for path in files for parent in parents(path)}
    both = sorted(folders & set(files))
    if both:
        raise Refused(400, "%s is a file and a folder" % both[0])
    return files


def parents(path):
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def decoded(hub, path, value):
    try:
        text = value["content"]
        data = base64.b64decode(text, validate=True) if value.get("encoding") == "base64" else text.encode()
    except (KeyError, AttributeError, binascii.Error):
        raise Refused(400, "%s: the content is not base64" % path) from None
    if len(data) > hub.lfs_threshold:
        raise Refused(400, "Your push was rejected because it contains files larger than %d bytes. "
                           "Please use https://git-lfs.github.com/ to store larger files. Offending files: - %s"
                      % (hub.lfs_threshold, path))
    return data


def stored_object(repository, path, value) -> Content:
    oid = value.get("oid", "")
    if value.get("algo") != "sha256" or not SHA256.fullmatch(oid):
        raise Refused(400, "%s: an LFS file needs algo sha256 and its oid" % path)
    content = repository.objects.get(oid)
    if content is None:
        raise Refused(400, "Your push was rejected because an LFS pointer pointed to a file that does not exist. "
                           "Offending file: - %s" % path)
    if value.get("size", content.size) != content.size:
        raise Refused(400, "%s: the LFS object has %d bytes, not %s" % (path, content.size, value["size"]))
    return content


def check_folders(hub, files):
    counts = {}
    for entry in {*files, *(parent for path in files for parent in parents(path))}:
        folder = entry.rpartition("/")[0]
        counts[folder] = counts.get(folder, 0) + 1
    for folder, count in counts.items():
        if count > hub.folder_entries_limit:
            raise Refused(400, "Your push was rejected because it contains too many files per directory. Each "
                               "directory in your git repo can only contain up to %d files. Offending: %s (%d)"
                          % (hub.folder_entries_limit, folder or "/", count))
