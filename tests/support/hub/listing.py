"""What is there: account, model info, trees, paths, refs, commits."""

import urllib.parse

from .repository import Refused, iso
from .routes import find, need_login, route
from .wire import json_reply

PATHS_INFO_LIMIT = 1000


@route("GET", "api/whoami-v2")
def whoami(hub, request):
    account = need_login(hub, request)
    role = "read" if account.read_only else "write"
    return json_reply({
        "type": "user", "id": "%024x" % sum(account.name.encode()), "name": account.name, "fullname": account.name,
        "email": account.name + "@hub.test", "emailVerified": True, "isPro": False, "canPay": False,
        "orgs": [{"type": "org", "name": name} for name in account.namespaces or [] if name != account.name],
        "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}})


@route("GET", "api/models/{repo}")
def info(hub, request, repo):
    return revision_info(hub, request, repo, "main")


@route("GET", "api/models/{repo}/revision/{revision}")
def revision_info(hub, request, repo, revision):
    repository = find(hub, request, repo)
    commit = repository.head(revision)
    siblings = []
    for path in sorted(commit.files)[:hub.siblings_limit]:
        file = commit.files[path]
        sibling = {"rfilename": path}
        if request.argument("blobs") in ("true", "True", "1"):
            sibling.update({"size": file.size, "blobId": file.oid})
            if file.lfs:
                sibling["lfs"] = {"sha256": file.content.sha256, "size": file.size, "pointerSize": file.pointer_size}
        siblings.append(sibling)
    value = {
        "_id": "%024x" % repository.number, "id": repository.id, "modelId": repository.id,
        "author": repository.id.partition("/")[0], "sha": commit.id, "lastModified": iso(commit.time),
        "createdAt": iso(repository.created), "private": repository.private, "gated": repository.gated,
        "disabled": False, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings,
        "usedStorage": sum(content.size for content in repository.objects.values())}
    wanted = request.query.get("expand", []) + request.query.get("expand[]", [])
    if wanted:
        value = {name: value[name] for name in ("_id", "id", *wanted) if name in value}
    return json_reply(value)


def entry(repository, commit, path, expand, with_xet):
    """A file or folder as trees and paths-info describe it, or None where there is neither."""
    if path in commit.files:
        file = commit.files[path]
        value = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
        if file.lfs:
            value["lfs"] = {"oid": file.content.sha256, "size": file.size, "pointerSize": file.pointer_size}
            if with_xet:
                value["xetHash"] = file.xet_hash
    elif path in commit.folders and path:
        value = {"type": "directory", "oid": commit.folders[path], "size": 0, "path": path}
    else:
        return None
    if expand:
        last = repository.last_change(commit, path)
        value["lastCommit"] = {"id": last.id, "title": last.title, "date": iso(last.time)}
        if value["type"] == "file":
            scan = {"status": "safe", "message": None, "reportLink": None, "reportLabel": None}
            value["securityFileStatus"] = {"status": "safe", "avScan": scan, "pickleImportScan": scan}
    return value


@route("GET", "api/models/{repo}/tree/{revision}")
def tree(hub, request, repo, revision):
    return subtree(hub, request, repo, revision, "")


@route("GET", "api/models/{repo}/tree/{revision}/{folder*}")
def subtree(hub, request, repo, revision, folder):
    repository = find(hub, request, repo)
    commit = repository.head(revision)
    folder = folder.strip("/")
    if folder not in commit.folders:
        raise Refused(404, "%s does not exist on \"%s\"" % (folder, revision), "EntryNotFound")
    prefix = folder + "/" if folder else ""
    recursive = flag(request, "recursive")
    paths = [path for path in (*commit.files, *commit.folders)
             if path and path.startswith(prefix) and (recursive or "/" not in path[len(prefix):])]
    paths.sort(key=lambda path: (path + "/" if path in commit.folders else path).encode())  # as git does
    expand = flag(request, "expand")
    size = min(hub.page_size, int(request.argument("limit") or hub.page_size))
    return page(hub, request, paths, size, lambda path: entry(
        repository, commit, path, expand, hub.announce_xet))


def flag(request, name):
    return request.argument(name) in ("true", "True", "1")


def page(hub, request, items, size, describe):
    """One page of a list, with the address of the next in the Link header."""
    cursor = request.argument("cursor") or "0"
    if not cursor.isdigit():
        raise Refused(400, "Invalid cursor")
    begin = int(cursor)
    headers = {"X-Total-Count": str(len(items))}
    if begin + size < len(items):
        arguments = {**request.query, "cursor": [str(begin + size)]}
        address = hub.url + request.raw_path.partition("?")[0] + "?" + urllib.parse.urlencode(arguments, doseq=True)
        headers["Link"] = '<%s>; rel="next"' % address
    return json_reply([describe(item) for item in items[begin:begin + size]], headers=headers)


@route("POST", "api/models/{repo}/paths-info/{revision}")
def paths_info(hub, request, repo, revision):
    """Of the paths asked for those that exist."""
    repository = find(hub, request, repo)
    commit = repository.head(revision)
    if request.headers.get("content-type", "").startswith("application/json"):
        asked = request.json()
        paths, expand = asked.get("paths", []), bool(asked.get("expand"))
    else:
        form = urllib.parse.parse_qs(request.body.decode(), keep_blank_values=True)
        paths, expand = form.get("paths", []), form.get("expand", [""])[-1] in ("true", "True", "1")
    if len(paths) > PATHS_INFO_LIMIT:
        raise Refused(413, "too many parameters")
    entries = [entry(repository, commit, path.strip("/"), expand, hub.announce_xet) for path in paths]
    return json_reply([value for value in entries if value])


@route("GET", "api/models/{repo}/refs")
def refs(hub, request, repo):
    repository = find(hub, request, repo)
    value = {"converts": [],
             "branches": [{"name": name, "ref": "refs/heads/" + name, "targetCommit": commit}
                          for name, commit in repository.branches.items()],
             "tags": [{"name": name, "ref": "refs/tags/" + name, "targetCommit": commit}
                      for name, commit in repository.tags.items()]}
    if flag(request, "include_prs"):
        value["pullRequests"] = [{"name": str(pull.num), "ref": "refs/pr/%d" % pull.num, "targetCommit": pull.head}
                                 for pull in repository.pulls.values()]
    return json_reply(value)


@route("GET", "api/models/{repo}/commits/{revision}")
def commits(hub, request, repo, revision):
    repository = find(hub, request, repo)
    chain = repository.chain(repository.head(revision))
    size = min(hub.page_size, int(request.argument("limit") or hub.page_size))
    return page(hub, request, chain, size, lambda commit: {
        "id": commit.id, "title": commit.title, "message": commit.message, "date": iso(commit.time),
        "authors": [{"user": commit.author, "avatar": ""}]})


@route("POST", "api/validate-yaml")
def validate_yaml(hub, request):
    """The client asks before it sends a README.md. What begins a metadata block must end it; more is not looked at."""
    text = request.json().get("content", "")
    if text.startswith("---\n") and "\n---" not in text[3:]:
        return json_reply({"errors": [{"message": "the metadata block does not end"}], "warnings": []}, 400)
    warnings = [] if text.startswith("---\n") else [{"message": "empty or missing yaml metadata in repo card"}]
    return json_reply({"errors": [], "warnings": warnings})
