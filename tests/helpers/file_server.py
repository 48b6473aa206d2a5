"""A file server on the loopback interface that can be told to misbehave."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any


class FileServer(http.server.ThreadingHTTPServer):
    """Serves `files`; `break_after` cuts that many transfers short, `broken_at` bytes in."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """Status, headers and body of what is answered as it stands; a header without a
        value is left out."""
        self.ranges = True
        self.break_next = 0
        self.broken_at = 0
        self.failures = 0  # so many requests get a 503 first
        self.requests: list[tuple[str, str | None]] = []  # path and Range of each

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FileServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        if self.server.failures:
            self.server.failures -= 1
            return self.send_error(503)
        if answer := self.server.answers.get(self.path.lstrip("/")):
            status, headers, body = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            return None
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            return self.send_error(404)
        start = 0
        if wanted and self.server.ranges:
            found = re.fullmatch(r"bytes=(\d+)-", wanted)
            assert found, wanted
            start = int(found[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.break_next:
            self.server.break_next -= 1
            body = body[: self.server.broken_at]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: the tests read `requests`."""


@contextmanager
def serving() -> Iterator[FileServer]:
    """A server in a thread of its own, stopped at the end."""
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve_entry(patch: Any, server: FileServer, module: Any, name: str, **changes: Any) -> None:
    """Let a registered data set of a module be downloaded from the server."""
    entry = getattr(module, name)
    remotes = tuple(
        replace(remote, addresses=(server.url(""),), **changes) if remote.addresses else remote
        for remote in entry.remotes
    )
    patch.setattr(module, name, replace(entry, remotes=remotes))
