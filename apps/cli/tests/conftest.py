"""A Hugging Face Hub on this machine, with one repository that holds pico."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tinyllm_qwen.checkpoint.hub import resolve

COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"


class _Handler(BaseHTTPRequestHandler):
    repository: str
    files: dict[str, bytes]
    seconds: float  # the time of a long file

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{self.repository}/tree/"):
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in self.files.items()
            ]
            self._send(json.dumps(listed).encode(), "application/json", body=body)
        elif path == f"/api/models/{self.repository}" or path.startswith(
            f"/api/models/{self.repository}/revision/"
        ):
            siblings = [{"rfilename": name, "size": len(d)} for name, d in self.files.items()]
            info = {"id": self.repository, "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(info).encode(), "application/json", body=body)
        elif path.startswith(f"/{self.repository}/resolve/"):
            self._send(self.files[path.rpartition("/")[2]], "application/octet-stream", body=body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, data: bytes, kind: str, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data[:1000])
            if len(data) > 1000:
                time.sleep(self.seconds)
                with suppress(OSError):  # the client has left
                    self.wfile.write(data[1000:])

    def log_message(self, *_: object) -> None:
        """Write no log."""


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def pico_files() -> dict[str, bytes]:
    """The files of pico by name."""
    return {path.name: path.read_bytes() for path in resolve("pico").iterdir() if path.is_file()}


@contextmanager
def _hub(repository: str, files: dict[str, bytes], seconds: float) -> Iterator[str]:
    """Run a Hub with one repository, and yield its address."""
    fields = {"repository": repository, "files": files, "seconds": seconds}
    handler = type("Handler", (_Handler,), fields)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve_hub() -> Iterator[Callable[..., str]]:
    """A function that starts a Hub with one repository and returns its address.

    Each long file takes `seconds`.
    """
    with ExitStack() as hubs:
        yield lambda repository, files, seconds=0.0: hubs.enter_context(
            _hub(repository, files, seconds)
        )


@pytest.fixture
def fill_cache(tmp_path: Path) -> Callable[[str, dict[str, bytes]], Path]:
    """A function that fills the cache as huggingface_hub does, and returns the snapshot."""

    def fill(repository: str, files: dict[str, bytes]) -> Path:
        root = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        snapshot = root / "snapshots" / COMMIT
        for folder in (snapshot, root / "blobs", root / "refs"):
            folder.mkdir(parents=True)
        (root / "refs" / "main").write_text(COMMIT)
        for name, data in files.items():
            (root / "blobs" / _etag(data)).write_bytes(data)
            (snapshot / name).symlink_to(Path("../../blobs") / _etag(data))
        return snapshot

    return fill
