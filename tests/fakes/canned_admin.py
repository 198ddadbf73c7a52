"""A small admin server: canned answers by method over a unix socket, or one of the ways in which a proxy can fail."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import Any

from runtimeproxy.admin import queries
from runtimeproxy.admin.protocol import SCHEMA_VERSION, Refused, line
from runtimeproxy.admin.records import is_of_pod

Json = Mapping[str, Any]
Answer = Json | Sequence[Json] | Refused | Callable[["Handler"], None]
"""An object, events, an error, or a way to fail."""
Canned = Mapping[str, Answer]


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers with ``canned``; ``fault`` is tried first. ``requests`` has the method and parameters of each."""

    daemon_threads = True

    def __init__(self, path: Path, canned: Canned, fault: "Fault | None" = None) -> None:
        self.canned = canned
        self.fault = fault
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.over = threading.Event()
        super().__init__(str(path), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients may leave at any time."""


class Handler(socketserver.StreamRequestHandler):
    """One connection of a client; ``params`` are those of its last request."""

    server: Server
    params: dict[str, Any]

    def handle(self) -> None:
        for octets in self.rfile:
            message = loads(octets)
            method, self.params = message["method"], message["params"]
            self.server.requests.append((method, self.params))
            if self.server.fault is not None:
                self.server.fault(self)
                return
            answer = self.server.canned.get(method, Refused(404, f"there is no {method}"))
            if callable(answer):
                answer(self)
                return
            if isinstance(answer, Refused):
                self.error(answer)
            elif isinstance(answer, Mapping):
                self.part(**(_selected(answer, self.params) if method == "store" else answer))
                self.end()
            else:
                self.events(answer)
                if self.params.get("follow"):
                    return

    def part(self, **part: Any) -> None:
        self.wfile.write(line(id=1, part=part))

    def end(self) -> None:
        self.wfile.write(line(id=1, end={"schemaVersion": SCHEMA_VERSION}))

    def error(self, refused: Refused) -> None:
        self.wfile.write(line(id=1, error={"status": refused.status, "text": refused.text}))

    def events(self, events: Sequence[Json]) -> None:
        """Send the events after ``since``, each in a part. A follower gets those marked by ``later`` only; then the
        connection ends as that of a proxy that is killed."""
        follow = self.params.get("follow", False)
        following = [e for e in events if e.get("number", e.get("to")) > self.params.get("since", 0)]
        selected = [e for e in following if e["kind"] == "gap" or queries._matches(e, self.params)]
        found = [e for e in selected if bool(e.get("later")) == follow]
        self.part(events=[])
        for event in found[: self.params.get("limit", queries.EVENTS)]:
            self.part(events=[{name: value for name, value in event.items() if name != "later"}])
        if not follow:
            self.end()


def _selected(store: Json, params: Json) -> Json:
    """Return the records that ``pod`` and ``id`` select, one pod and one container a page."""
    pods, containers = store["pods"], store["containers"]
    if "pod" in params:
        pods = [pod for pod in pods if is_of_pod(params["pod"], pod["namespace"], pod["name"], pod["id"])]
        containers = [one for one in containers if one["podId"] in [pod["id"] for pod in pods]]
    pods = [pod for pod in pods if pod["id"].startswith(params.get("id", ""))]
    containers = [one for one in containers if one["id"].startswith(params.get("id", ""))]
    at = int(params.get("after", 0))
    more = str(at + 1) if at + 1 < max(len(pods), len(containers)) else None
    return {**store, "pods": pods[at : at + 1], "containers": containers[at : at + 1], "next": more}


Fault = Callable[[Handler], None]


def hang_before_the_answer(handler: Handler) -> None:
    handler.server.over.wait()


def hang_in_a_line(handler: Handler) -> None:
    handler.wfile.write(b'{"id":1,"part":{')
    handler.server.over.wait()


def hang_after_a_part(handler: Handler) -> None:
    handler.part()
    handler.server.over.wait()


def cut_before_the_answer(handler: Handler) -> None:
    """Return, which closes the connection."""


def cut_in_a_line(handler: Handler) -> None:
    handler.wfile.write(b'{"id":1,"part":{')


def cut_after_a_part(handler: Handler) -> None:
    handler.part()


def speak_http(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def answer_no_json(handler: Handler) -> None:
    handler.wfile.write(b"{not json}\n")


@contextmanager
def serving(path: Path, canned: Canned, fault: Fault | None = None) -> Iterator[Server]:
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
    """Leave a socket without a listener, as a proxy does that was killed."""
    with socket.socket(socket.AF_UNIX) as unserved:
        unserved.bind(str(path))
    yield


@contextmanager
def not_accepting(path: Path) -> Iterator[socket.socket]:
    """Listen with a full backlog and accept no client."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        yield listener
