"""Call one hook server as the proxy does: once, to show the changes of its answer, or many times, to measure.

Invariants: a call ends in an answer or a CallFailed by its deadline. The output for any answer is YAML. A measured call
that failed counts as a failure and in no percentile.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml

from runtimeproxy.errors import ConfigError, RuntimeProxyError, WireError
from runtimeproxy.hookapi import codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import Adjustment, HookAnswer, HookRequest, named
from runtimeproxy.model.hookpoints import HookPoint, Stage
from runtimeproxy.plugins import registration
from runtimeproxy.relay.rpc.connection import CallFailed, Kind, UnaryClient
from runtimeproxy.settings.config import parse_endpoint
from runtimeproxy.wire import grpc
from runtimeproxy_hooks.tools import request

DEFAULT_TIMEOUT_SECONDS = 2.0
"""The proxy's default (--hook-timeout)."""
WARM_UP_CALLS = 100
APPLIED, WITHOUT_EFFECT, DROPPED, BAD = "applied", "without-effect", "dropped", "bad"

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
_PERCENTS = (50, 90, 99)
_PARTS = ("labels", "annotations", "envs", "cgroup_parent", "resources")
_ESCAPES: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\0": "\\0"}
_LONGEST_KEY = 1024
"""Longest key, in characters, that is written before its colon; YAML needs "?" for a longer one."""
_PLAIN_KEY = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")

Tree = Mapping[str, Any]
"""Nested maps whose leaves are texts and numbers."""


class HookCallFailed(RuntimeProxyError):
    """A hook server did not answer properly; the text names its socket, the called method and the reason."""

    def __init__(self, endpoint: str, called: str, failure: CallFailed) -> None:
        hint = "; is it running, and is this its socket?" if failure.kind is Kind.UNREACHABLE else ""
        super().__init__(f"{endpoint}: {called}: {words(failure)}{hint}")


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
    """Yield a new client, and close its connection at the end."""
    client = UnaryClient(endpoint)
    try:
        yield client
    finally:
        await client.close()


async def call_hook(client: UnaryClient, hook_point: HookPoint, body: bytes, timeout_seconds: float) -> HookAnswer:
    """Send an encoded request to a hook point and return the answer. Raises CallFailed."""
    answered = await client.call(codec.PATHS[hook_point.name], body, timeout_seconds)
    try:
        return codec.decode(hook_point, answered)
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


# -- one call ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call: ``text`` to show, and the rules that the answer breaks."""

    text: str
    faults: tuple[str, ...]


def call(server: Server, hook_point: HookPoint, given: HookRequest, timeout_seconds: float) -> Called:
    """Call a hook server at a hook point. Raises ConfigError if the request cannot be sent there, HookCallFailed if the
    server refuses or fails."""
    body = request.encoded(hook_point, given)

    async def timed() -> tuple[HookAnswer, float]:
        async with connection(server.endpoint) as client:
            began = time.perf_counter()
            answer = await call_hook(client, hook_point, body, timeout_seconds)
            return answer, time.perf_counter() - began

    try:
        answer, seconds = uvloop.run(timed())
    except CallFailed as failure:
        raise HookCallFailed(server.endpoint, hook_point.name, failure) from None
    answered = f"{hook_point.name} at {server.endpoint} answered in {seconds * 1000:.1f} ms"
    heads = [answered, *_remarks(server, hook_point, given)]
    sent = request.at_hook_point(hook_point, given)
    _, faults = _validated(hook_point, sent, merge.difference(sent, answer))
    return Called("\n".join([*(f"# {head}" for head in heads), *answer_lines(hook_point, sent, answer)]), faults)


def _remarks(server: Server, hook_point: HookPoint, given: HookRequest) -> Iterator[str]:
    if server.points is not None and hook_point.name not in server.points:
        yield f"the proxy would not call: the registration file does not name {hook_point.name}"
    if lost := request.unsent(hook_point, given):
        yield f"not sent at this hook point: {', '.join(lost)}"
    if hook_point.stage is Stage.POST:
        yield "the proxy ignores what is answered at this hook point"


