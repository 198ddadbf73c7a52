"""The tests of the rules about messages: one call after another, with valid and with odd requests.

Invariant: each function raises Broken, Late or Skipped, or the rule is kept at that hook point.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from runtimeproxy.hookapi import codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import NO_RESOURCES, NUMBER_FIELDS, HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HookPoint, Operation
from runtimeproxy.relay.rpc.connection import CallFailed
from runtimeproxy.wire import protobuf
from runtimeproxy_hooks.tools.subject import NO_SUCH_METHOD, ODD, PLAIN, Broken, Skipped, TriedServer, expect

BIG_ENTRIES, BIG_ENTRY_BYTES = 16, 64 * 1024
SAME_ANSWERS = 3
"""Calls on one connection; one more is made on another."""

_UNKNOWN_METHOD = f"/{codec.SERVICE}/NoSuchHook"
_UNKNOWN_FIELDS = (
    protobuf.varint(1000 << 3 | protobuf.VARINT)
    + protobuf.varint(7)
    + protobuf.varint(1001 << 3 | protobuf.LENGTH_DELIMITED)
    + protobuf.varint(5)
    + b"later"
)
_POD_META_TAG = protobuf.varint(1 << 3 | protobuf.LENGTH_DELIMITED)


async def values(subject: TriedServer, point: HookPoint) -> None:
    """Check the answer to the plain request as the proxy does before it uses one."""
    sent = subject.told(point)
    _, broken = merge.judged(merge.difference(sent, _answer(subject, point)), sent)
    if broken:
        raise Broken(str(broken[0]))


def _answer(subject: TriedServer, point: HookPoint) -> HookAnswer:
    """Return the answer to the plain request. Raises Skipped if the hook server refused it."""
    outcome = subject.plain[point]
    if not isinstance(outcome, HookAnswer):
        raise Skipped("the plain request is refused: give one that is not (-f)")
    return outcome


async def empty(subject: TriedServer, point: HookPoint) -> None:
    """Send a request without any field."""
    async with subject.connection() as client:
        expect(await subject.ask(client, point, b""), ODD)


async def missing(subject: TriedServer, point: HookPoint) -> None:
    """Send the plain request without each of its fields in turn."""
    async with subject.connection() as client:
        for name, body in _without_each_field(point, subject.body(point)):
            expect(await subject.ask(client, point, body), ODD, f"without {name}")


def _without_each_field(point: HookPoint, body: bytes) -> Iterator[tuple[str, bytes]]:
    found = list(protobuf.fields(body))
    for number, name in codec.request_fields(point).items():
        kept = [body[field.start : field.end] for field in found if field.number != number]
        if len(kept) < len(found):
            yield name, b"".join(kept)


async def unknown_fields(subject: TriedServer, point: HookPoint) -> None:
    """Send unknown fields, as of a later protocol, in the request and in a nested message: they must change nothing."""
    body = subject.body(point)
    later = body + _UNKNOWN_FIELDS + _POD_META_TAG + protobuf.varint(len(_UNKNOWN_FIELDS)) + _UNKNOWN_FIELDS
    async with subject.connection() as client:
        before = await subject.ask(client, point)
        outcome = await subject.ask(client, point, later)
        after = await subject.ask(client, point)
    expect(outcome, PLAIN)
    if before != after:
        raise Skipped("the answers to the same request differ anyway")
    if outcome != before:
        raise Broken("with fields that it does not know the answer is another one")


async def same_answer(subject: TriedServer, point: HookPoint) -> None:
    """Send the plain request several times: the answers must be equal."""
    async with subject.connection() as client:
        outcomes = [await subject.ask(client, point) for _ in range(SAME_ANSWERS)]
    async with subject.connection() as client:
        outcomes.append(await subject.ask(client, point))
    if any(outcome != subject.plain[point] for outcome in outcomes):
        raise Broken(f"{len(outcomes) + 1} times the same request, and the answers differ")


async def big(subject: TriedServer, point: HookPoint) -> None:
    """Send a pod with 1 MiB of annotations."""
    pod = subject.given.pod
    more = {f"verify.runtimeproxy/big-{n}": "x" * BIG_ENTRY_BYTES for n in range(BIG_ENTRIES)}
    large = replace(subject.given, pod=replace(pod, annotations={**pod.annotations, **more}))
    async with subject.connection() as client:
        expect(await subject.ask(client, point, codec.encode(point, large)), PLAIN)


async def unknown_method(subject: TriedServer) -> None:
    """Call a method that does not exist."""
    async with subject.connection() as client:
        try:
            await client.call(_UNKNOWN_METHOD, b"", subject.timeout_seconds)
        except CallFailed as failure:
            expect(subject.outcome(failure, "an unknown method"), NO_SUCH_METHOD)
        else:
            raise Broken("a method that does not exist was answered")


# -- the echo rule ---------------------------------------------------------------------------------------------------


async def echo(subject: TriedServer, point: HookPoint) -> None:
    """Check that the answer to the plain request repeats all numbers that were sent, or none of them.

    A number that the server always sets may happen to equal the one that was sent. So the request is sent again with
    other numbers in place of the repeated ones: a server that echoes repeats those, too. Map entries are merged one by
    one, so any of them may be repeated; so may any number in an update, where a repeated number means that it is to
    hold.
    """
    if point.operation is Operation.UPDATE_CONTAINER_RESOURCES:
        return
    sent = subject.told(point)
    repeated, _ = mixed(sent, _answer(subject, point))
    if not repeated:
        return
    changed = with_others(sent, repeated)
    async with subject.connection() as client:
        answer = await subject.ask(client, point, codec.encode(point, changed))
    if not isinstance(answer, HookAnswer):
        raise Skipped("the plain request is refused with other numbers in its resources")
    again, left_out = mixed(changed, answer)
    if both := [name for name in again if name in repeated]:
        raise Broken(f"resources: {', '.join(both)} repeated as sent, {', '.join(left_out)} left out")


def mixed(sent: HookRequest, said: HookAnswer) -> tuple[Sequence[str], Sequence[str]]:
    """Return the numbers that an answer repeats and those that it leaves out; none if it is not a mixture of both. A
    changed number is no evidence: both an echo and a partial answer have those."""
    asked, answered = (each.resources or NO_RESOURCES for each in (merge.echo(sent), said))
    numbers = {name: value for name in NUMBER_FIELDS if (value := getattr(asked, name))}
    repeated = [name for name, value in numbers.items() if getattr(answered, name) == value]
    left_out = [name for name in numbers if not getattr(answered, name)]
    return (repeated, left_out) if repeated and left_out else ([], [])


def with_others(sent: HookRequest, names: Sequence[str]) -> HookRequest:
    """Return a request with other numbers in the named fields of the resources that an answer may change."""
    resources = merge.echo(sent).resources or NO_RESOURCES
    # Nearer to 0, but not 0 itself, which means not set.
    sent_numbers = {name: getattr(resources, name) for name in names}
    numbers: dict[str, Any] = {name: n - (1 if n > 0 else -1) or 2 * n for name, n in sent_numbers.items()}
    others = replace(resources, **numbers)
    if sent.container is None:
        return replace(sent, pod=replace(sent.pod, resources=others))
    return replace(sent, container=replace(sent.container, resources=others))
