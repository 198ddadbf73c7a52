"""Serve the proxy's metrics, health and state over HTTP: ``runtimeproxy export``, a client of the control protocol.

Invariant: a connection serves one request and ends CONNECTION_SECONDS after its start, unless it follows events.
"""

import asyncio
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from runtimeproxy.admin import protocol
from runtimeproxy.admin.exposition import CONTENT_TYPE, exposition
from runtimeproxy.admin.health import check_line
from runtimeproxy.admin.protocol import PART_BYTES, SCHEMA_VERSION, Answer, Part, Refused, join, request
from runtimeproxy.errors import ConfigError
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.relay.acceptor import Acceptor
from runtimeproxy.relay.listener import Listener, listen
from runtimeproxy.settings.options import parse_endpoint

log = logging.getLogger(__name__)

CONNECTIONS = 16
"""Most connections at a time; one more is closed immediately."""
FOLLOWERS = 8
HEAD_BYTES = 8 << 10
ANSWER_BYTES = 16 << 20
"""Longest answer of the proxy that is passed on: ten times what the largest one has."""
UPSTREAM_SECONDS = 2.0
"""Seconds that the proxy may take for a whole answer."""
HEALTH_SECONDS = 1.0
"""Seconds that the proxy may take for its checks before its event loop counts as hanging."""
CONNECTION_SECONDS = 10.0
"""Seconds from a connection's start to its end, and that a client that follows may take to read an event: Prometheus
waits as long unless configured otherwise."""
FRESH_SECONDS = 0.25
"""For how long requests share one answer with metrics."""
BAD_GATEWAY, GATEWAY_TIMEOUT = 502, 504
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What the answer of another program, or of a proxy of another version, may raise."""

_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535
UNIX = "unix:"


def _whole_number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else text


def _flag(text: str) -> bool | str:
    return {"": True, "1": True, "true": True, "0": False, "false": False}.get(text, text)


@dataclass(frozen=True, slots=True)
class Page:
    """What is served at a path: the method's answer. ``takes`` converts the query's values into parameters; the daemon
    checks them. Only ``public`` pages are served from the metrics socket."""

    method: str
    takes: Mapping[str, Callable[[str], Any]]
    public: bool = False


PAGES: Mapping[str, Page] = {
    "/metrics": Page("metrics", {}, public=True),
    "/livez": Page("livez", {"verbose": _flag}, public=True),
    "/readyz": Page("readyz", {"verbose": _flag}, public=True),
    "/version": Page("version", {}),
    "/configz": Page("configz", {}),
    "/hooks": Page("hooks", {}),
    "/store": Page("store", {"pod": str, "id": str, "limit": _whole_number, "after": str}),
    "/events": Page(
        "events",
        {"since": _whole_number, "limit": _whole_number, "follow": _flag, "pod": str, "hookServer": str, "kind": str},
    ),
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    cert: str
    key: str
    client_ca: str

    @property
    def flags(self) -> dict[str, str]:
        return {"--tls-cert": self.cert, "--tls-key": self.key, "--client-ca": self.client_ca}


Place = tuple[str, int] | str
"""Where to listen: host and port, or the path of a unix socket."""


def place(text: str) -> Place:
    """Return what ``127.0.0.1:9654``, ``[::1]:9654`` or ``unix:/run/x.sock`` means. Raises ConfigError for every other
    spelling."""
    if text.startswith(UNIX):
        return parse_endpoint(text, "--listen")
    found = _ADDRESS.fullmatch(text)
    try:
        host = str(ipaddress.ip_address((found["six"] or found["four"]) if found else ""))
        port = int(found["port"]) if found else 0
    except ValueError:
        host, port = "", 0
    if not found or not host or (":" in host) != bool(found["six"]) or port > _HIGHEST_PORT:
        why = "is not an address with a port, and names are not looked up"
        raise ConfigError(f"--listen: {text!r} {why}: write one like 127.0.0.1:9654, [::1]:9654 or {UNIX}/run/x.sock")
    return host, port


def tls_files(
    at: Place, cert: str | None, key: str | None, client_ca: str | None, *, everything: bool = False
) -> TlsFiles | None:
    """Return the files of TLS, None if there are none. Raises ConfigError if some are missing, or where TLS is needed:
    at an address that is not loopback, and with ``everything``, as any user of the node reaches a loopback address."""
    given = {"--tls-cert": cert, "--tls-key": key, "--client-ca": client_ca}
    missing = [flag for flag, path in given.items() if not path]
    if isinstance(at, str):
        if len(missing) < len(given):
            raise ConfigError(f"--listen: a unix socket has no TLS: leave out {', '.join(given)}")
        return None
    if cert and key and client_ca:
        return TlsFiles(cert, key, client_ca)
    if len(missing) < len(given):
        raise ConfigError(f"TLS needs all of {', '.join(given)}: {' and '.join(missing)} is missing")
    if everything:
        why = "any user of the node could read the proxy's state there"
        raise ConfigError(f"--listen: {why}: give {', '.join(given)}, or listen on {UNIX}/PATH")
    if not ipaddress.ip_address(at[0]).is_loopback:
        why = "is not a loopback address, so any client that reaches it could read the metrics"
        raise ConfigError(f"--listen: {at[0]} {why}: give {', '.join(given)}, or listen on 127.0.0.1 or [::1]")
    return None


class Tls:
    """Mutual TLS from files. Renewed files are read before the next connection; until they fit together, those that
    were read before serve. Raises ConfigError at the start if the files cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._stamps()
        self._context = _context(files)

    def context(self) -> ssl.SSLContext:
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._context = _context(self._files)
                log.info("the TLS files were read again", extra=UNLIMITED)
            except ConfigError as error:
                log.warning("%s; those that were read before serve until then", error, extra=UNLIMITED)
        return self._context

    def _stamps(self) -> list[tuple[int, int] | None]:
        """Return for each file its inode and the time of its content's last change; None if it does not exist."""
        stamps: list[tuple[int, int] | None] = []
        for path in self._files.flags.values():
            try:
                found = os.stat(path)
                stamps.append((found.st_ino, found.st_mtime_ns))
            except OSError:
                stamps.append(None)
        return stamps


