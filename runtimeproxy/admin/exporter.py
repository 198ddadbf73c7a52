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
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from aiohttp import web

from runtimeproxy.admin import protocol
from runtimeproxy.admin.exposition import CONTENT_TYPE, exposition
from runtimeproxy.admin.health import FAILED, check_line, verdict
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
"""Longest answer of the proxy that is forwarded: ten times the size of the largest one."""
UPSTREAM_SECONDS = 2.0
"""Seconds that the proxy may take for a whole answer."""
HEALTH_SECONDS = 1.0
"""Seconds that the proxy may take for its checks before its event loop counts as hanging."""
CONNECTION_SECONDS = 10.0
"""Time limit of a connection, and of a following client's read of one event. It is Prometheus' default scrape
timeout."""
BAD_GATEWAY, GATEWAY_TIMEOUT = 502, 504
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that an answer of another program, or of another version of the proxy, may raise."""

UNIX = "unix:"
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535

PAGES: Mapping[str, tuple[str, ...]] = {
    "/metrics": (),
    "/livez": ("verbose",),
    "/readyz": ("verbose",),
    "/version": (),
    "/configz": (),
    "/hooks": (),
    "/store": ("pod", "id", "limit", "after"),
    "/events": ("since", "limit", "follow", "pod", "hookServer", "kind"),
}
"""The served paths with their parameters: each returns the answer to the method of its name."""
PUBLIC = ("/metrics", "/livez", "/readyz")
"""The paths that are served from the metrics socket."""


def _integer(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else text


def _flag(text: str) -> bool | str:
    return {"": True, "1": True, "true": True, "0": False, "false": False}.get(text, text)


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("since", "limit"), _integer),
    **dict.fromkeys(("verbose", "follow"), _flag),
}
"""Converters of parameters' texts, by name. The daemon checks the values."""


TLS_FLAGS = ("--tls-cert", "--tls-key", "--client-ca")


class TlsFiles(NamedTuple):
    """Paths, in the order of TLS_FLAGS."""

    cert: str
    key: str
    client_ca: str


Address = tuple[str, int] | str
"""An address to listen on: host and port, or the path of a unix socket."""


def parse_address(text: str) -> Address:
    """Parse an address like ``127.0.0.1:9654``, ``[::1]:9654`` or ``unix:/run/x.sock``. Raises ConfigError for any
    other form."""
    if text.startswith(UNIX):
        return parse_endpoint(text, "--listen")
    match = _ADDRESS.fullmatch(text)
    with suppress(ValueError):
        if match and int(match["port"]) <= _HIGHEST_PORT:
            host = ipaddress.IPv6Address(match["six"]) if match["six"] else ipaddress.IPv4Address(match["four"])
            return str(host), int(match["port"])
    why = "is not an address with a port, and names are not looked up"
    raise ConfigError(f"--listen: {text!r} {why}: write one like 127.0.0.1:9654, [::1]:9654 or {UNIX}/run/x.sock")


def tls_files(
    address: Address, cert: str | None, key: str | None, client_ca: str | None, *, everything: bool = False
) -> TlsFiles | None:
    """Return the TLS files, None if there are none. Raises ConfigError if some are missing, or if TLS is
    required: off loopback, and with ``everything`` on loopback too, which any user of the node reaches."""
    flags = ", ".join(TLS_FLAGS)
    missing = [flag for flag, path in zip(TLS_FLAGS, (cert, key, client_ca), strict=True) if not path]
    if isinstance(address, str):
        if len(missing) < len(TLS_FLAGS):
            raise ConfigError(f"--listen: a unix socket has no TLS: leave out {flags}")
        return None
    if cert and key and client_ca:
        return TlsFiles(cert, key, client_ca)
    if len(missing) < len(TLS_FLAGS):
        raise ConfigError(f"TLS needs all of {flags}: {' and '.join(missing)} is missing")
    if everything:
        why = "any user of the node could read the proxy's state there"
        raise ConfigError(f"--listen: {why}: give {flags}, or listen on {UNIX}/PATH")
    if not ipaddress.ip_address(address[0]).is_loopback:
        why = "is not a loopback address, so any client that reaches it could read the metrics"
        raise ConfigError(f"--listen: {address[0]} {why}: give {flags}, or listen on 127.0.0.1 or [::1]")
    return None