def answer_lines(hook_point: HookPoint, sent: HookRequest, answer: HookAnswer) -> Iterator[str]:
    """Yield YAML lines that show the changes of an answer."""
    change = merge.difference(sent, answer)
    good, faults = _validated(hook_point, sent, change)
    effective = merge.applicable(hook_point, good)
    echo = merge.echo(sent)
    before = {part: getattr(echo, part) for part in _PARTS} | {"resources": named(echo.resources)}
    sections = {
        APPLIED: _changes(effective),
        DROPPED: _without(_changes(change), _changes(good)),
        WITHOUT_EFFECT: _without(_changes(good), _changes(effective)),
    }
    for name, changes in sections.items():
        if changes:
            yield f"{name}:"
            yield from _lines(changes, before, 1)
        elif name == APPLIED:
            yield f"{name}: {{}}"
    if faults:
        yield f"{BAD}:"
        yield from (f"  - {_scalar(fault)}" for fault in faults)


def _validated(hook_point: HookPoint, sent: HookRequest, change: Adjustment) -> tuple[Adjustment, tuple[str, ...]]:
    """Return the valid part of a change, and every rule that it breaks; a Post point has no rules."""
    if hook_point.stage is Stage.POST:
        return change, ()
    good, broken = merge.validated(change, sent)
    return good, tuple(map(str, broken))


def _without(changes: Tree, removed: Tree) -> dict[str, Any]:
    remaining: dict[str, Any] = {}
    for key, value in changes.items():
        if not isinstance(value, Mapping):
            remaining |= {} if key in removed else {key: value}
        elif inner := _without(value, removed.get(key, {})):
            remaining[key] = inner
    return remaining


def _changes(change: Adjustment) -> Tree:
    return {part: value for part in _PARTS if (value := getattr(change, part)) not in (None, {})}


def _lines(changes: Tree, before: Tree, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, value in changes.items():
        written, old = _key(key), before.get(key)
        head = f"{indent}{written}:" if len(written) <= _LONGEST_KEY else f"{indent}? {written}\n{indent}:"
        if isinstance(value, Mapping):
            yield head
            yield from _lines(value, old if isinstance(old, Mapping) else {}, depth + 1)
        else:
            yield f"{head} {_scalar(value)}" + ("" if old in (None, "") else f"  # was {_scalar(old)}")


def _key(key: str) -> str:
    # Only a key that YAML reads as a text is written without quotes: "on" and "null" are not.
    return key if _PLAIN_KEY.fullmatch(key) and yaml.safe_load(key) == key else _scalar(key)


def _scalar(value: object) -> str:
    """Return a number as it is, and a text in quotes on one line, without control characters for the terminal."""
    if not isinstance(value, str):
        return str(value)
    escaped = (_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f'"{"".join(escaped)}"'


# -- many calls --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Figures:
    """The seconds of each successful call, those of all calls together, and the number of each failure."""

    seconds: list[float] = field(default_factory=list)
    elapsed_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def lines(self) -> Iterator[str]:
        ordered = sorted(self.seconds)
        for percent in _PERCENTS if ordered else ():
            yield f"p{percent}       {percentile(ordered, percent) * 1000:10.3f} ms"
        if ordered:
            yield f"longest   {ordered[-1] * 1000:10.3f} ms"
        yield f"calls/s   {len(ordered) / self.elapsed_seconds:10.0f}"
        yield f"failures  {self.failures.total():10}"
        yield from (f"  {count} x {text}" for text, count in self.failures.most_common())


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the percentile of ordered values by the nearest-rank method."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def bench(
    server: Server, hook_point: HookPoint, body: bytes, *, calls: int, concurrency: int, timeout_seconds: float
) -> Figures:
    """Make ``calls`` calls, ``concurrency`` of them at a time on one connection as the proxy does, after a warm-up.
    Raises HookCallFailed if the very first call fails."""

    async def run() -> Figures:
        async with connection(server.endpoint) as client:

            async def call_once() -> None:
                await call_hook(client, hook_point, body, timeout_seconds)

            try:
                await call_once()
            except CallFailed as failure:
                raise HookCallFailed(server.endpoint, hook_point.name, failure) from None
            await _many(call_once, min(calls, WARM_UP_CALLS), concurrency)
            return await _many(call_once, calls, concurrency)

    return uvloop.run(run())


async def _many(call_once: Callable[[], Awaitable[None]], count: int, concurrency: int) -> Figures:
    figures, numbers = Figures(), iter(range(count))

    async def call_repeatedly() -> None:
        for _ in numbers:
            began = time.perf_counter()
            try:
                await call_once()
            except CallFailed as failure:
                figures.failures[words(failure)] += 1
            else:
                figures.seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(call_repeatedly() for _ in range(concurrency)))
    figures.elapsed_seconds = time.perf_counter() - began
    return figures
