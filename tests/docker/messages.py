"""Builders of HTTP/1.1 messages as bytes, and the fields that tests put into them."""

CHUNKED = "Transfer-Encoding: chunked"
CLOSE = "Connection: close"
EXPECT = "Expect: 100-continue"
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ID = "f25e2652ca87d84b3474297e8ad9e595d4b9380bd870e2b152fcf2b0650a958f"


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


def chunks(*pieces: bytes, trailers: tuple[str, ...] = ()) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + head(*trailers)


def error(data: bytes) -> tuple[int, bool, bytes]:
    """Parse an error by the proxy into status, whether it closes, and body; check its length and type."""
    top, _, body = data.partition(b"\r\n\r\n")
    status, *fields = top.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in fields
    assert "Content-Type: application/json" in fields
    return int(status.split()[1]), CLOSE in fields, body