class Tls:
    """Mutual TLS from files. Changed files are read again before the next connection. While they do not match, the
    previous ones stay in use. Raises ConfigError if the initial files cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps = [*map(_stamp, files)]
        self._context = _context(files)

    def context(self) -> ssl.SSLContext:
        stamps = [*map(_stamp, self._files)]
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = _context(self._files)
                log.info("the TLS files were read again", extra=UNLIMITED)
            except ConfigError as error:
                log.warning("%s; the previous files stay in use", error, extra=UNLIMITED)
        return self._context


def _stamp(path: str) -> tuple[int, int] | None:
    """Return a file's inode and modification time; None if it does not exist."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _context(files: TlsFiles) -> ssl.SSLContext:
    for flag, path in zip(TLS_FLAGS, files, strict=True):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ConfigError(f"{flag}: {path} cannot be read ({error.strerror}): name a PEM file") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.cert, files.key, password="")  # an encrypted key fails without a prompt
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
    """A client's connection, which accepts at most HEAD_BYTES. ``deadline`` closes it; its end sets ``ended``."""

    __slots__ = ("_remaining_bytes", "deadline", "ended")

    def __init__(self, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # as web.Server's own callers give it
            lingering_time=0,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
        )
        self._remaining_bytes = HEAD_BYTES
        self.ended = asyncio.Event()
        self.deadline = asyncio.timeout(CONNECTION_SECONDS)

    def data_received(self, data: bytes) -> None:
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            self.force_close()
        else:
            super().data_received(data)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return an error of one line. aiohttp's own error and its log contain parts of the request."""
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
    """Serves the proxy's answers over HTTP. ``endpoint`` is its metrics socket; with ``everything``, which serves all
    pages, its admin socket. Use with ``async with``."""

    def __init__(self, endpoint: str, tls: Tls | None = None, *, everything: bool = False) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._pages = tuple(PAGES) if everything else PUBLIC
        self._server = web.Server(self._answer, handler_cancellation=True)
        self._followers = 0
        self._last_error = ""
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
        if request.path not in self._pages:
            answer: web.StreamResponse = _error(protocol.NOT_FOUND, f"there are {', '.join(self._pages)}")
        elif request.method != "GET":
            answer = _error(405, "only GET is allowed", Allow="GET")
        else:
            answer = await self._answer_page(request, request.path[1:])
        answer.force_close()
        return answer

    async def _answer_page(self, request: web.BaseRequest, method: str) -> web.StreamResponse:
        """Return the response for a page: 502 if the proxy does not answer, 504 if it takes too long."""
        try:
            params = _params(request)
            if method in ("livez", "readyz"):
                answer: web.StreamResponse = await self._health(method, params.get("verbose", False))
            elif method == "metrics":
                text = exposition(await self._call(method, params))
                answer = web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
            elif method == "events":
                answer = await self._stream(request, params)
            else:
                answer = _json(200, await self._call(method, params))
        except Refused as refused:
            return _error(refused.status, refused.text)
        except TimeoutError:
            return self._proxy_error(GATEWAY_TIMEOUT, f"it did not answer within {UPSTREAM_SECONDS:g} s: does it hang?")
        except OSError as error:
            why = error.strerror or "it closed the connection"
            do = "does the proxy run with this endpoint, and is this user in the group of --metrics-group?"
            return self._proxy_error(BAD_GATEWAY, f"{why}: {do}")
        except UNREADABLE:
            return self._proxy_error(BAD_GATEWAY, "its answer cannot be read: is it a proxy of this version?")
        if self._last_error:
            log.info("the proxy answers at %s again", self._endpoint, extra=UNLIMITED)
        self._last_error = ""
        return answer

    async def _health(self, method: str, verbose: bool | str) -> web.Response:
        if isinstance(verbose, str):
            raise Refused(protocol.BAD_REQUEST, "verbose is not true or false")
        try:
            checks = (await self._call(method, {}, HEALTH_SECONDS))["checks"]
        except TimeoutError:
            checks = [verdict("loop", f"the proxy did not answer within {HEALTH_SECONDS:g} s: its event loop hangs")]
        passed = not any(check["state"] == FAILED for check in checks)
        lines = [*map(check_line, checks), f"{method} check {'passed' if passed else 'failed'}\n"]
        text = "\n".join(lines) if verbose or not passed else "ok"
        return web.Response(text=text, status=200 if passed else protocol.UNAVAILABLE)

    async def _stream(self, request: web.BaseRequest, params: Mapping[str, Any]) -> web.StreamResponse:
        """Send events as lines of JSON. Abort the response if the client or the proxy disconnects."""
        follow = params.get("follow") is True
        if follow and self._followers >= FOLLOWERS:
            raise Refused(
                protocol.UNAVAILABLE, f"{FOLLOWERS} clients follow already; try again without follow, or later"
            )
        self._followers += follow
        try:
            async with aclosing(self._parts("events", params)) as parts:
                async with asyncio.timeout(UPSTREAM_SECONDS):
                    first = await anext(parts)
                response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
                response.force_close()
                await response.prepare(request)
                if follow and isinstance(request.protocol, Connection):
                    request.protocol.deadline.reschedule(None)
                try:
                    await _write_events(response, first)
                    async for part in parts:
                        await _write_events(response, part)
                except (OSError, Refused, *UNREADABLE):
                    if request.transport is not None:
                        request.transport.abort()
                return response
        finally:
            self._followers -= follow

    async def _call(self, method: str, params: Mapping[str, Any], seconds: float = UPSTREAM_SECONDS) -> Part:
        """Return the proxy's whole answer. Raises as ``_parts``, and TimeoutError."""
        body: Part = {}
        async with asyncio.timeout(seconds), aclosing(self._parts(method, params)) as parts:
            async for part in parts:
                join(body, part)
        return body

    async def _parts(self, method: str, params: Mapping[str, Any]) -> AsyncGenerator[Part, None]:
        """Yield the parts of the proxy's answer. Raises Refused, OSError, and UNREADABLE for an invalid answer."""
        reader, writer = await asyncio.open_unix_connection(self._endpoint, limit=PART_BYTES)
        try:
            writer.write(request(method, params))
            answer, remaining_bytes = Answer(), ANSWER_BYTES
            while not answer.complete:
                line = await reader.readline()
                remaining_bytes -= len(line)
                if remaining_bytes < 0:
                    raise ValueError
                if not line.endswith(b"\n"):
                    raise ConnectionResetError
                yield answer.parse(line)
        finally:
            writer.transport.abort()

    def _proxy_error(self, status: int, why: str) -> web.Response:
        """Return an error of one line; log it if it differs from the last one."""
        text = f"the proxy at {self._endpoint}: {why}"
        if text != self._last_error:
            log.warning("%s", text, extra=UNLIMITED)
        self._last_error = text
        return _error(status, text)


