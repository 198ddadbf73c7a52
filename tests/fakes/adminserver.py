"""An admin endpoint that answers what a test says, in place of the proxy's own; each question in a thread."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = str | Mapping[str, Any] | tuple[int, str]
"""A text, a JSON object, or a status with a text."""
Query = Mapping[str, list[str]]


class AdminServer:
    """What is answered by path, and what was asked. A path of ``hangs`` is not answered before the end."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.events: list[Mapping[str, Any]] = []
        self.asked: list[str] = []
        self.hangs: set[str] = set()
        self.over = threading.Event()

    def answer(self, path: str, query: Query) -> tuple[int, str]:
        """Return status and body."""
        self.asked.append(path)
        if path in self.hangs:
            self.over.wait()
        if path == "/events":
            return 200, self._events(int(query["since"][0]), int(query["limit"][0]))
        found = self.answers.get(path, (404, '{"error": "no such path"}'))
        if isinstance(found, Mapping):
            return 200, json.dumps({"schemaVersion": 1, **found})
        return (200, found) if isinstance(found, str) else found

    def _events(self, since: int, limit: int) -> str:
        later = [event for event in self.events if event.get("number", event.get("to", 0)) > since]
        return "".join(json.dumps(event) + "\n" for event in later[:limit])


@contextmanager
def admin_server(path: str, answers: Mapping[str, Answer]) -> Iterator[AdminServer]:
    """Answer at a socket."""
    server = AdminServer(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            target = urlsplit(self.path)
            status, body = server.answer(target.path, parse_qs(target.query))
            with suppress(BrokenPipeError):  # who asked waited no longer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

        def log_message(self, *given: Any) -> None:
            """Log nothing."""

        def address_string(self) -> str:
            return ""

    with ThreadingUnixStreamServer(path, Handler) as listener:
        listener.daemon_threads = True
        serving = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server
        finally:
            server.over.set()
            listener.shutdown()
            serving.join()
