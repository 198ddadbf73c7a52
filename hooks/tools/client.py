"""Ask one hook server as the proxy does: by the same client and messages, every call with a deadline.

Invariant: a call ends in an answer or a CallFailed by its deadline, whatever the hook server does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runtimeproxy.errors import ConfigError, RuntimeProxyError, WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import HookAnswer
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.plugins import registration
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.settings.config import parse_endpoint
from runtimeproxy.wire import grpc

DEFAULT_TIMEOUT_SECONDS = 2.0
"""The proxy's default (--hook-timeout)."""

_STATUS_NAMES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""The names of gRPC's status codes, in order from 0."""

_WORDS = {
    Kind.UNREACHABLE: "not reachable: {text}",
    Kind.DEADLINE: "no answer in time",
    Kind.BROKEN: "broken answer: {text}",
}
_STATUS_WORDS = {
    grpc.PERMISSION_DENIED: "refused (PERMISSION_DENIED): {text}",
    grpc.UNIMPLEMENTED: "this hook point is not served (UNIMPLEMENTED)",
}


class HookCallFailed(RuntimeProxyError):
    """A hook server did not answer properly; the text names its socket, what was asked and the reason."""

    def __init__(self, endpoint: str, asked: str, failure: CallFailed) -> None:
        hint = "; is it running, and is this its socket?" if failure.kind is Kind.UNREACHABLE else ""
        super().__init__(f"{endpoint}: {asked}: {words(failure)}{hint}")


@dataclass(frozen=True, slots=True)
class Server:
    """A hook server; ``points`` are those of its registration file, None if no file was named."""

    endpoint: str
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    points: frozenset[str] | None = None


def find(text: str) -> Server:
    """Return the hook server that a socket's path or a registration file (``*.json``) names. Raises ConfigError for an
    invalid endpoint, and for a file that cannot be read or is not a registration."""
    if not text.endswith(".json"):
        return Server(parse_endpoint(text, "SERVER"))
    try:
        content = Path(text).read_bytes()
    except OSError as error:
        raise ConfigError(f"{text}: the registration file cannot be read: {error.strerror}") from None
    entry = registration.parse(text, content)
    return Server(entry.endpoint, entry.timeout_seconds or DEFAULT_TIMEOUT_SECONDS, entry.points)


@asynccontextmanager
async def connection(endpoint: str) -> AsyncIterator[UnaryClient]:
    """Yield a client of its own, whose connection is closed at the end."""
    client = UnaryClient(endpoint)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: UnaryClient, point: HookPoint, body: bytes, timeout_seconds: float) -> HookAnswer:
    """Send an encoded request to a hook point and return the answer. Raises CallFailed."""
    answered = await client.call(codec.PATHS[point.name], body, timeout_seconds)
    try:
        return codec.decode(point, answered)
    except WireError as error:
        raise CallFailed(grpc.INTERNAL, str(error), Kind.BROKEN) from None


def words(failure: CallFailed) -> str:
    """Return in one line why a call failed, safe to print; the hook server's own text is part of it."""
    # Unprintable characters are replaced: a hook server must not control the terminal.
    text = "".join(letter if letter.isprintable() else " " for letter in failure.text).strip()
    if failure.kind is Kind.UNREACHABLE:
        text = text.rpartition(": ")[2]  # the client puts the socket's path before it
    if failure.kind is not Kind.STATUS:
        return _WORDS[failure.kind].format(text=text)
    by_status = _STATUS_WORDS.get(failure.code, f"{_STATUS_NAMES[failure.code]}: {{text}}")
    return by_status.replace("{text}", text or "without a text")