async def _write_events(response: web.StreamResponse, part: Part) -> None:
    lines = [json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in part.get("events", ())]
    if lines:
        async with asyncio.timeout(CONNECTION_SECONDS):
            await response.write(b"".join(lines))


def _params(request: web.BaseRequest) -> dict[str, Any]:
    allowed, params = PAGES[request.path], {}
    for name, text in request.query.items():
        if name not in allowed:
            shown = ", ".join(allowed) or "no parameters"
            raise Refused(protocol.BAD_REQUEST, f"unknown parameter: {request.path} takes {shown}")
        if name in params:
            raise Refused(protocol.BAD_REQUEST, f"{name} is given twice")
        params[name] = _CONVERTERS.get(name, str)(text)
    return params


def _json(status: int, answer: Mapping[str, Any], **headers: str) -> web.Response:
    body = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error(status: int, text: str, **headers: str) -> web.Response:
    return _json(status, {"schemaVersion": SCHEMA_VERSION, "error": text}, **headers)


def _tcp_listener(host: str, port: int) -> Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return Listener(socket.create_server((host, port), family=family, backlog=CONNECTIONS), "")
    except OSError as error:
        wrong = f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"
        raise ConfigError(f"{wrong}; stop what listens there, or change --listen") from None


async def _run(address: Address, endpoint: str, tls: Tls | None, everything: bool) -> None:
    if isinstance(address, str):
        listener, url = listen(address, flag="--listen"), f"{UNIX}{address}"
    else:
        listener = _tcp_listener(*address)
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


def run(address: Address, endpoint: str, tls: Tls | None, *, everything: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ConfigError if it cannot listen."""
    asyncio.run(_run(address, endpoint, tls, everything))
    return 0
