"""Requests of commands to the running proxy, over its admin socket (docs/control-protocol.rst)."""

import errno
import os
import select
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import click

from runtimeproxy.admin.protocol import BAD_REQUEST, PART_BYTES, UNAVAILABLE, Answer, Part, Refused, join, request
from runtimeproxy.cli.shared.configuration import configuration_file
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.cli.shared.output import FAILED
from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import FILE_OPTION, OPTIONS

SECONDS = 2.0
"""The time limit of a command in seconds: of all its requests, and of a stream until its first line."""
_STDOUT = 1
_PAUSE_SECONDS = 0.01
_RECEIVED_BYTES = 1 << 16
_INTERRUPT_MILLISECONDS = 200
"""Longest delay of an interrupt that arrives just before a wait: Python checks for one before and after it."""
_ADMIN_OPTION = next(option for option in OPTIONS if option.field == "admin_endpoint")
_FLAGS = (_ADMIN_OPTION, FILE_OPTION)
_NOT_CONNECTED = {
    errno.ENOENT: "start the proxy, or correct --admin-endpoint: nothing listens at {}",
    errno.ENOTDIR: "start the proxy, or correct --admin-endpoint: nothing listens at {}",
    errno.ECONNREFUSED: "start the proxy, or correct --admin-endpoint: nothing listens at {}",
    errno.EACCES: "run as root: permission denied: {}",
    errno.EPERM: "run as root: permission denied: {}",
}


class NoProxy(RuntimeProxyError):
    """No proxy answers the command; the text begins with the remedy or the fault, and ends with the path."""


class ProxyCommand(Command):
    """A command that calls the running proxy: its function is given an ``AdminClient`` as ``proxy``."""

    def __init__(self, name: str | None, *, params: list[click.Parameter] | None = None, **attributes: Any) -> None:
        super().__init__(name, params=[*(params or ()), *option_flags(_FLAGS)], **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        flags = flags_given({name: ctx.params.pop(name) for name in (o.name.replace("-", "_") for o in _FLAGS)})
        try:
            proxy = ctx.params["proxy"] = AdminClient(socket_path(flags, os.environ))
        except ConfigError as error:
            raise click.ClickException(str(error)) from None
        proxy.flags = "".join(f" --{name}={shlex.quote(value)}" for name, value in flags.items())
        return super().invoke(ctx)


def socket_path(flags: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the path of the admin socket that a proxy with this configuration has; None if it has none. With the flag
    ``--admin-endpoint`` nothing else is read. Raises ConfigError."""
    flag = _ADMIN_OPTION.flag
    if _ADMIN_OPTION.name in flags:
        return _ADMIN_OPTION.read(flags[_ADMIN_OPTION.name], flag) or None
    try:
        return config.load(flags, environ, *configuration_file(flags, environ)).admin_endpoint or None
    except ConfigError as error:
        raise ConfigError(f"{error} (with {flag}={_ADMIN_OPTION.metavar} no configuration is read)") from None


class AdminClient:
    """The running proxy, for one command: a connection for each request, one time limit for all of them. A request
    raises NoProxy, click.ClickException for a wrong parameter, RuntimeProxyError for any other error of the proxy."""

    flags = ""
    """The flags, each after a space, by which another command finds the same proxy."""

    def __init__(self, path: str | None, seconds: float | None = None) -> None:
        self._path = path
        self._seconds = SECONDS if seconds is None else seconds
        self._due = time.monotonic() + self._seconds

    def with_new_deadline(self) -> "AdminClient":
        """Return a client of the same proxy, with a new time limit."""
        return AdminClient(self._path, self._seconds)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the whole answer to a request; parameters that are None are left out."""
        answer, body = Answer(), Part()
        with self._requested(method, params) as lines:
            while not answer.complete:
                join(body, answer.parse(lines.next(self._due)))
        return body

    def follow(self, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the events to come until the proxy ends, without a time limit after the first line."""
        answer = Answer()
        with self._requested("events", {**params, "follow": True}) as lines:
            yield from answer.parse(lines.next(self._due)).get("events", ())
            with suppress(ConnectionError):
                while not answer.complete:
                    yield from answer.parse(lines.next(None)).get("events", ())

    @contextmanager
    def _requested(self, method: str, params: Mapping[str, Any]) -> Iterator["_Lines"]:
        """Send a request; yield the lines of its answer."""
        if self._path is None:
            raise NoProxy(f"the proxy has no admin endpoint: {_ADMIN_OPTION.flag} is none")
        lines = _Lines()
        try:
            try:
                lines.connect(self._path, self._due)
            except TimeoutError:
                raise NoProxy(f"the proxy accepts no connection {self._waited()}: {self._path}") from None
            except OSError as error:
                words = _NOT_CONNECTED.get(error.errno or 0, f"{error.strerror}: {{}}")
                raise NoProxy(words.format(self._path)) from None
            lines.send(request(method, params), self._due)
            yield lines
        except Refused as refused:
            errors: Mapping[int, type[Exception]] = {BAD_REQUEST: click.ClickException, UNAVAILABLE: NoProxy}
            raise errors.get(refused.status, RuntimeProxyError)(refused.text) from None
        except TimeoutError:
            hangs = "hangs within its answer" if lines.began else "accepted the connection and does not answer"
            raise NoProxy(f"the proxy {hangs} {self._waited()}: {self._path}") from None
        except ConnectionError:
            stage = "within its answer" if lines.began else "before its answer"
            raise NoProxy(f"the proxy closed the connection {stage}: {self._path}") from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise NoProxy(f"the answer cannot be read: is it a proxy of this version? ({self._path})") from None
        finally:
            lines.sock.close()

    def _waited(self) -> str:
        return f"(waited {self._seconds:g} s)"


class _Lines:
    """A connection that is read by lines. No step ends later than ``due`` on the monotonic clock; without that limit it
    waits as long as standard output has a reader. All steps raise OSError."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.began = False
        self._received = bytearray()

    def connect(self, path: str, due: float) -> None:
        while True:
            self._limit(due)
            try:
                return self.sock.connect(path)
            except BlockingIOError:  # the backlog is full: that can only be tried again
                time.sleep(_PAUSE_SECONDS)

    def send(self, octets: bytes, due: float) -> None:
        self._limit(due)
        with suppress(BrokenPipeError, ConnectionResetError):  # the proxy may have refused already, and read no more
            self.sock.sendall(octets)

    def next(self, due: float | None) -> bytes:
        """Return the next line. Raises ValueError for a line that is too long."""
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > PART_BYTES:
                raise ValueError
            if due is None:
                self._wait_with_reader()
            self._limit(due)
            octets = self.sock.recv(_RECEIVED_BYTES)
            if not octets:
                raise ConnectionResetError
            self._received += octets
            self.began = True
        line = bytes(self._received[: end + 1])
        del self._received[: end + 1]
        return line

    def _wait_with_reader(self) -> None:
        """Wait for bytes, and end the command if the reader of its output ends, as ``head`` does."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(_STDOUT, 0)  # errors and hang-ups are always reported
        while not (ready := poll.poll(_INTERRUPT_MILLISECONDS)):
            pass
        if any(file == _STDOUT for file, _ in ready):
            raise click.exceptions.Exit(FAILED)

    def _limit(self, due: float | None) -> None:
        remaining = None if due is None else due - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        self.sock.settimeout(remaining)
