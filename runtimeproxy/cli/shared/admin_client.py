"""The questions of commands to the running proxy, over its admin socket.

Owns finding the socket, the time limit of a command, and the words for a proxy that does not answer.
Must not know: what an answer means.
Invariant: within the time limit there is an answer, or NoProxy says what hangs, whatever listens at the socket.
"""

import errno
import json
import os
import select
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from runtimeproxy.cli.shared.configuration import configuration_file
from runtimeproxy.cli.shared.exit_codes import FAILED
from runtimeproxy.cli.shared.flags import Command, flags_given, option_flags
from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.settings import config
from runtimeproxy.settings.options import FILE_OPTION, OPTIONS

if TYPE_CHECKING:
    from http.client import HTTPResponse

SECONDS = 2.0
"""The time limit of a command in seconds: of all its questions, and of a stream until its first byte."""
SCHEMA_VERSION = 1
"""The form of the proxy's JSON objects that the commands read."""

Query = Mapping[str, str | int | None]
"""The query of a question; members that are None are left out."""

_STDOUT = 1
_PAUSE_SECONDS = 0.01
_INTERRUPT_MILLISECONDS = 200
"""How late an interrupt is seen that came just before a wait: Python looks for one before and after it."""
_BAD_REQUEST, _UNWELL = 400, 503
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
    """No proxy answers the command; the text has what to do or what hangs first, and ends with the path."""


class ProxyCommand(Command):
    """A command that asks the running proxy: its function is given an ``AdminClient`` as ``proxy``."""

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
    """Return the path of the admin socket that a proxy with this configuration has; None if it has none.

    With the flag ``--admin-endpoint`` nothing else is read. Raises ConfigError for what is wrong in a configuration.
    """
    flag = _ADMIN_OPTION.flag
    if _ADMIN_OPTION.name in flags:
        return _ADMIN_OPTION.read(flags[_ADMIN_OPTION.name], flag) or None
    try:
        return config.load(flags, environ, *configuration_file(flags, environ)).admin_endpoint or None
    except ConfigError as error:
        raise ConfigError(f"{error} (with {flag}={_ADMIN_OPTION.metavar} no configuration is read)") from None


class AdminClient:
    """The running proxy as one command asks it: a connection for each question, one time limit for all of them.

    Each question raises NoProxy, click.ClickException if the proxy calls it wrong, and RuntimeProxyError for any other
    error that the proxy tells.
    """

    flags = ""
    """The flags, each after a space, by which another command finds the same proxy."""

    def __init__(self, path: str | None, seconds: float | None = None) -> None:
        self._path = path
        self._seconds = SECONDS if seconds is None else seconds
        self._due = time.monotonic() + self._seconds

    def again(self) -> "AdminClient":
        """Return a client of the same proxy, with a time limit of its own."""
        return AdminClient(self._path, self._seconds)

    def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        """Return what a JSON endpoint tells."""
        with self._asked("GET", _target(path, query or {})) as answer:
            return _object(_told(answer).read())

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Have the proxy change something, and return what it tells; members that are None are left out."""
        given = {name: value for name, value in body.items() if value is not None}
        with self._asked("POST", path, json.dumps(given)) as answer:
            return _object(_told(answer).read())

    def text(self, path: str) -> str:
        """Return the text of an endpoint as it came."""
        with self._asked("GET", path) as answer:
            return _told(answer).read().decode(errors="replace")

    def health(self, path: str) -> str:
        """Return the lines of a health endpoint, whether it says well or not."""
        with self._asked("GET", f"{path}?verbose") as answer:
            return (answer if answer.status == _UNWELL else _told(answer)).read().decode(errors="replace")

    def lines(self, path: str, query: Query, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the objects of an NDJSON endpoint; with ``follow`` as they come, without a time limit."""
        with self._asked("GET", _target(path, query), endless=follow) as answer:
            while (line := _told(answer).readline()).endswith(b"\n"):
                if not isinstance(found := json.loads(line), dict):
                    raise ValueError
                yield found
            if line or answer.length:
                raise ConnectionError  # cut

    @contextmanager
    def _asked(
        self, method: str, target: str, body: str | None = None, *, endless: bool = False
    ) -> Iterator["HTTPResponse"]:
        """Yield the answer whose head has come; reading its body is bounded too, unless it is endless."""
        from http import client as http  # slow

        stage = "before its answer"
        try:
            with self._connected() as connected:
                connection = http.HTTPConnection("localhost")
                connection.sock = connected
                headers = {"Connection": "close"} | ({} if body is None else {"Content-Type": "application/json"})
                with suppress(BrokenPipeError, ConnectionResetError):  # it may refuse by the head, and read no body
                    connection.request(method, target, body, headers)
                answer = connection.getresponse()
                stage = "within its answer"
                connected.due = None if endless else self._due
                with answer:
                    yield answer
        except TimeoutError:
            hangs = "took the connection and does not answer" if stage == "before its answer" else f"hangs {stage}"
            raise NoProxy(f"the proxy {hangs} {self._waited()}: {self._path}") from None
        except (ConnectionError, http.IncompleteRead):
            raise NoProxy(f"the proxy broke off {stage}: {self._path}") from None
        except (http.HTTPException, ValueError, RecursionError):
            raise NoProxy(f"the answer cannot be read: is it a proxy of this version? ({self._path})") from None

    def _connected(self) -> "_Socket":
        """Return a connection to the proxy. Raises NoProxy."""
        if self._path is None:
            raise NoProxy(f"the proxy has no admin endpoint: {_ADMIN_OPTION.flag} is none")
        connected = _Socket(socket.AF_UNIX)
        connected.due = self._due
        try:
            connected.connect(self._path)
        except TimeoutError:
            connected.close()
            raise NoProxy(f"the proxy takes no connection {self._waited()}: {self._path}") from None
        except OSError as error:
            connected.close()
            words = _NOT_CONNECTED.get(error.errno or 0, f"{error.strerror}: {{}}")
            raise NoProxy(words.format(self._path)) from None
        return connected

    def _waited(self) -> str:
        return f"(waited {self._seconds:g} s)"


