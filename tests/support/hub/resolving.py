"""Reading files: /ORG/NAME/resolve/REVISION/PATH."""

import urllib.parse

from .repository import Refused
from .routes import find, identify, moved, need_grant, route
from .wire import Reply


@route("GET", "{repo}/resolve/{rest*}")
def resolve(hub, request, repo, rest):
    repository = find(hub, request, repo)
    need_grant(repository, identify(hub, request))
    revision, path = split_revision(request)
    commit = repository.head(revision)
    headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes", "Cache-Control": "no-store"}
    file = commit.files.get(path)
    if file is None:
        raise Refused(404, "Entry not found", "EntryNotFound", headers)
    if file.lfs:
        headers.update({"X-Linked-Size": str(file.size), "X-Linked-Etag": '"%s"' % file.etag})
        if hub.announce_xet:
            token = "%s/api/models/%s/xet-read-token/%s" % (hub.url, repository.id, commit.id)
            headers.update({"X-Xet-Hash": file.xet_hash, "Link": '<%s>; rel="xet-auth"' % token})
        name = urllib.parse.quote(path.rpartition("/")[2])
        return moved(hub.storage.read_link(repository, file.content.sha256, name), 302, headers)
    if hub.small_file_redirect:
        headers.update({"X-Linked-Size": str(file.size), "X-Linked-Etag": '"%s"' % file.etag})
        target = "/api/resolve-cache/models/%s/%s/%s" % (repository.id, commit.id, urllib.parse.quote(path))
        return moved(target, 307, headers)
    return small_file(file, path, headers)


@route("GET", "api/resolve-cache/models/{repo}/{commit}/{path*}")
def resolve_cache(hub, request, repo, commit, path):
    """Where the Hub sends those who ask for a small file, by an address relative to its own host."""
    repository = find(hub, request, repo)
    need_grant(repository, identify(hub, request))
    found = repository.head(commit)
    file = found.files.get(path)
    if file is None or file.lfs:
        raise Refused(404, "Entry not found", "EntryNotFound")
    return small_file(file, path, {"X-Repo-Commit": found.id, "Accept-Ranges": "bytes"})


def small_file(file, path, headers):
    kind = "application/json" if path.endswith(".json") else "text/plain; charset=utf-8"
    name = urllib.parse.quote(path.rpartition("/")[2])
    return Reply(200, file.content, {
        "Content-Type": kind, "ETag": '"%s"' % file.etag,
        "Content-Disposition": "inline; filename*=UTF-8''%s; filename=\"%s\";" % (name, name), **headers})


def split_revision(request):
    """Revision and path. A revision with slashes comes as one part (refs%2Fpr%2F1), or, for refs, as three."""
    parts = request.segments[3:]
    width = 3 if parts[0] == "refs" and len(parts) > 3 else 1
    return "/".join(parts[:width]), "/".join(parts[width:])
