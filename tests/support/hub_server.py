"""Stands in for the Hugging Face hub: its listings, headers, errors and ranges, on a port of this machine.

Files that end in .safetensors or .bin are large ones (LFS): their ETag is their SHA-256 and they may lie on another
server (`storage`). `asked` holds every request that came in.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.waiting import PATIENCE

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {
    "anonymous": (401, "GatedRepo", "Access to model owner/m is restricted. You must be authenticated to access it."),
    "terms": (403, "GatedRepo", "Access to model owner/m is restricted and you are not in the authorized list."),
    "bad token": (401, "", "Invalid credentials in Authorization header"),
    "missing": (401, "RepoNotFound", "Invalid username or password."),
    "missing with token": (404, "RepoNotFound", "Repository not found"),
    "revision": (404, "RevisionNotFound", "Invalid rev id: nope"),
    "forbidden": (403, "", "Your token has no access to this resource."),
    "broken": (500, "", ""),
}


class Asked(NamedTuple):
    method: str
    path: str
    authorization: str
    range: str
    begins: int = 0
    sent: int = 0
    query: str = ""


class Hub:
    """What the server has and how it behaves; set before or while it runs."""

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: bool | str = False
        self.refusal = ""
        self.body: bytes | None = None  # of the listing, instead of the true one
        self.more: list[dict[str, object]] = []  # siblings that no file stands behind
        self.tags: dict[str, list[str]] = {}  # repository -> its tags; those of its base models make the model tree
        self.closed: set[str] = set()  # repositories with terms that nobody accepted
        self.storage = ""  # another server for the large files
        self.elsewhere = ""  # another server for everything
        self.cut: dict[str, int] = {}  # file -> bytes of the next answer, after which the line goes dead
        self.after_cut: dict[str, bytes] = {}  # file -> what is sent once its line went dead, under the same ETag
        self.rate = 0  # bytes per second, 0 for as fast as it goes
        self.delay = 0.0  # seconds before any answer
        self.together: threading.Barrier | None = None  # so many are answered at once, and no fewer
        self.asked: list[Asked] = []

    def sent(self, name: str) -> list[Asked]:
        """Return the answers that carried bytes of the file."""
        return [asked for asked in self.asked if asked.method == "GET" and asked.path.endswith(name) and asked.sent]


def large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def etag(name: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if large(name) else blob_id(data)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        time.sleep(self.hub.delay)
        if self.hub.together:
            self.hub.together.wait(PATIENCE)
        path = unquote(urlsplit(self.path).path).strip("/")
        self.note(path)
        if self.hub.elsewhere:
            self.answer(b"", 307, {"Location": self.hub.elsewhere + self.path})
        elif self.hub.refusal:
            self.refuse(*REFUSALS[self.hub.refusal])
        elif path.startswith("api/"):
            self.listing(path.split("/"))
        else:
            self.file(path)

    def note(self, path: str, **more: int) -> None:
        headers = self.headers
        authorization, wanted = headers.get("Authorization", ""), headers.get("Range", "")
        query = unquote(urlsplit(self.path).query)
        self.hub.asked.append(Asked(self.command, path, authorization, wanted, query=query, **more))

    def tree(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        named = [repo for repo, tags in self.hub.tags.items() if set(asked["filter"]) <= set(tags)]
        self.answer(json.dumps([self.described(repo) for repo in named[: int(asked["limit"][0])]]).encode())

    def described(self, repo: str) -> dict[str, object]:
        return {"id": repo, "tags": self.hub.tags.get(repo, []), "gated": self.hub.gated}

    def listing(self, path: list[str]) -> None:
        kind = "" if path[1] == "models" else f"{path[1]}/"
        repo = "/".join(path[2:4])
        files = self.hub.repos.get(kind + repo)
        if len(path) == 2:
            self.tree()
        elif files is None:
            self.refuse(404, "RepoNotFound", "Repository not found")
        elif len(path) == 4:
            self.answer(json.dumps(self.described(repo)).encode())
        elif self.hub.body is not None:
            self.answer(self.hub.body)
        else:
            siblings = [self.sibling(name, data) for name, data in files.items()] + self.hub.more
            info = {"id": "m", "sha": COMMIT, "gated": self.hub.gated, "private": False, "siblings": siblings}
            self.answer(json.dumps(info).encode())

    def sibling(self, name: str, data: bytes) -> dict[str, object]:
        entry = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
        stored = {"sha256": etag(name, data), "size": len(data), "pointerSize": 134}
        return entry | ({"lfs": stored} if large(name) else {})

    def file(self, path: str) -> None:
        repo, _, rest = path.partition("/resolve/")
        name = rest.partition("/")[2]
        data = self.hub.repos.get(repo, {}).get(name)
        if repo in self.hub.closed:
            self.refuse(*REFUSALS["anonymous"])
            return
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        tag = etag(name, data)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"', "Accept-Ranges": "bytes"}
        if large(name):
            headers |= {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(len(data))}
        if large(name) and self.hub.storage:
            self.answer(b"", 302, headers | {"Location": f"{self.hub.storage}{self.path}?X-Signature=secret"})
            return
        if name not in self.hub.cut and name in self.hub.after_cut:
            data = self.hub.after_cut[name]
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        ranged = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
        self.send(data, begin, path, headers | ranged, self.hub.cut.pop(name, None) if self.command == "GET" else None)

    def send(self, data: bytes, begin: int, path: str, headers: dict[str, str], limit: int | None) -> None:
        self.head(206 if begin else 200, len(data) - begin, headers)
        if self.command == "HEAD":
            return
        sent, end = begin, len(data) if limit is None else begin + limit
        try:
            while sent < end:
                step = min(end - sent, 1 << 16)
                self.wfile.write(data[sent : sent + step])
                sent += step
                time.sleep(step / self.hub.rate if self.hub.rate else 0)
        finally:
            self.note(path, begins=begin, sent=sent - begin)
            self.close_connection = self.close_connection or end < len(data)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(b"no", status, {"X-Error-Code": code, "X-Error-Message": message})

    def answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.head(status, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away."""


@contextmanager
def running() -> Iterator[Hub]:
    """Run a hub on a free port and yield it."""
    hub = Hub()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
