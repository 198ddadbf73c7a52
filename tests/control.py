"""Requests of the control protocol, synchronous, for tests of whole programs (docs/control-protocol.rst)."""

import json
import os
import socket
from typing import Any

from runtimeproxy.admin.protocol import Answer, Part, join, request
from tests.patience import SECONDS


def call(path: str | os.PathLike[str], method: str, **params: Any) -> dict[str, Any]:
    """Return the complete answer to a request. Raises Refused for an error of the proxy, and OSError."""
    answer, body = Answer(), Part()
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as received:
        client.settimeout(SECONDS)
        client.connect(os.fspath(path))
        client.sendall(request(method, params))
        while not answer.complete:
            octets = received.readline()
            if not octets:
                raise ConnectionResetError("the proxy closed the connection")
            join(body, answer.parse(octets))
    return body


def lines(path: str | os.PathLike[str], *raw_lines: bytes) -> list[dict[str, Any]]:
    """Send lines as they are and shut down writing; return all lines that the server sends until it closes."""
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as received:
        client.settimeout(SECONDS)
        client.connect(os.fspath(path))
        client.sendall(b"".join(raw_lines))
        client.shutdown(socket.SHUT_WR)
        return [json.loads(octets) for octets in received]