def _context(files: TlsFiles) -> ssl.SSLContext:
    for flag, path in files.flags.items():
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ConfigError(f"{flag}: {path} cannot be read ({error.strerror}): name a PEM file") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.cert, files.key, password="")  # an encrypted key fails; nobody is asked
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or "no certificate and key in PEM form"
        wrong = f"--tls-cert {files.cert} and --tls-key {files.key} cannot be used together ({why})"
        raise ConfigError(f"{wrong}: the key must belong to the certificate and must not be encrypted") from None
    try:
        context.load_verify_locations(files.client_ca)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or "no certificate in PEM form"
        raise ConfigError(f"--client-ca: {files.client_ca} cannot be used ({why}): name a PEM file") from None
    return context


class Connection(web.RequestHandler):
    """A client's connection, which accepts HEAD_BYTES and no more; ``deadline`` ends it, and then ``ended`` is set."""

    __slots__ = ("_room", "deadline", "ended")

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as web.Server's own callers give it
            lingering_time=0,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
        )
        self._room = HEAD_BYTES
        self.ended = asyncio.Event()
        self.deadline = asyncio.timeout(CONNECTION_SECONDS)

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self.force_close()
        else:
            super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = protocol.INTERNAL_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return an answer of one line. aiohttp's own, and its log, contain parts of the request."""
        text = "the request cannot be read"
        if status == protocol.INTERNAL_ERROR:
            text = "an error in the exporter; see its log"
            log.error("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError
        answer = _error(status, text)
        answer.force_close()
        return answer

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


class Exporter:
    """Serves clients with what the proxy answers at ``endpoint``, its metrics socket; with ``everything`` that is its
    admin socket, and all pages are served. Use with ``async with``."""

    def __init__(self, endpoint: str, tls: Tls | None = None, *, everything: bool = False) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._pages = {path: page for path, page in PAGES.items() if everything or page.public}
        self._server = web.Server(self._answer, handler_cancellation=True)
        self._metrics: asyncio.Task[bytes] | None = None
        self._metrics_due = 0.0
        self._followers = 0
        self._complaint = ""
        self.clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Exporter":
        return self

    async def __aexit__(self, *details: object) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step would leave its client open
        for client in self.clients:
            client.cancel()
        if self.clients:
            await asyncio.wait(self.clients)

    def accept(self, client: socket.socket) -> None:
        if len(self.clients) == CONNECTIONS:
            client.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def _serve(self, client: socket.socket) -> None:
        connection = Connection(self._server)
        try:
            async with connection.deadline:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, client, ssl=self._tls.context() if self._tls else None
                )
                await connection.ended.wait()
        except OSError as error:  # the client took too long, speaks no TLS, or has no certificate
            log.debug("a client was not served: %s", type(error).__name__)
        finally:
            if connection.transport is not None:
                connection.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is None:
            answer: web.StreamResponse = _error(protocol.NOT_FOUND, f"there are {', '.join(self._pages)}")
        elif request.method != "GET":
            answer = _error(405, "only GET is allowed", Allow="GET")
        else:
            answer = await self._answer_page(request, page)
        answer.force_close()
        return answer

    async def _answer_page(self, request: web.BaseRequest, page: Page) -> web.StreamResponse:
        """Return the answer to a request of a page; 502 if the proxy gives none, 504 if it takes too long."""
        try:
            params = _params(request, page)
            if page.method in ("livez", "readyz"):
                answer: web.StreamResponse = await self._health(page.method, params.get("verbose", False))
            elif page.method == "metrics":
                answer = web.Response(body=await self._fresh_metrics(), headers={"Content-Type": CONTENT_TYPE})
            elif page.method == "events":
                answer = await self._stream(request, params)
            else:
                answer = _json(200, await self._call(page.method, params))
        except Refused as refused:
            return _error(refused.status, refused.text)
        except TimeoutError:
            return self._complained(GATEWAY_TIMEOUT, f"it did not answer within {UPSTREAM_SECONDS:g} s: does it hang?")
        except OSError as error:
            why = error.strerror or "it closed the connection"
            do = "does the proxy run with this endpoint, and is this user in the group of --metrics-group?"
            return self._complained(BAD_GATEWAY, f"{why}: {do}")
        except UNREADABLE:
            return self._complained(BAD_GATEWAY, "its answer cannot be read: is it a proxy of this version?")
        if self._complaint:
            log.info("the proxy answers at %s again", self._endpoint, extra=UNLIMITED)
        self._complaint = ""
        return answer

    async def _health(self, method: str, verbose: bool | str) -> web.Response:
        if isinstance(verbose, str):
            raise Refused(protocol.BAD_REQUEST, "verbose is not true or false")
        try:
            checks = (await self._call(method, {}, HEALTH_SECONDS))["checks"]
        except TimeoutError:
            reason = f"the proxy did not answer within {HEALTH_SECONDS:g} s: its event loop hangs"
            checks = [{"name": "loop", "state": "failed", "reason": reason}]
        passed = not any(check["state"] == "failed" for check in checks)
        lines = [*map(check_line, checks), f"{method} check {'passed' if passed else 'failed'}\n"]
        return web.Response(
            text="\n".join(lines) if verbose or not passed else "ok", status=200 if passed else protocol.UNAVAILABLE
        )

    async def _fresh_metrics(self) -> bytes:
        """Return the text of metrics, at most FRESH_SECONDS old. Raises as ``_call``."""

        async def read() -> bytes:
            return exposition(await self._call("metrics", {}))

        now = asyncio.get_running_loop().time()
        if self._metrics is None or (self._metrics.done() and now >= self._metrics_due):
            self._metrics = asyncio.create_task(read())
            self._metrics.add_done_callback(lambda task: task.cancelled() or task.exception())  # none may wait for it
            self._metrics_due = now + FRESH_SECONDS
        return await asyncio.shield(self._metrics)

    async def _stream(self, request: web.BaseRequest, params: Mapping[str, Any]) -> web.StreamResponse:
        """Send events as lines of JSON; abort if the client or the proxy leaves in between."""
        follow = params.get("follow") is True
        if follow and self._followers >= FOLLOWERS:
            raise Refused(
                protocol.UNAVAILABLE, f"{FOLLOWERS} clients follow already; try again without follow, or later"
            )
        self._followers += follow
        try:
            async with self._requested("events", params) as lines:
                async with asyncio.timeout(UPSTREAM_SECONDS):
                    first = await anext(lines)
                response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
                response.force_close()
                await response.prepare(request)
                if follow and isinstance(request.protocol, Connection):
                    request.protocol.deadline.reschedule(None)
                try:
                    await _write_events(response, first)
                    async for part in lines:
                        await _write_events(response, part)
                except (OSError, Refused, *UNREADABLE):
                    if request.transport is not None:
                        request.transport.abort()
                return response
        finally:
            self._followers -= follow

    async def _call(self, method: str, params: Mapping[str, Any], seconds: float = UPSTREAM_SECONDS) -> Part:
        """Return the proxy's whole answer. Raises Refused, TimeoutError, OSError, and ValueError for what is none."""
        body: Part = {}
        async with asyncio.timeout(seconds), self._requested(method, params) as lines:
            async for part in lines:
                join(body, part)
        return body

    @asynccontextmanager
    async def _requested(self, method: str, params: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[Part]]:
        reader, writer = await asyncio.open_unix_connection(self._endpoint, limit=PART_BYTES)
        try:
            writer.write(request(method, params))
            yield _parts(reader)
        finally:
            writer.transport.abort()

    def _complained(self, status: int, why: str) -> web.Response:
        """Return an answer of one line; log it if it differs from the last one."""
        text = f"the proxy at {self._endpoint}: {why}"
        if text != self._complaint:
            log.warning("%s", text, extra=UNLIMITED)
        self._complaint = text
        return _error(status, text)


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[Part]:
    answer = Answer()
    left = ANSWER_BYTES
    while not answer.complete:
        line = await reader.readline()
        left -= len(line)
        if left < 0:
            raise ValueError
        if not line.endswith(b"\n"):
            raise ConnectionResetError
        yield answer.take(line)


