"""HTTP/1.1 messages as bytes: builders, requests and replies, and marks for the proxy's own answers and EOF."""

CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"
EXPECT = "Expect: 100-continue"
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ID = "f25e2652ca87d84b3474297e8ad9e595d4b9380bd870e2b152fcf2b0650a958f"
EOF = b"<EOF>"


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode()


def request(method: str, target: str, *fields: str, body: bytes | None = None) -> bytes:
    """Return a request; ``body`` is sent with Content-Length."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    return head(f"{method} {target} HTTP/1.1", "Host: docker", *length, *fields) + (body or b"")


def answer(status: int, *fields: str, body: bytes | None = b"") -> bytes:
    """Return an answer; ``body`` is sent with Content-Length, None means without body and length."""
    length = () if body is None else (f"Content-Length: {len(body)}",)
    return head(f"HTTP/1.1 {status} Words", *length, *fields) + (body or b"")


def chunks(*parts: bytes, trailers: tuple[str, ...] = ()) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + head(*trailers)


def error(data: bytes) -> tuple[int, bool, bytes]:
    """Parse an error by the proxy into status, whether it closes, and body; check its length and type."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in fields
    assert "Content-Type: application/json" in fields
    return int(status.split()[1]), CLOSE in fields, body


def proxy_answer(status: int, closes: bool = False) -> bytes:
    """Return the mark in a table for an answer of the proxy's own."""
    return b"<%d, close>" % status if closes else b"<%d>" % status


PING = request("GET", "/_ping")
INFO = request("GET", "/v1.41/info")
CREATE = request("POST", "/v1.41/containers/create?name=box", "Content-Type: application/json", body=b'{"Image":"i"}')
START = request("POST", f"/v1.41/containers/{ID}/start")
STOP = request("POST", f"/v1.41/containers/{ID}/stop?t=10", body=b"")
ATTACH = request("POST", f"/v1.41/containers/{ID}/attach?stream=1", *UPGRADE)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
EARLY = head("HTTP/1.1 103 Early Hints", "Link: x")
OK = answer(200, "Api-Version: 1.41", body=b"OK")
CREATED = answer(201, "Content-Type: application/json", body=b'{"Id":"1","Warnings":[]}')
NO_CONTENT = answer(204, body=None)
NOT_FOUND = answer(404, "Content-Type: application/json", body=b'{"message":"No such container: x"}\n')
SWITCHING = head("HTTP/1.1 101 UPGRADED", "Content-Type: application/vnd.docker.raw-stream", *UPGRADE)
HIJACKED = answer(200, "Content-Type: application/vnd.docker.raw-stream", body=None)
"""The answer to an old-style hijack: neither Content-Length nor chunks."""
