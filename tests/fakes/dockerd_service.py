"""The fake dockerd's handling of a connection: one request after the other, from its head to the end of its reply.

Requests of one connection are answered in order; a client's end cancels only what dockerd cancels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tests.fakes.dockerd_checks import Refused, bad
from tests.fakes.dockerd_received import Header, Injection, Received, parse
from tests.fakes.dockerd_routes import NOT_FOUND, UNCLEAN, Match, match
from tests.fakes.dockerd_structs import go_json, version_number
from tests.fakes.dockerd_wire import JSON, Cut, Exchange, Reader

if TYPE_CHECKING:
    from tests.fakes.dockerd import FakeDockerd


BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"
"""The answer to something that is not a head of HTTP/1."""


class Service:
    def __init__(self, dockerd: FakeDockerd) -> None:
        self._dockerd = dockerd
        server = ("Server", f"Docker/{dockerd.engine.version} (linux)")
        self._versioned: tuple[Header, ...] = (("Api-Version", dockerd.api), ("Ostype", "linux"), server)
        self._common: tuple[Header, ...] = (*self._versioned, ("Docker-Experimental", "false"))

    async def serve(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> None:
        """Serve a connection until its end."""
        try:
            while await self._serve_request(reader, writer, connection):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, Cut):
            pass  # the client is gone, or a cut was injected
        finally:
            writer.close()

    async def _serve_request(self, reader: Reader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Serve one request; return whether the connection can carry another."""
        try:
            head = parse(await reader.readuntil(b"\r\n\r\n"))
        except ValueError:
            writer.write(BAD_REQUEST)
            return False
        found = match(head)
        received = Received(head, found.route.key, connection, time.monotonic(), self._dockerd.keep_body_bytes)
        self._dockerd.record(received)
        reader.current = received
        try:
            return await self._exchange(Exchange(head, received, reader, writer), found)
        finally:
            reader.current = None

    async def _exchange(self, exchange: Exchange, found: Match) -> bool:
        injection = self._take_injection(found.route.key)
        if injection is not None:
            exchange.cut_after_bytes = injection.cut_after_bytes
        work = self._answer(exchange, found, injection)
        await (_until_client_ends(exchange, work) if found.route.cancels else work)
        return exchange.keep_alive

    def _take_injection(self, route: str) -> Injection | None:
        injection = self._dockerd.injections.get(route)
        if injection is None or injection.times == 0:
            return None
        if injection.times is not None:
            injection.times -= 1
        return injection

    async def _answer(self, exchange: Exchange, found: Match, injection: Injection | None) -> None:
        try:
            if found.route is UNCLEAN:
                return await exchange.reply(HTTPStatus.MOVED_PERMANENTLY, b"", ("Location", found.location))
            if found.route is not NOT_FOUND:
                exchange.common = self._versioned
                self._check_version(found.version)
                exchange.api = found.version or self._dockerd.api
                exchange.common = self._common
            if injection is not None:
                await injection.wait()
                if injection.raw is not None:
                    return await exchange.write(injection.raw)
                if injection.status:
                    raise Refused(HTTPStatus(injection.status), injection.message)
            return await found.route.handler(self._dockerd, exchange, found.reference)
        except Refused as refused:
            await exchange.reply(refused.status, go_json({"message": refused.message}, html=False), JSON)

    def _check_version(self, version: str) -> None:
        least, most = self._dockerd.minimum, self._dockerd.api
        if version and version_number(version) < version_number(least):
            raise bad(f"client version {version} is too old. Minimum supported API version is {least}")
        if version and version_number(version) > version_number(most):
            raise bad(f"client version {version} is too new. Maximum supported API version is {most}")


async def _until_client_ends(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a call until its client sends no more, as net/http's context does."""
    task = asyncio.create_task(work)
    end = asyncio.create_task(_client_end(exchange))
    try:
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return
        exchange.received.cancelled = True
        exchange.keep_alive = False
    finally:
        end.cancel()
        task.cancel()
        await asyncio.gather(end, task, return_exceptions=True)
    await exchange.finish()


async def _client_end(exchange: Exchange) -> None:
    await exchange.body_over.wait()  # before it, an end is a read error
    await exchange.reader.ended.wait()
