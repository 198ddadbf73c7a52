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
END, A_PART = line(id=1, end={"schemaVersion": SCHEMA_VERSION}), line(id=1, part={})
HALF_A_LINE = b'{"id":1,"part":{'


class Server(socketserver.ThreadingUnixStreamServer):
    """Answers with ``canned``, or with ``fault`` if set. ``requests`` has the method and parameters of each request."""

    daemon_threads = True

    def __init__(self, path: Path, canned: Canned, fault: "Fault | None" = None) -> None:
        self.canned, self.fault = canned, fault
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
            answer = self.server.fault or self.server.canned.get(method, Refused(404, f"there is no {method}"))
            if callable(answer):
                answer(self)
                return
            if isinstance(answer, Refused):
                self.error(answer)
                continue
            if isinstance(answer, Mapping):
                self.part(**(_selected(answer, self.params) if method == "store" else answer))
            else:
                self.events(answer)
                if self.params.get("follow"):
                    return
            self.wfile.write(END)

    def part(self, **part: Any) -> None:
        self.wfile.write(line(id=1, part=part))

    def error(self, refused: Refused) -> None:
        self.wfile.write(line(id=1, error={"status": refused.status, "text": refused.text}))

    def events(self, events: Sequence[Json]) -> None:
        """Send the events after ``since``, each in a part. A follower gets those marked by ``later`` only; then the
        connection ends as that of a proxy that is killed."""
        following = [e for e in events if e.get("number", e.get("to")) > self.params.get("since", 0)]
        selected = [e for e in following if e["kind"] == "gap" or queries._matches(e, self.params)]
        sent = [e for e in selected if bool(e.get("later")) == self.params.get("follow", False)]
        self.part(events=[])
        for event in sent[: self.params.get("limit", queries.EVENTS)]:
            self.part(events=[{name: value for name, value in event.items() if name != "later"}])


def _selected(store: Json, params: Json) -> Json:
    """Return the records that ``pod`` and ``id`` select, one pod and one container a page."""
    pods, containers = store["pods"], store["containers"]
    if "pod" in params:
        pods = [pod for pod in pods if is_of_pod(params["pod"], pod["namespace"], pod["name"], pod["id"])]
        containers = [container for container in containers if container["podId"] in [pod["id"] for pod in pods]]
    at, by_id = int(params.get("after", 0)), params.get("id", "")
    pods, containers = ([each for each in rows if each["id"].startswith(by_id)] for rows in (pods, containers))
    more = str(at + 1) if at + 1 < max(len(pods), len(containers)) else None
    return {**store, "pods": pods[at : at + 1], "containers": containers[at : at + 1], "next": more}


Fault = Callable[[Handler], None]


def sending(*octets: bytes, hang: bool = False) -> Fault:
    """Return a way to fail: send octets, then hang, or close the connection."""

    def fault(handler: Handler) -> None:
        handler.wfile.write(b"".join(octets))
        if hang:
            handler.server.over.wait()

    return fault


HANG = sending(hang=True)
SPEAK_HTTP = sending(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


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
def not_accepting(path: Path) -> Iterator[None]:
    """Listen with a full backlog and accept no client; after the end the socket has no listener."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        yield
