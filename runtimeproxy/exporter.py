"""Pass the proxy's metrics and health from their unix socket to TCP, for collectors: ``runtimeproxy export``.

Owns the TCP listener with its limits, TLS, and which requests go on to the proxy.
Must not know: what the answers say; any other socket of the proxy.
Invariants: nothing goes to the proxy but GET of three paths, without anything else that the client sent. A connection
serves one request and ends CONNECTION_SECONDS behind its start at the latest, whatever either side does.
"""

import asyncio
import ipaddress
import logging
import os
import re
import signal
import socket
import ssl
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

from runtimeproxy.errors import ConfigError
from runtimeproxy.observe.logs import UNLIMITED
from runtimeproxy.relay.acceptor import Acceptor

log = logging.getLogger(__name__)

PATHS = ("/metrics", "/livez", "/readyz")
CONNECTIONS = 16
"""Most connections at a time; one more is closed at once."""
HEAD_BYTES = 8 << 10
"""Longest request, which is a head alone."""
ANSWER_BYTES = 4 << 20
"""Longest answer of the proxy that is passed on: ten times what the largest table of metrics takes."""
UPSTREAM_SECONDS = 2.0
"""Seconds that the proxy may take for a whole answer."""
CONNECTION_SECONDS = 10.0
"""Seconds from a connection's start to its end: Prometheus waits as long unless told otherwise."""

_ADDRESS = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of mutual TLS: the server's certificate and key, and the authorities of the clients."""

    cert: str
    key: str
    client_ca: str

    @property
    def flags(self) -> dict[str, str]:
        """Return the files by their flags."""
        return {"--tls-cert": self.cert, "--tls-key": self.key, "--client-ca": self.client_ca}


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``127.0.0.1:9654`` or ``[::1]:9654``. Raises ConfigError for every other spelling."""
    found = _ADDRESS.fullmatch(text)
    try:
        host = str(ipaddress.ip_address((found["six"] or found["four"]) if found else ""))
        port = int(found["port"]) if found else 0
    except ValueError:
        host, port = "", 0
    if not found or not host or (":" in host) != bool(found["six"]) or port > _HIGHEST_PORT:
        why = "is not an address with a port: write one like 127.0.0.1:9654 or [::1]:9654, and no name"
        raise ConfigError(f"--listen: {text!r} {why}")
    return host, port


def tls_files(host: str, cert: str | None, key: str | None, client_ca: str | None) -> TlsFiles | None:
    """Return the files of TLS, None if there are none. Raises ConfigError if some are missing, or if all are and the
    host is not loopback."""
    given = {"--tls-cert": cert, "--tls-key": key, "--client-ca": client_ca}
    missing = [flag for flag, path in given.items() if not path]
    if cert and key and client_ca:
        return TlsFiles(cert, key, client_ca)
    if len(missing) < len(given):
        raise ConfigError(f"TLS needs all of {', '.join(given)}: {' and '.join(missing)} is missing")
    if not ipaddress.ip_address(host).is_loopback:
        why = "is not a loopback address, so whoever reaches it could read the metrics"
        raise ConfigError(f"--listen: {host} {why}: give {', '.join(given)}, or listen on 127.0.0.1 or [::1]")
    return None


class Tls:
    """Mutual TLS from files. Renewed files are read before the next connection; until they fit together, those that
    were read before serve. Raises ConfigError at the start if the files cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._stamps()
        self._context = _context(files)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
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
        return [_stamp(path) for path in self._files.flags.values()]


def _stamp(path: str) -> tuple[int, int] | None:
    """Return the inode and the time of the last change of a file's content; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


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
    """A client's connection, which takes HEAD_BYTES and no more; ``ended`` is set at its end."""

    __slots__ = ("_room", "ended")

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

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self.force_close()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


