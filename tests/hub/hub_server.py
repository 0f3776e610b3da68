"""A small Hugging Face hub on loopback: the part of the protocol that datasets need.

Accounts and tokens, creating datasets, listing trees page by page, uploading through LFS (batch,
PUT, verify) and commits of NDJSON lines, downloading with redirects and ranges. On request it
misbehaves.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LFS_FROM_BYTES = 1000  # larger files are kept outside of git, as on the real hub (there: 10 MB)
BINARY = (".safetensors", ".pt", ".png")


@dataclass(frozen=True)
class Blob:
    content: bytes
    is_lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git_oid(self) -> str:
        content = self.content
        if self.is_lfs:  # git keeps a pointer
            content = f"oid sha256:{self.sha256}\nsize {len(content)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Dataset:
    private: bool = False
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)  # sha -> tree
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commit({}, "initial commit")

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def tree(self) -> dict[str, Blob]:
        return self.commits[self.head]

    def commit(self, tree: dict[str, Blob], message: str) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[sha] = tree
        self.messages.append(message)
        return sha

    def put(self, path: str, content: bytes, *, is_lfs: bool = False) -> None:
        """As somebody else would, by other means."""
        self.commit({**self.tree, path: Blob(content, is_lfs)}, f"put {path}")


class HubServer:
    """`datasets`, `tokens` (token -> owner whose datasets it may write to) and what to do wrong."""

    def __init__(self) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.storage: dict[str, bytes] = {}  # LFS objects by SHA-256
        self.tokens = {"hf_writer": "team", "hf_reader": ""}
        self.page = 1000  # entries of a tree listing per answer
        self.requests: list[tuple[str, str]] = []
        self.received_bytes = 0  # into LFS storage
        # Misbehaviour: so many times, for paths that contain the text.
        self.drops: dict[str, int] = {}  # break the connection halfway through a body
        self.errors: dict[str, tuple[int, int]] = {}  # answer with this status (status, times)
        self.lost: dict[str, int] = {}  # do as asked, and hang up instead of answering
        self.lies: dict[str, bytes] = {}  # serve other content of the same size
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def count(self, method: str, part: str) -> int:
        return sum(m == method and part in path for m, path in self.requests)

    def take(self, plan: dict[str, int], path: str) -> bool:
        for part, times in plan.items():
            if part in path and times > 0:
                plan[part] -= 1
                return True
        return False


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if self.command == "PUT" and self.hub.take(self.hub.drops, path):
            self.rfile.read(10)
            self._hang_up()
            return
        body = self._body()
        for part, (status, times) in self.hub.errors.items():
            if part in path and times > 0:
                self.hub.errors[part] = (status, times - 1)
                self._send(status, {"error": "on purpose"})
                return
        for method, pattern, work in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split("|"):
                work(self, body, **match.groupdict())
                return
        self._send(404, {"error": f"no such route {self.command} {path}"})

    # Who may

    def _account(self) -> str | None:
        """Owner the token writes for; None without a token."""
        header = self.headers.get("Authorization", "")
        return self.hub.tokens.get(header.removeprefix("Bearer ")) if header else None

    def _dataset(self, repo: str, *, write: bool = False) -> Dataset | None:
        header = self.headers.get("Authorization", "")
        if header and header.removeprefix("Bearer ") not in self.hub.tokens:
            self._send(
                401,
                {"error": "Invalid credentials"},
                {"X-Error-Message": "Invalid credentials in Authorization header"},
            )
            return None
        dataset = self.hub.datasets.get(repo)
        owner = repo.partition("/")[0]
        if dataset is None or (dataset.private and self._account() != owner):
            # The real one does not tell a stranger whether it exists.
            self._send(404 if header else 401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
            return None
        if write and self._account() != owner:
            self._send(403 if header else 401, {"error": "You have read-only access"})
            return None
        return dataset

    # Routes

    def create(self, body: bytes) -> None:
        request = json.loads(body)
        owner, name = request["organization"] or "", request["name"]
        if self._account() != owner:
            self._send(403 if self._account() is not None else 401, {"error": "not yours"})
        elif f"{owner}/{name}" in self.hub.datasets:
            self._send(409, {"error": "exists", "url": f"{self.hub.url}/datasets/{owner}/{name}"})
        else:
            private = request.get("visibility") == "private" or bool(request.get("private"))
            self.hub.datasets[f"{owner}/{name}"] = Dataset(private)
            self._send(200, {"url": f"{self.hub.url}/datasets/{owner}/{name}"})

    def info(self, body: bytes, repo: str, revision: str = "main") -> None:
        if dataset := self._dataset(repo):
            sha = dataset.head if revision == "main" else revision
            self._send(200, {"id": repo, "sha": sha, "private": dataset.private, "siblings": []})

    def tree(self, body: bytes, repo: str, revision: str, path: str = "") -> None:
        dataset = self._dataset(repo)
        if dataset is None:
            return
        tree = dataset.tree if revision == "main" else dataset.commits[revision]
        query = parse_qs(urlsplit(self.path).query)
        recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        prefix = f"{path}/" if path else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, blob in sorted(tree.items()):
            if not name.startswith(prefix):
                continue
            inner = name.removeprefix(prefix).split("/")
            for depth in range(1, len(inner)):
                folder = prefix + "/".join(inner[:depth])
                entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40}
            entry: dict[str, Any] = {
                "type": "file",
                "path": name,
                "size": len(blob.content),
                "oid": blob.git_oid,
            }
            if blob.is_lfs:
                size = len(blob.content)
                entry["lfs"] = {"oid": blob.sha256, "size": size, "pointerSize": 130}
            entries[name] = entry
        if not entries:
            self._send(404, {"error": "no entry"}, {"X-Error-Code": "EntryNotFound"})
            return
        listed = [
            entry
            for name, entry in entries.items()
            if recursive or "/" not in name.removeprefix(prefix)
        ]
        start = int(query.get("cursor", ["0"])[0])
        page = listed[start : start + self.hub.page]
        headers = {}
        if start + self.hub.page < len(listed):
            url = f"{self.hub.url}{urlsplit(self.path).path}?recursive={recursive}"
            headers["Link"] = f'<{url}&cursor={start + self.hub.page}>; rel="next"'
        self._send(200, page, headers)

    def preupload(self, body: bytes, repo: str, revision: str) -> None:
        if dataset := self._dataset(repo, write=True):
            files = []
            for file in json.loads(body)["files"]:
                is_lfs = file["size"] >= LFS_FROM_BYTES or file["path"].endswith(BINARY)
                mode = "lfs" if is_lfs else "regular"
                blob = dataset.tree.get(file["path"])
                oid = None if blob is None else blob.sha256 if blob.is_lfs else blob.git_oid
                files.append(
                    {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}
                )
            self._send(200, {"files": files})

    def lfs_batch(self, body: bytes, repo: str) -> None:
        if self._dataset(repo, write=True):
            objects = []
            for entry in json.loads(body)["objects"]:
                answer = {"oid": entry["oid"], "size": entry["size"]}
                if entry["oid"] not in self.hub.storage:
                    upload = {"href": f"{self.hub.url}/storage/{entry['oid']}"}
                    verify = {"href": f"{self.hub.url}/storage-verify"}
                    answer["actions"] = {"upload": upload, "verify": verify}
                objects.append(answer)
            self._send(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid, "an upload that changed on the way"
        self.hub.storage[oid] = body
        self.hub.received_bytes += len(body)
        self._send(200, {})

    def lfs_verify(self, body: bytes) -> None:
        entry = json.loads(body)
        is_there = len(self.hub.storage.get(entry["oid"], b"")) == entry["size"]
        self._send(200 if is_there else 404, {})

    def commit(self, body: bytes, repo: str, revision: str) -> None:
        dataset = self._dataset(repo, write=True)
        if dataset is None:
            return
        tree, message = dict(dataset.tree), ""
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    tree[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                case "lfsFile":
                    tree[value["path"]] = Blob(self.hub.storage[value["oid"]], True)
                case "deletedFile":
                    if tree.pop(value["path"], None) is None:
                        self._send(404, {"error": "A file with this name doesn't exist"})
                        return
                case other:
                    raise AssertionError(other)
        sha = dataset.commit(tree, message)
        if self.hub.take(self.hub.lost, self.path):
            self._hang_up()
            return
        url = f"{self.hub.url}/datasets/{repo}/commit/{sha}"
        self._send(200, {"commitUrl": url, "commitOid": sha})

    def resolve(self, body: bytes, repo: str, revision: str, path: str) -> None:
        dataset = self._dataset(repo)
        if dataset is None:
            return
        sha = dataset.head if revision == "main" else revision
        blob = dataset.commits[sha].get(path)
        if blob is None:
            self._send(404, {"error": "no entry"}, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": sha}
        if blob.is_lfs:
            headers["X-Linked-Etag"] = f'"{blob.sha256}"'
            headers["X-Linked-Size"] = str(len(blob.content))
            # To another host, as the real one redirects to its storage.
            elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
            headers["Location"] = f"{elsewhere}/storage/{blob.sha256}?name={path}"
            self.hub.storage.setdefault(blob.sha256, blob.content)
            self._send_bytes(302, b"", headers)
            return
        headers["ETag"] = f'"{blob.git_oid}"'
        self._send_file(blob.content, headers, path)

    def lfs_get(self, body: bytes, oid: str) -> None:
        name = parse_qs(urlsplit(self.path).query).get("name", [""])[0]
        self._send_file(self.hub.storage[oid], {"ETag": f'"{oid}"'}, name)

    # Answers

    def _send_file(self, content: bytes, headers: dict[str, str], path: str) -> None:
        for part, lie in self.hub.lies.items():
            content = lie if part in path else content
        status, total = 200, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked:
            start = int(asked[1])
            status, content = 206, content[start:]
            headers = headers | {"Content-Range": f"bytes {start}-{total - 1}/{total}"}
        is_cut = self.command == "GET" and self.hub.take(self.hub.drops, path)
        self._send_bytes(status, content, headers, cut=is_cut)

    def _send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self._send_bytes(status, data, {"Content-Type": "application/json"} | (headers or {}))

    def _send_bytes(
        self, status: int, data: bytes, headers: dict[str, str], *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(2)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


REPO = r"(?P<repo>[^/]+/[^/]+?)"
ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("GET", f"/api/datasets/{REPO}", _Handler.info),
    ("GET", f"/api/datasets/{REPO}/revision/(?P<revision>[^/]+)", _Handler.info),
    ("GET", rf"/api/datasets/{REPO}/tree/(?P<revision>[^/]+)(/(?P<path>.*))?", _Handler.tree),
    ("POST", f"/api/datasets/{REPO}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", f"/api/datasets/{REPO}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", rf"/datasets/{REPO}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("GET|HEAD", f"/datasets/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.*)", _Handler.resolve),
    ("PUT", "/storage/(?P<oid>[0-9a-f]{64})", _Handler.lfs_put),
    ("GET|HEAD", "/storage/(?P<oid>[0-9a-f]{64})", _Handler.lfs_get),
    ("POST", "/storage-verify", _Handler.lfs_verify),
]
