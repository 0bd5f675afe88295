"""A hub and a plain client, for the tests of the server that plays the Hub."""

import base64
import hashlib
import http.client
import json
import urllib.parse

from common import EndToEnd
from hub_server import HubServer


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.body)


class Server(EndToEnd):
    options = {}

    def setUp(self):
        super().setUp()
        self.hub = HubServer(**self.options)
        self.hub.__enter__()
        self.addCleanup(self.hub.__exit__)

    def fill(self, files, repo="org/model", **options):
        folder = self.scratch / repo.replace("/", "-")
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        self.hub.add(repo, folder, **options)

    def ask(self, method, address, body=None, token=True, headers=None, timeout=30):
        """One request on a connection of its own. Dictionaries and lists are sent as JSON; nothing is followed."""
        parts = urllib.parse.urlsplit(address if "://" in address else self.hub.url + "/" + address)
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout)
        self.addCleanup(connection.close)
        headers = dict(headers or {})
        if token and parts.netloc == urllib.parse.urlsplit(self.hub.url).netloc:
            headers["Authorization"] = "Bearer " + (token if isinstance(token, str) else self.hub.token)
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, parts.path + ("?" + parts.query if parts.query else ""), body, headers)
        return Answer(connection.getresponse())

    def commit(self, operations, parent=None, query="", repo="org/model", **options):
        header = {"summary": "Test", "description": "", **({"parentCommit": parent} if parent else {})}
        lines = [{"key": "header", "value": header}, *({"key": key, "value": value} for key, value in operations)]
        body = "\n".join(map(json.dumps, lines)).encode()
        return self.ask("POST", "api/models/%s/commit/main%s" % (repo, query), body,
                        headers={"Content-Type": "application/x-ndjson"}, **options)

    def batch(self, *objects, **options):
        return self.ask("POST", "org/model.git/info/lfs/objects/batch", {
            "operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256", "ref": {"name": "main"},
            "objects": [{"oid": hashlib.sha256(data).hexdigest(), "size": len(data)} for data in objects]},
            headers={"Content-Type": "application/vnd.git-lfs+json"}, **options)

    def verify(self, data):
        return self.ask("POST", "org/model.git/info/lfs/objects/verify",
                        {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)})


def file(path, data):
    return "file", {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}


def lfs_file(path, data):
    return "lfsFile", {"path": path, "algo": "sha256", "oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