class Exporter:
    """Serves clients with what the proxy answers at ``metrics_endpoint``; use with ``async with``."""

    def __init__(self, metrics_endpoint: str, tls: Tls | None = None) -> None:
        self._endpoint = metrics_endpoint
        self._tls = tls
        self._server = web.Server(self._answer, handler_cancellation=True)
        self.clients: set[asyncio.Task[None]] = set()
        """The connections that are open."""
        self._complaint = ""

    async def __aenter__(self) -> "Exporter":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._endpoint, limit=CONNECTIONS, force_close=True),
            timeout=aiohttp.ClientTimeout(total=UPSTREAM_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *details: object) -> None:
        await asyncio.sleep(0)  # a task that is cancelled before its first step would leave its client open
        for client in self.clients:
            client.cancel()
        if self.clients:
            await asyncio.wait(self.clients)
        await self._session.close()

    def accept(self, client: socket.socket) -> None:
        """Serve a client that was accepted."""
        if len(self.clients) == CONNECTIONS:
            client.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)

    async def _serve(self, client: socket.socket) -> None:
        connection = Connection(self._server)
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, client, ssl=self._tls.context() if self._tls else None
                )
                await connection.ended.wait()
        except OSError as error:  # the client took too long, speaks no TLS, or has no certificate
            log.debug("a client was not served: %s", type(error).__name__)
        finally:
            if connection.transport is not None:
                connection.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path not in PATHS:
            answer = _line(404, f"nothing is here but {', '.join(PATHS)}")
        elif request.method != "GET":
            answer = _line(405, "only GET is allowed")
            answer.headers["Allow"] = "GET"
        else:
            answer = await self._asked(f"{request.path}?verbose" if "verbose" in request.query else request.path)
        answer.force_close()
        return answer

    async def _asked(self, target: str) -> web.Response:
        """Return the proxy's answer; 504 if it takes too long, 502 if there is none that can be passed on."""
        try:
            async with self._session.get(URL(f"http://localhost{target}"), allow_redirects=False) as response:
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > ANSWER_BYTES:
                        return self._complained(502, f"its answer is longer than {ANSWER_BYTES} bytes")
        except TimeoutError:
            return self._complained(504, f"it did not answer within {UPSTREAM_SECONDS:g} s: does it hang?")
        except (aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or "it broke off"
            do = "does the proxy run with --metrics-endpoint, and is this user in the group of --metrics-group?"
            return self._complained(502, f"{why}: {do}")
        if self._complaint:
            log.info("the proxy answers at %s again", self._endpoint, extra=UNLIMITED)
        self._complaint = ""
        kind = response.headers.get("Content-Type", "text/plain")
        return web.Response(status=response.status, body=body, headers={"Content-Type": kind})

    def _complained(self, status: int, why: str) -> web.Response:
        """Return an answer of one line; log it if it is another one than the last time."""
        text = f"the proxy at {self._endpoint}: {why}"
        if text != self._complaint:
            log.warning("%s", text, extra=UNLIMITED)
        self._complaint = text
        return _line(status, text)


def _line(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def run(listen: tuple[str, int], metrics_endpoint: str, tls: Tls | None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ConfigError if it cannot listen."""
    return asyncio.run(_run(listen, metrics_endpoint, tls))


async def _run(listen: tuple[str, int], metrics_endpoint: str, tls: Tls | None) -> int:
    family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
    try:
        listener = socket.create_server(listen, family=family, backlog=CONNECTIONS)
    except OSError as error:
        wrong = f"cannot listen on {listen[0]} port {listen[1]}: {os.strerror(error.errno or 0)}"
        raise ConfigError(f"{wrong}; stop what listens there, or change --listen") from None
    listener.setblocking(False)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    with listener:
        async with Exporter(metrics_endpoint, tls) as exporter:
            acceptor = Acceptor(loop, listener, exporter.accept)
            acceptor.start()
            _tell(listener, metrics_endpoint, tls)
            await ended.wait()
            acceptor.stop()
    return 0


def _tell(listener: socket.socket, metrics_endpoint: str, tls: Tls | None) -> None:
    host, port = listener.getsockname()[:2]
    at = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    log.info("listening on %s for the proxy at %s", at, metrics_endpoint, extra=UNLIMITED)
    if os.geteuid() == 0:
        need = "it needs no right but to open the socket, as the group of --metrics-group may"
        log.warning("running as root: %s; run it as nobody with that group", need, extra=UNLIMITED)
