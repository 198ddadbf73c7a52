"""Answers of the daemon, and the marks in tables for the proxy's own answers and for EOF."""

from tests.docker.messages import UPGRADE, answer, head

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OK = answer(200, "Api-Version: 1.41", body=b"OK")
CREATED = answer(201, "Content-Type: application/json", body=b'{"Id":"1","Warnings":[]}')
NO_CONTENT = answer(204, body=None)
NOT_FOUND = answer(404, "Content-Type: application/json", body=b'{"message":"No such container: x"}\n')
SWITCHING = head("HTTP/1.1 101 UPGRADED", "Content-Type: application/vnd.docker.raw-stream", *UPGRADE)
HIJACKED = answer(200, "Content-Type: application/vnd.docker.raw-stream", body=None)
"""The answer to an old-style hijack: neither Content-Length nor chunks."""
EOF = b"<EOF>"


def ours(status: int, closes: bool = False) -> bytes:
    """Return the mark in a table for an answer of the proxy's own."""
    return b"<%d, close>" % status if closes else b"<%d>" % status
