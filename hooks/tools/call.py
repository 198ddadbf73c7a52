"""``runtimeproxy hook call``: ask once, and show what the answer changes.

Invariant: the text is YAML, whatever the hook server answers; what it calls applied is what the proxy would apply.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvloop
import yaml

from runtimeproxy.model import merge
from runtimeproxy.model.fields import Adjustment, HookAnswer, HookRequest, named
from runtimeproxy.model.hookpoints import HookPoint, Stage
from runtimeproxy.relay.rpc.connection import CallFailed
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request

APPLIED, WITHOUT_EFFECT, DROPPED, BAD = "applied", "without-effect", "dropped", "bad"

_PARTS = ("labels", "annotations", "envs", "cgroup_parent", "resources")
_ESCAPES: Mapping[str, str] = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\0": "\\0"}
_LONGEST_KEY = 1024
"""Longest key, in characters, that is written before its colon; YAML needs "?" for a longer one."""
_PLAIN_KEY = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")

Tree = Mapping[str, Any]
"""Nested maps whose leaves are texts and numbers."""


@dataclass(frozen=True, slots=True)
class Called:
    """The result of a call: ``text`` to show, and the rules that the answer breaks, empty if it is good."""

    text: str
    faults: tuple[str, ...]


def call(server: hook_client.Server, point: HookPoint, given: HookRequest, timeout_seconds: float) -> Called:
    """Ask a hook server at a hook point. Raises ConfigError if the request cannot be sent there, HookCallFailed if the
    server refuses or fails."""
    body = request.encoded(point, given)
    try:
        answer, seconds = uvloop.run(_ask(server, point, body, timeout_seconds))
    except CallFailed as failure:
        raise hook_client.HookCallFailed(server.endpoint, point.name, failure) from None
    heads = [f"{point.name} at {server.endpoint} answered in {seconds * 1000:.1f} ms", *_remarks(server, point, given)]
    sent = request.at_point(point, given)
    _, faults = _judged(point, sent, merge.difference(sent, answer))
    return Called("\n".join([*(f"# {head}" for head in heads), *answer_lines(point, sent, answer)]), faults)


async def _ask(
    server: hook_client.Server, point: HookPoint, body: bytes, timeout_seconds: float
) -> tuple[HookAnswer, float]:
    """Return the answer and the seconds that it took."""
    async with hook_client.connection(server.endpoint) as client:
        began = time.perf_counter()
        answer = await hook_client.ask(client, point, body, timeout_seconds)
        return answer, time.perf_counter() - began


def _remarks(server: hook_client.Server, point: HookPoint, given: HookRequest) -> Iterator[str]:
    if server.points is not None and point.name not in server.points:
        yield f"the proxy would not ask: the registration file does not name {point.name}"
    if lost := request.untold(point, given):
        yield f"not told at this hook point: {', '.join(lost)}"
    if point.stage is Stage.POST:
        yield "the proxy ignores what is answered at this hook point"


# -- the difference --------------------------------------------------------------------------------------------------


def answer_lines(point: HookPoint, sent: HookRequest, answer: HookAnswer) -> Iterator[str]:
    """Yield YAML lines that show what an answer changes of what was sent."""
    change = merge.difference(sent, answer)
    good, faults = _judged(point, sent, change)
    effective = merge.limited(point, good)
    echo = merge.echo(sent)
    before = {part: getattr(echo, part) for part in _PARTS} | {"resources": named(echo.resources)}
    sections = {
        APPLIED: _changes(effective),
        DROPPED: _rest(_changes(change), _changes(good)),
        WITHOUT_EFFECT: _rest(_changes(good), _changes(effective)),
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


def _judged(point: HookPoint, sent: HookRequest, change: Adjustment) -> tuple[Adjustment, tuple[str, ...]]:
    """Return the good part of a change, and every rule that it breaks; at a Post point nothing is checked."""
    if point.stage is Stage.POST:
        return change, ()
    good, broken = merge.judged(change, sent)
    return good, tuple(map(str, broken))


def _rest(changes: Tree, taken: Tree) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in changes.items():
        if not isinstance(value, Mapping):
            left |= {} if key in taken else {key: value}
        elif inner := _rest(value, taken.get(key, {})):
            left[key] = inner
    return left


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
    # Only a key that YAML reads as a text is written without quotes: "on" and "null" would become something else.
    return key if _PLAIN_KEY.fullmatch(key) and yaml.safe_load(key) == key else _scalar(key)


def _scalar(value: object) -> str:
    """Return a number as it is, and a text in quotes on one line, without control characters for the terminal."""
    if not isinstance(value, str):
        return str(value)
    escaped = (_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return f'"{"".join(escaped)}"'
