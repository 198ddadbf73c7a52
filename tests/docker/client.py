"""A raw HTTP/1.1 client on a unix socket: a request is sent as it was given, half of one too."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

HOST = "Host: docker"
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
    head = [f"{method} {target} HTTP/1.1", HOST]
    if body:
        head.append("Content-Type: application/json")
    if (body or method == "POST") and not any(line.lower().startswith("transfer-encoding") for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, *lines, "", ""]).encode() + body


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

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
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            status = int(first.split(" ")[1])
            raw, body = await self._body(headers) if method != "HEAD" and status not in (204, 304) else (b"", b"")
            return Answer(status, headers, body, head + raw)

    async def _body(self, headers: dict[str, str]) -> tuple[bytes, bytes]:
        if "transfer-encoding" not in headers:
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
            return body, body
        raw, body = b"", b""
        while True:
            line = await self.reader.readline()
            part = await self.reader.readexactly(int(line, 16) + 2)
            raw, body = raw + line + part, body + part[:-2]
            if part == b"\r\n":
                return raw, body

    async def ended(self) -> bytes:
        """Read until EOF. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()