async def _write_events(response: web.StreamResponse, part: Part) -> None:
    lines = [json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in part.get("events", ())]
    if lines:
        async with asyncio.timeout(CONNECTION_SECONDS):
            await response.write(b"".join(lines))


def _params(request: web.BaseRequest, page: Page) -> dict[str, Any]:
    for name in request.query:
        if name not in page.takes:
            takes = ", ".join(page.takes) or "no parameters"
            raise Refused(protocol.BAD_REQUEST, f"unknown parameter: {request.path} takes {takes}")
        if len(request.query.getall(name)) > 1:
            raise Refused(protocol.BAD_REQUEST, f"{name} is there twice")
    return {name: page.takes[name](text) for name, text in request.query.items()}


def _json(status: int, answer: Mapping[str, Any], **headers: str) -> web.Response:
    body = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error(status: int, text: str, **headers: str) -> web.Response:
    return _json(status, {"schemaVersion": SCHEMA_VERSION, "error": text}, **headers)


def run(at: Place, endpoint: str, tls: Tls | None, *, everything: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ConfigError if it cannot listen."""
    return asyncio.run(_run(at, endpoint, tls, everything))


def _tcp_listener(host: str, port: int) -> Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return Listener(socket.create_server((host, port), family=family, backlog=CONNECTIONS), "")
    except OSError as error:
        wrong = f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"
        raise ConfigError(f"{wrong}; stop what listens there, or change --listen") from None


async def _run(at: Place, endpoint: str, tls: Tls | None, everything: bool) -> int:
    if isinstance(at, str):
        listener, url = listen(at, flag="--listen"), f"{UNIX}{at}"
    else:
        listener = _tcp_listener(*at)
        host, port = listener.socket.getsockname()[:2]
        url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    listener.socket.setblocking(False)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        async with Exporter(endpoint, tls, everything=everything) as exporter:
            acceptor = Acceptor(loop, listener.socket, exporter.accept)
            acceptor.start()
            log.info("listening on %s for the proxy at %s", url, endpoint, extra=UNLIMITED)
            if os.geteuid() == 0 and not everything:
                need = "it needs no right but to open the socket, as the group of --metrics-group may"
                log.warning("running as root: %s; run it as nobody with that group", need, extra=UNLIMITED)
            await ended.wait()
            acceptor.stop()
    finally:
        listener.withdraw()
        listener.close()
    return 0