class _Socket(socket.socket):
    """A socket of which no step ends later than ``due`` on the monotonic clock. Without that limit it waits as long as
    somebody reads standard output."""

    due: float | None = None

    def connect(self, address: Any) -> None:
        while True:
            self._limit()
            try:
                return super().connect(address)
            except BlockingIOError:  # the backlog is full: that can only be tried again
                time.sleep(_PAUSE_SECONDS)

    def sendall(self, *given: Any) -> None:
        self._limit()
        super().sendall(*given)

    def recv_into(self, *given: Any) -> int:
        self._limit()
        if self.due is None:
            self._wait_with_reader()
        return super().recv_into(*given)

    def _wait_with_reader(self) -> None:
        """Wait for bytes, and end the command if what reads its output goes, as ``head`` does."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        poll.register(_STDOUT, 0)  # errors and hang-ups are told unasked
        while not (ready := poll.poll(_INTERRUPT_MILLISECONDS)):
            pass
        if any(file == _STDOUT for file, _ in ready):
            raise click.exceptions.Exit(FAILED)

    def _limit(self) -> None:
        left = None if self.due is None else self.due - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.settimeout(left)


_ERRORS: Mapping[int, type[Exception]] = {_BAD_REQUEST: click.ClickException, _UNWELL: NoProxy}
"""What an error's status means, if not that the proxy will not do it."""


def _target(path: str, query: Query) -> str:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{path}?{given}" if given else path


def _told(answer: "HTTPResponse") -> "HTTPResponse":
    """Return an answer that is no error. Raises click.ClickException, NoProxy or RuntimeProxyError with the proxy's
    words."""
    if answer.status < _BAD_REQUEST:
        return answer
    body = answer.read()
    try:
        words = str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):  # not the proxy's own words
        words = f"the proxy answers {answer.status} {answer.reason}"
    raise _ERRORS.get(answer.status, RuntimeProxyError)(words)


def _object(body: bytes) -> dict[str, Any]:
    """Return an object of the known form. Raises ValueError for any other body."""
    found = json.loads(body)
    if not isinstance(found, dict) or found.get("schemaVersion") != SCHEMA_VERSION:
        raise ValueError
    return found
