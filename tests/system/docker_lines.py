"""The proxy before a fake dockerd, for streams: requests as raw bytes, and streams of lines that a test says.

A proxy that ends has closed every connection.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docker.client import request
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.dockerd_client import Raw, until
from tests.fakes.dockerd_programs import frame
from tests.system.docker_streams import API, open_files
from tests.system.proxy import ProxyProcess, wait_until

OWN_CONNECTIONS = 4
"""The most that the proxy may have open toward the daemon for itself."""


@contextmanager
def serving(folder: Path, runtime: str = "") -> Iterator[ProxyProcess]:
    """Serve before the daemon that has the socket ``runtime``, else the folder's own, now or later."""
    endpoint = runtime or str(folder / "runtime.sock")
    with ProxyProcess(
        folder, backend_runtime_mode="Docker", remote_runtime_service_endpoint=endpoint, log_level="info"
    ) as proxy:
        before = open_files(proxy.pid)
        yield proxy
        wait_until(lambda: open_files(proxy.pid) <= before + OWN_CONNECTIONS, "every connection is closed")


def run_container(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": BUSYBOX_IMAGE, "Cmd": ["cat"]})
    dockerd.state.start("c1")


async def asked(path: str, line: str, *fields: str, rest: bytes = b"") -> Raw:
    """Send a request's head, with what is behind it; its answer is not read."""
    method, target = line.split(" ")
    raw = await Raw.connect(path)
    raw.send("\r\n".join([f"{method} {API}{target} HTTP/1.1", "Host: docker", *fields, "", ""]).encode() + rest)
    return raw


@dataclass(eq=False)
class Lines:
    """A stream of lines that a test lets the daemon say, and its client, which holds back at ``limit`` bytes."""

    path: str
    fake: FakeDockerd
    limit: int = 1 << 20

    async def begin(self, line: str) -> Raw:
        """Ask for the stream, and read the head of the answer."""
        raw = Raw(*await asyncio.open_unix_connection(self.path, limit=self.limit))
        method, target = line.split(" ")
        raw.send(request(method, target))
        assert b" 200 OK\r\n" in await raw.head()
        return raw

    async def open(self) -> Raw:
        return await self.begin(f"GET {API}/containers/c1/logs?stdout=1&stderr=1&follow=1")

    def say(self, line: bytes) -> bytes:
        """Let the daemon say a line; return what is in the chunk that it sends."""
        self.fake.say("c1", line, stream=2)
        return frame(2, line)


class Events(Lines):
    async def open(self) -> Raw:
        watchers = self.fake.watchers
        raw = await self.begin(f'GET {API}/events?filters={{"type":["network"]}}')
        await until(lambda: self.fake.watchers > watchers)
        return raw

    def say(self, line: bytes) -> bytes:
        self.fake.state.events.emit("network", line.decode().strip(), "n1", {})
        return b'"Action":"%b"' % line.strip()


class Pull(Lines):
    target = f"POST {API}/images/create?fromImage=web&tag=1"
    route = "POST /images/create"

    async def open(self) -> Raw:
        self.feed = self.fake.feed(self.route)
        return await self.begin(self.target)

    def say(self, line: bytes) -> bytes:
        self.feed.say(line)
        return line


class Build(Pull):
    target = f"POST {API}/build"
    route = "POST /build"
