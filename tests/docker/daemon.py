"""A fake dockerd whose replies are bytes that a test gives."""

from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_wire import Injection


def reply(body: bytes = b"{}", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} Words\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Daemon(FakeDockerd):
    def script(self, path: str, raw: bytes) -> None:
        self.inject(f"GET {path}", Injection(raw=raw))
