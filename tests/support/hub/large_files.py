"""LFS: which objects to send and where (batch), the end of a multipart upload, and the check of what came (verify).

Objects belong to one repository, as on the Hub. An object counts as stored once it was verified; until then a batch
asks for it again. A finished multipart upload is gone: to finish it a second time is NoSuchUpload, as in S3.
"""

import re

from .objects import Content
from .repository import Refused, Upload
from .routes import find, identify, need_grant, need_login, route
from .wire import json_reply

LFS_JSON = "application/vnd.git-lfs+json"
SHA256 = re.compile(r"[0-9a-f]{64}")


def lfs_reply(value, status=200):
    return json_reply(value, status, {"Content-Type": LFS_JSON})


def check_headers(request):
    if not request.headers.get("content-type", "").startswith((LFS_JSON, "application/json")):
        raise Refused(415, "the content type must be " + LFS_JSON)


@route("POST", "{repo}.git/info/lfs/objects/batch")
def batch(hub, request, repo):
    check_headers(request)
    asked = request.json()
    objects = asked.get("objects")
    if asked.get("hash_algo", "sha256") != "sha256" or not isinstance(objects, list) or not objects:
        raise Refused(422, "objects with hash_algo sha256 are needed")
    if len(objects) > hub.lfs_batch_limit:
        raise Refused(413, "at most %d objects at a time" % hub.lfs_batch_limit)
    if asked.get("operation") == "download":
        repository = find(hub, request, repo)
        need_grant(repository, identify(hub, request))
        return lfs_reply({"transfer": "basic", "objects": [download(hub, repository, item) for item in objects]})
    # Without a ref it is meant for a pull request, for which no right to write is needed.
    need_login(hub, request)
    repository = find(hub, request, repo, write="ref" in asked)
    multipart = "multipart" in asked.get("transfers", ["basic"])
    answers = [upload(hub, repository, item, multipart) for item in objects]
    parted = any("chunk_size" in item.get("actions", {}).get("upload", {}).get("header", {}) for item in answers)
    return lfs_reply({"transfer": "multipart" if parted else "basic", "objects": answers})


def download(hub, repository, item):
    oid, size = item.get("oid"), item.get("size")
    if oid not in repository.objects:
        return {"oid": oid, "size": size, "error": {"code": 404, "message": "Object does not exist"}}
    return {"oid": oid, "size": size, "actions": {"download": {"href": hub.storage.read_link(repository, oid, oid)}}}


def upload(hub, repository, item, multipart):
    oid, size = item.get("oid"), item.get("size")
    if not isinstance(oid, str) or not SHA256.fullmatch(oid) or not isinstance(size, int) or size < 0:
        return {"oid": str(oid), "size": size if isinstance(size, int) else 0,
                "error": {"code": 422, "message": "oid and size are not those of an object"}}
    if size > hub.lfs_size_limit:
        return {"oid": oid, "size": size, "error": {"code": 422, "message": "Object is too large"}}
    if oid in hub.lfs_errors:
        code, message = hub.lfs_errors[oid]
        return {"oid": oid, "size": size, "error": {"code": code, "message": message}}
    if oid in repository.objects:
        return {"oid": oid, "size": size}
    chunk = hub.chunk_size if multipart and size > hub.multipart_threshold else 0
    begun = hub.storage.begin(repository, Upload("%032x" % hub.next_number(), oid, size, chunk))
    action = {"href": hub.storage.write_link(begun)}
    if chunk:
        # The numbers are not padded: who sorts them as text puts 10 before 2.
        parts = {str(part): hub.storage.write_link(begun, part) for part in range(1, begun.part_count + 1)}
        action = {"href": "%s/api/complete_multipart?upload=%s&signature=%s" % (
            hub.action_url, begun.id, hub.storage.sign("complete", begun.id)),
            "header": {"chunk_size": str(chunk), **parts}}
    verify = {"href": "%s/%s.git/info/lfs/objects/verify" % (hub.action_url, repository.id)}
    actions = {"upload": action, "verify": verify}
    if hub.falsify_actions:
        hub.falsify_actions(actions)
    return {"oid": oid, "size": size, "authenticated": True, "actions": actions}


@route("POST", "api/complete_multipart")
def complete(hub, request):
    """Signed, so that no token is needed; the official client sends none."""
    check_headers(request)
    upload_id = request.argument("upload", "")
    if request.argument("signature") != hub.storage.sign("complete", upload_id):
        raise Refused(403, "Invalid signature")
    repository, begun = hub.storage.find_upload(upload_id)
    asked = request.json()
    parts = asked.get("parts", [])
    if asked.get("oid") != begun.oid:
        raise Refused(400, "the oid is not that of the upload")
    if [part.get("partNumber") for part in parts] != list(range(1, begun.part_count + 1)):
        raise Refused(400, "InvalidPartOrder: parts must be numbered from 1 to %d" % begun.part_count)
    for part in parts:
        data = begun.parts.get(part["partNumber"])
        if data is None or str(part.get("etag", "")).strip('"') != hub.storage.etag(data):
            raise Refused(400, "InvalidPart: part %d is missing, or its etag differs" % part["partNumber"])
    whole = b"".join(begun.parts[number] for number in range(1, begun.part_count + 1))
    repository.received[begun.oid] = Content(whole)
    del repository.uploads[begun.id]
    return json_reply({"success": True})


@route("POST", "{repo}.git/info/lfs/objects/verify")
def verify(hub, request, repo):
    """What came is stored if it is what was announced. What is not is thrown away."""
    need_login(hub, request)
    repository = find(hub, request, repo)
    asked = request.json()
    oid, size = asked.get("oid"), asked.get("size")
    if oid in repository.objects and repository.objects[oid].size == size:
        return json_reply({"success": True})
    content = repository.received.get(oid)
    if content is None:
        raise Refused(404, "Object does not exist")
    if content.size != size or content.sha256 != oid:
        del repository.received[oid]
        raise Refused(422, "the object has %d bytes with SHA-256 %s" % (content.size, content.sha256))
    repository.objects[oid] = repository.received.pop(oid)
    return json_reply({"success": True})
