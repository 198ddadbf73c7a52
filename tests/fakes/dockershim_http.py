"""HTTP as the Go client of dockershim and cri-dockerd sends it: the same header lines in the same order.

Every failed call raises DockerError with the daemon's status and message.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
from collections.abc import Generator
from typing import Any, BinaryIO, NamedTuple

from tests.fakes.dockerd_client import UnixHttpConnection
from tests.fakes.dockerd_structs import go_json

SHORT_CALL_SECONDS = 119.0
HIJACKED = (("Connection", "Upgrade"), ("Content-Type", "application/json"), ("Upgrade", "tcp"))


class DockerError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Output(NamedTuple):
    """What a container or an exec wrote."""

    stdout: bytes
    stderr: bytes


class DockerHttp:
    """Sends requests to a socket; ``host`` is the Host header's value. To be closed at the end."""

    def __init__(self, socket_path: str, host: str, timeout_seconds: float = SHORT_CALL_SECONDS) -> None:
        self._path = socket_path
        self._host = host
        self._timeout_seconds = timeout_seconds
        self._kept: UnixHttpConnection | None = None

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def call(self, method: str, target: str, body: Any = None, **headers: str) -> Any:
        """Call; return the reply's JSON, None if it has no body. Underscores in names of headers stand for dashes.

        Raises DockerError, and OSError or HTTPException if the connection fails.
        """
        response = self.open(method, target, body, **headers)
        content = response.read()
        return json.loads(content) if content else None

    def open(self, method: str, target: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Call; return the reply, to be read to its end before the next call. Raises as ``call`` does."""
        more = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if body is not None:
            more.append(("Content-Type", "application/json"))
        try:
            return _checked(self._send(self._connection(), method, target, body, more))
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def frames(self, target: str) -> Generator[tuple[int, bytes]]:
        """GET on a connection of its own; yield the frames of the reply's body as they come, without a timeout."""
        connection = UnixHttpConnection(self._path, timeout=None)
        try:
            yield from frames(_checked(self._send(connection, "GET", target, None, [])))
        finally:
            connection.close()

    def hijack(self, target: str, body: Any = None) -> Hijacked:
        """Ask for an upgrade on a connection of its own. Raises DockerError for anything but 101."""
        connection = UnixHttpConnection(self._path, timeout=None)
        try:
            response = self._send(connection, "POST", target, body, HIJACKED)
            if response.status != http.client.SWITCHING_PROTOCOLS:
                _checked(response)
                raise DockerError(response.status, "unable to upgrade to tcp")
        except BaseException:
            connection.close()
            raise
        return Hijacked(connection, response)

    def headers(self, method: str, target: str) -> http.client.HTTPMessage:
        """Call; return the headers of the reply, whatever its status."""
        response = self._send(self._connection(), method, target, None, [])
        response.read()
        return response.headers

    def _connection(self) -> UnixHttpConnection:
        """Return the connection that is kept alive, a new one if the other side closed it."""
        if self._kept is not None and self._kept.sock is not None and select.select([self._kept.sock], [], [], 0)[0]:
            self._kept.close()
        if self._kept is None or self._kept.sock is None:
            self._kept = UnixHttpConnection(self._path, timeout=self._timeout_seconds)
        return self._kept

    def _send(
        self, connection: UnixHttpConnection, method: str, target: str, body: Any, headers: Any
    ) -> http.client.HTTPResponse:
        content = b"" if body is None else go_json(body)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", self._host)
        connection.putheader("User-Agent", "Go-http-client/1.1")
        if method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(len(content)))
        for name, value in sorted(headers):
            connection.putheader(name, value)
        connection.endheaders(content or None)
        return connection.getresponse()


def _checked(response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.status < http.client.BAD_REQUEST:
        return response
    content = response.read()
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace").strip()
    raise DockerError(response.status, message)


class Hijacked:
    """A hijacked connection: bytes both ways, each way with an end of its own."""

    def __init__(self, connection: UnixHttpConnection, response: http.client.HTTPResponse) -> None:
        assert connection.sock is not None
        self.socket: socket.socket = connection.sock
        self._connection = connection
        # Bytes that came with the head are in the response's buffer already.
        self.stream: BinaryIO = response.fp

    def close_write(self) -> None:
        """Send no more."""
        self.socket.shutdown(socket.SHUT_WR)

    def output(self) -> Output:
        """Read multiplexed output to its end, then close."""
        outputs = {1: bytearray(), 2: bytearray()}
        try:
            for stream, data in frames(self.stream):
                outputs[stream] += data
        finally:
            self.close()
        return Output(bytes(outputs[1]), bytes(outputs[2]))

    def close(self) -> None:
        self._connection.close()  # and with it the response and its stream


def frames(stream: Any) -> Generator[tuple[int, bytes]]:
    """Yield the frames of a multiplexed stream: 1 for stdout or 2 for stderr, and bytes."""
    while header := stream.read(8):
        number, length = struct.unpack(">BxxxL", header)
        yield number, stream.read(length)
