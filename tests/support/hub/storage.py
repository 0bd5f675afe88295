"""The other host, as S3 and the CDN are: signed links that expire, for reading and for writing large objects.

A link's signature is all that a request needs. An Authorization header beside it is refused, as S3 does, and stays in
the log: a token has no business here.
"""

import hashlib
import hmac
import secrets
import time
from xml.sax.saxutils import escape

from .objects import Content
from .repository import Refused, Upload
from .wire import Reply


def xml(status, code, message, headers=None):
    text = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>' % (
        code, escape(message))
    return Reply(status, text.encode(), {"Content-Type": "application/xml", **(headers or {})})


class Storage:
    """`url` is set once the host listens. The hub's lock guards everything."""

    def __init__(self, hub):
        self.hub = hub
        self.url = ""
        self._secret = secrets.token_bytes(16)
        self._generation = 0

    def expire_all(self):
        """Every link that was handed out so far is expired."""
        self._generation += 1

    # Links --------------------------------------------------------------------------------------------------------

    def sign(self, *words):
        return hmac.new(self._secret, "\n".join(words).encode(), hashlib.sha256).hexdigest()

    def link(self, method, path, seconds, extra=""):
        expires = "%.3f" % (time.time() + seconds)
        signature = self.sign(method, path, expires, str(self._generation))
        return "%s%s?%sExpires=%s&Generation=%d&Signature=%s" % (
            self.url, path, extra, expires, self._generation, signature)

    def read_link(self, repository, oid, name):
        extra = "response-content-disposition=inline%%3B%%20filename%%3D%%22%s%%22%%3B&" % name.replace("%", "%25")
        return self.link("GET", "/objects/%d/%s" % (repository.number, oid), self.hub.link_seconds, extra)

    def write_link(self, upload: Upload, part=1):
        return self.link("PUT", "/uploads/%s/%d" % (upload.id, part), self.hub.upload_link_seconds)

    # Uploads ------------------------------------------------------------------------------------------------------

    def begin(self, repository, upload: Upload):
        repository.uploads[upload.id] = upload
        return upload

    def find_upload(self, upload_id):
        for repository in self.hub.repositories.values():
            if upload_id in repository.uploads:
                return repository, repository.uploads[upload_id]
        raise Refused(404, "NoSuchUpload: the upload does not exist; it may have been completed")

    @staticmethod
    def etag(data):
        return hashlib.md5(data).hexdigest()

    # Answers ------------------------------------------------------------------------------------------------------

    def answer(self, request) -> Reply:
        if request.authorization is not None:
            return xml(400, "InvalidArgument", "Only one auth mechanism allowed")
        with self.hub.lock:
            method = "GET" if request.method == "HEAD" else request.method
            path = "/" + request.path
            expires, generation = request.argument("Expires", ""), request.argument("Generation", "")
            if request.argument("Signature") != self.sign(method, path, expires, generation):
                return xml(403, "SignatureDoesNotMatch", "The signature does not match the request")
            if float(expires) < time.time() or int(generation) < self._generation:
                return xml(403, "AccessDenied", "Request has expired")
            kind, owner, last = request.segments
            try:
                if kind == "objects":
                    return self.read(int(owner), last)
                return self.write(owner, int(last), request)
            except Refused as error:
                return xml(error.status, error.message.partition(":")[0], error.message)

    def read(self, number, oid):
        for repository in self.hub.repositories.values():
            if repository.number == number and oid in repository.objects:
                # Not the digest: a client must not take the storage's ETag for the Hub's.
                return Reply(200, repository.objects[oid], {
                    "Content-Type": "application/octet-stream", "ETag": '"%s"' % oid[:32], "Accept-Ranges": "bytes"})
        return xml(404, "NoSuchKey", "The specified key does not exist")

    def write(self, upload_id, part, request):
        if "content-length" not in request.headers:
            return xml(411, "MissingContentLength", "You must provide the Content-Length HTTP header")
        if not request.body:
            return xml(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        repository, upload = self.find_upload(upload_id)
        if upload.chunk_size:
            upload.parts[part] = request.body
        else:
            repository.received[upload.oid] = Content(request.body)
        return Reply(200, b"", {"ETag": '"%s"' % self.etag(request.body)})
