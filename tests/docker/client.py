"""A raw HTTP/1.1 client on a unix socket: a request is sent as it was given, half of one too."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A final answer; ``raw`` is all of its bytes, framing included."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        assert self.headers["content-type"] == "application/json"
        return str(self.json["message"])


def request(method: str, target: str, body: bytes = b"", *lines: str) -> bytes:
    """Return a request as a Go client writes it: with Content-Length wherever a body may be."""
    head = [f"{method} {target} HTTP/1.1", "Host: docker", *["Content-Type: application/json"] * bool(body)]
    if (body or method == "POST") and not any(line.lower().startswith("transfer-encoding") for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, *lines, "", ""]).encode() + body


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, path: str) -> Self:
        return cls(*await asyncio.open_unix_connection(path))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def half_close(self) -> None:
        self.writer.write_eof()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()

    async def fetch(self, method: str, target: str, body: bytes = b"", *lines: str) -> Answer:
        self.send(request(method, target, body, *lines))
        return await self.answer(method)

    async def answer(self, method: str = "POST") -> Answer:
        """Read the next final answer. Raises TimeoutError, IncompleteReadError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            raw = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = raw.decode().split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            status, body, part = int(first.split(" ")[1]), b"", b""
            if method == "HEAD" or status in (204, 304):
                return Answer(status, headers, b"", raw)
            if "transfer-encoding" not in headers:
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
                return Answer(status, headers, body, raw + body)
            while part != b"\r\n":
                line = await self.reader.readline()
                part = await self.reader.readexactly(int(line, 16) + 2)
                raw, body = raw + line + part, body + part[:-2]
            return Answer(status, headers, body, raw)

    async def ended(self) -> bytes:
        """Read until EOF. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()
