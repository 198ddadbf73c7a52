"""A small admin server: canned answers by path over a unix socket, or one of the ways in which a proxy can fail."""

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from runtimeproxy.admin.event_stream import matches
from runtimeproxy.admin.records import is_of_pod

Json = Mapping[str, Any]
Answer = Json | Sequence[Json] | str | tuple[int, Json | str] | Callable[["Handler"], None]
"""An object; events, of which those behind ``since`` are told; a text; one of these with a status other than 200; or a
way to fail."""
Canned = Mapping[str, Answer]
"""Answers by the path of a request."""


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers as ``canned`` says; ``fault`` is tried first. Keeps what was asked."""

    daemon_threads = True

    def __init__(self, path: Path, canned: Canned, fault: "Fault | None" = None) -> None:
        self.canned = canned
        self.fault = fault
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        """Method, path, query and body of each request."""
        self.over = threading.Event()
        super().__init__(str(path), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may leave at any time."""


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, url.path, query, json.loads(body) if body else None))
        if self.server.fault is not None:
            self.server.fault(self)
            return
        answer = self.server.canned.get(url.path, (404, {"schemaVersion": 1, "error": f"there is no {url.path}"}))
        if callable(answer):
            answer(self)
            return
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        if isinstance(content, Mapping):
            selected = _selected(content, query) if url.path == "/store" else content
            self.send(status, "application/json", json.dumps(selected))
        elif isinstance(content, str):
            self.send(status, "text/plain", content)
        else:
            self.send_events(content, query)

    do_POST = do_GET

    def send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_events(self, events: Sequence[Json], query: Mapping[str, str]) -> None:
        """Send the events behind ``since`` in chunks; a follower gets those marked by ``later`` only."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        behind = [e for e in events if e.get("number", e.get("to")) > int(query.get("since", 0))]
        wanted = [e for e in behind if bool(e.get("later")) == ("follow" in query) and matches({**e}, query)]
        for event in wanted[: int(query.get("limit", 1000))]:
            self.chunk(json.dumps({name: value for name, value in event.items() if name != "later"}).encode() + b"\n")
        self.chunk(b"")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _selected(store: Json, query: Mapping[str, str]) -> Json:
    """Return the records that ``pod`` and ``id`` select, one pod and one container a page."""
    pods, containers = store["pods"], store["containers"]
    if "pod" in query:
        pods = [pod for pod in pods if is_of_pod(query["pod"], pod["namespace"], pod["name"], pod["id"])]
        containers = [one for one in containers if one["podId"] in [pod["id"] for pod in pods]]
    pods = [pod for pod in pods if pod["id"].startswith(query.get("id", ""))]
    containers = [one for one in containers if one["id"].startswith(query.get("id", ""))]
    at = int(query.get("after", 0))
    more = str(at + 1) if at + 1 < max(len(pods), len(containers)) else None
    return {**store, "pods": pods[at : at + 1], "containers": containers[at : at + 1], "next": more}


Fault = Callable[[Handler], None]


def hang_before_the_head(handler: Handler) -> None:
    handler.server.over.wait()


def hang_in_the_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    handler.server.over.wait()


def hang_in_the_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    handler.server.over.wait()


def cut_before_the_head(handler: Handler) -> None:
    handler.close_connection = True


def cut_in_the_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    handler.close_connection = True


def speak_no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\x01SSH-2.0\r\n\r\n")
    handler.close_connection = True


def answer_no_json(handler: Handler) -> None:
    handler.send(200, "application/json", "{not json}\n")


@contextmanager
def serving(path: Path, canned: Canned, fault: Fault | None = None) -> Iterator[Server]:
    """Run a server in a thread."""
    with Server(path, canned, fault) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.001,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


@contextmanager
def not_listening(path: Path) -> Iterator[None]:
    """Leave a socket that nobody listens at, as a proxy does that was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    yield


@contextmanager
def not_accepting(path: Path) -> Iterator[socket.socket]:
    """Listen and accept nobody, with a backlog that is full."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        yield listener
