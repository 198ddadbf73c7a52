"""The tests of ``runtimeproxy hook verify``, and the hook server that they test.

Invariants: a call ends in an outcome or in Late by its deadline; outcomes are compared without their texts. A test that
raises neither Broken, Late nor Skipped has passed. A command that does not end in time is killed with its children.
"""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import (
    NO_RESOURCES,
    NUMBER_FIELDS,
    ContainerInfo,
    HookAnswer,
    HookRequest,
    PodInfo,
    Resources,
)
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, Operation, Stage
from runtimeproxy.relay.dial import dial
from runtimeproxy.relay.rpc.connection import MAX_REPLY_BYTES, CallFailed, Kind, UnaryClient
from runtimeproxy.relay.rpc.framing import Calls
from runtimeproxy.wire import grpc, protobuf
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools.request import at_hook_point, encoded

SAME_ANSWERS = 3
"""Calls on one connection; one more is made on another."""
BIG_ENTRIES, BIG_ENTRY_BYTES = 16, 64 * 1024
CONCURRENT = 32
CONNECTIONS = 4
CANCELLED_AFTER_SECONDS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
RESTART_SECONDS = 10.0

_UNKNOWN_METHOD = f"/{codec.SERVICE}/NoSuchHook"
_UNKNOWN_FIELDS = (
    protobuf.varint(1000 << 3 | protobuf.VARINT)
    + protobuf.varint(7)
    + protobuf.varint(1001 << 3 | protobuf.LENGTH_DELIMITED)
    + protobuf.varint(5)
    + b"later"
)
_POD_META_TAG = protobuf.varint(1 << 3 | protobuf.LENGTH_DELIMITED)
_MARK_KEY = "verify.runtimeproxy/pod"
_MARK = re.compile(r"verify-pod-([0-9]{2})")
_AGAIN_SECONDS = 0.05
_TIME_TO_READ_SECONDS = 0.002

T = TypeVar("T", PodInfo, ContainerInfo)

FAILED_PRECONDITION = 9
NO_STATUS = -1
"""The status of an outcome without one: the server is unavailable, or broke the protocol."""


@dataclass(frozen=True, slots=True)
class Status:
    """A failure in place of an answer; ``words`` describe it and are ignored when outcomes are compared."""

    code: int
    words: str = field(compare=False)


Outcome = HookAnswer | Status

PLAIN = frozenset({grpc.OK, grpc.PERMISSION_DENIED})
"""The good outcomes of a request that a kubelet could have caused: an answer, or a refusal by policy."""
ODD = PLAIN | {grpc.INVALID_ARGUMENT, FAILED_PRECONDITION, grpc.UNIMPLEMENTED}
"""The good outcomes of a request without fields that every pod has: also a status for that. UNKNOWN and INTERNAL, the
statuses of a crashed handler, are not among them, nor is a broken connection."""
NO_SUCH_METHOD = frozenset({grpc.UNIMPLEMENTED})
"""The good outcome of a call of a method that does not exist."""


class Broken(Exception):
    """A rule is broken; the text explains how."""


class Skipped(Exception):
    """A rule cannot be checked; the text has the reason."""


class Late(Exception):
    """A call had no answer in time; the text names the hook point."""


def code(outcome: Outcome) -> int:
    """Return the gRPC status code of an outcome, 0 (OK) for an answer."""
    return grpc.OK if isinstance(outcome, HookAnswer) else outcome.code


def expect(outcome: Outcome, good: frozenset[int], after: str = "") -> None:
    """Raise Broken unless an outcome is an answer or a good code; ``after`` is the event before the call."""
    if isinstance(outcome, Status) and outcome.code not in good:
        raise Broken(f"{after}: {outcome.words}" if after else outcome.words)


class TriedServer:
    """A hook server under test; ``probe`` must be called before the other methods and ``plain`` are used."""

    def __init__(
        self,
        endpoint: str,
        given: HookRequest,
        hook_points: Sequence[HookPoint] = (),
        timeout_seconds: float = hook_client.DEFAULT_TIMEOUT_SECONDS,
        restart_command: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.given = given
        self.named = tuple(hook_points)
        """The hook points that the server must serve; if it serves none of them, the others are tried, too."""
        self.timeout_seconds = timeout_seconds
        self.restart_command = restart_command
        self.plain: dict[HookPoint, Outcome] = {}
        """The outcome of the plain request by hook point; hook points without an answer in time are missing."""
        self.late: list[str] = []
        """The calls that had no answer in time."""
        self.bodies = {hook_point: encoded(hook_point, given) for hook_point in self.named or HOOK_POINTS}
        """The encoded plain request by hook point."""
        self._unnamed_bodies: dict[HookPoint, bytes] = {}
        for hook_point in HOOK_POINTS:
            if hook_point not in self.bodies:
                with suppress(ConfigError):  # the plain request may lack the container
                    self._unnamed_bodies[hook_point] = encoded(hook_point, given)

    async def probe(self) -> None:
        """Send the plain request to every hook point. Raises HookCallFailed if nothing listens at the socket."""
        try:
            (await dial(self.endpoint, self.timeout_seconds)).close()
        except OSError as error:
            failure = CallFailed(grpc.UNAVAILABLE, error.strerror or "it takes no connection", Kind.UNREACHABLE)
            raise hook_client.HookCallFailed(self.endpoint, "verify", failure) from None
        await self._call_plain(self.bodies)
        if not self.served:
            self.bodies |= self._unnamed_bodies
            await self._call_plain(self._unnamed_bodies)

    async def _call_plain(self, hook_points: Iterable[HookPoint]) -> None:
        for hook_point in hook_points:
            try:
                async with self.connection() as client:
                    self.plain[hook_point] = await self.call(client, hook_point)
            except Late:
                self.late.append(f"{hook_point.name} (a plain request)")

    @property
    def served(self) -> tuple[HookPoint, ...]:
        """Return the hook points that the server serves, also those with a bad answer."""
        return tuple(p for p in self.bodies if p not in self.plain or code(self.plain[p]) != grpc.UNIMPLEMENTED)

    @property
    def working(self) -> tuple[HookPoint, ...]:
        """Return the hook points where a plain request is answered or refused: the other rules are checked there."""
        return tuple(hook_point for hook_point, outcome in self.plain.items() if code(outcome) in PLAIN)

    def connection(self) -> AbstractAsyncContextManager[UnaryClient]:
        return hook_client.connection(self.endpoint)

    async def call(self, client: UnaryClient, hook_point: HookPoint, body: bytes | None = None) -> Outcome:
        """Call a hook point, by default with the plain request. Raises Late. An answer at a Post point counts as an
        empty one: the proxy ignores its content."""
        try:
            message = self.bodies[hook_point] if body is None else body
            answer = await hook_client.call_hook(client, hook_point, message, self.timeout_seconds)
        except CallFailed as failure:
            return self.outcome(failure, hook_point.name)
        return answer if hook_point.stage is Stage.PRE else HookAnswer()

    def outcome(self, failure: CallFailed, name: str) -> Status:
        """Return the outcome of a failed call. Raises Late if it ended at its deadline."""
        if failure.kind is Kind.DEADLINE:
            raise Late(name)
        return Status(failure.code if failure.kind is Kind.STATUS else NO_STATUS, hook_client.words(failure))


# -- messages ----------------------------------------------------------------------------------------------------------


async def values(subject: TriedServer, hook_point: HookPoint) -> None:
    """Check the answer to the plain request as the proxy does before it uses one."""
    sent = at_hook_point(hook_point, subject.given)
    _, broken = merge.validated(merge.difference(sent, _answer(subject, hook_point)), sent)
    if broken:
        raise Broken(str(broken[0]))


def _answer(subject: TriedServer, hook_point: HookPoint) -> HookAnswer:
    """Return the answer to the plain request. Raises Skipped if the hook server refused it."""
    outcome = subject.plain[hook_point]
    if not isinstance(outcome, HookAnswer):
        raise Skipped("the plain request is refused: give one that is not (-f)")
    return outcome


async def empty(subject: TriedServer, hook_point: HookPoint) -> None:
    async with subject.connection() as client:
        expect(await subject.call(client, hook_point, b""), ODD)


async def missing(subject: TriedServer, hook_point: HookPoint) -> None:
    async with subject.connection() as client:
        for name, body in _without_each_field(hook_point, subject.bodies[hook_point]):
            expect(await subject.call(client, hook_point, body), ODD, f"without {name}")


def _without_each_field(hook_point: HookPoint, body: bytes) -> Iterator[tuple[str, bytes]]:
    message_fields = list(protobuf.fields(body))
    for number, name in codec.request_fields(hook_point).items():
        retained = [body[field.start : field.end] for field in message_fields if field.number != number]
        if len(retained) < len(message_fields):
            yield name, b"".join(retained)


async def unknown_fields(subject: TriedServer, hook_point: HookPoint) -> None:
    """Send unknown fields of a later protocol in the request and in a nested message: they must change nothing."""
    body = subject.bodies[hook_point]
    later = body + _UNKNOWN_FIELDS + _POD_META_TAG + protobuf.varint(len(_UNKNOWN_FIELDS)) + _UNKNOWN_FIELDS
    async with subject.connection() as client:
        before = await subject.call(client, hook_point)
        outcome = await subject.call(client, hook_point, later)
        after = await subject.call(client, hook_point)
    expect(outcome, PLAIN)
    if before != after:
        raise Skipped("the answers to the same request differ anyway")
    if outcome != before:
        raise Broken("with fields that it does not know the answer is another one")


async def same_answer(subject: TriedServer, hook_point: HookPoint) -> None:
    async with subject.connection() as client:
        outcomes = [await subject.call(client, hook_point) for _ in range(SAME_ANSWERS)]
    async with subject.connection() as client:
        outcomes.append(await subject.call(client, hook_point))
    if any(outcome != subject.plain[hook_point] for outcome in outcomes):
        raise Broken(f"{len(outcomes) + 1} times the same request, and the answers differ")


async def big(subject: TriedServer, hook_point: HookPoint) -> None:
    pod = subject.given.pod
    more = {f"verify.runtimeproxy/big-{n}": "x" * BIG_ENTRY_BYTES for n in range(BIG_ENTRIES)}
    large = replace(subject.given, pod=replace(pod, annotations={**pod.annotations, **more}))
    async with subject.connection() as client:
        expect(await subject.call(client, hook_point, codec.encode(hook_point, large)), PLAIN)


async def unknown_method(subject: TriedServer) -> None:
    async with subject.connection() as client:
        try:
            await client.call(_UNKNOWN_METHOD, b"", subject.timeout_seconds)
        except CallFailed as failure:
            expect(subject.outcome(failure, "an unknown method"), NO_SUCH_METHOD)
        else:
            raise Broken("a method that does not exist was answered")


# -- the echo rule ---------------------------------------------------------------------------------------------------


async def echo(subject: TriedServer, hook_point: HookPoint) -> None:
    """Check that the answer to the plain request repeats all numbers that were sent, or none of them.

    A number that the server always sets may equal the one that was sent. So the request is sent again with other
    numbers in place of the repeated ones: a server that echoes repeats those, too. Map entries are merged one by one,
    so any may be repeated. So may any number in an update, where a repeated number confirms that value.
    """
    if hook_point.operation is Operation.UPDATE_CONTAINER_RESOURCES:
        return
    sent = at_hook_point(hook_point, subject.given)
    repeated, _ = mixed(sent, _answer(subject, hook_point))
    if not repeated:
        return
    changed = with_other_numbers(sent, repeated)
    async with subject.connection() as client:
        answer = await subject.call(client, hook_point, codec.encode(hook_point, changed))
    if not isinstance(answer, HookAnswer):
        raise Skipped("the plain request is refused with other numbers in its resources")
    again, omitted = mixed(changed, answer)
    if both := [name for name in again if name in repeated]:
        raise Broken(f"resources: {', '.join(both)} repeated as sent, {', '.join(omitted)} left out")


def mixed(sent: HookRequest, answer: HookAnswer) -> tuple[Sequence[str], Sequence[str]]:
    """Return the numbers that an answer repeats and those that it omits; none if it does not do both. Changed numbers
    are no evidence: both an echo and a partial answer have them."""
    requested, answered = (message.resources or NO_RESOURCES for message in (merge.echo(sent), answer))
    numbers = {name: value for name in NUMBER_FIELDS if (value := getattr(requested, name))}
    repeated = [name for name, value in numbers.items() if getattr(answered, name) == value]
    omitted = [name for name in numbers if not getattr(answered, name)]
    return (repeated, omitted) if repeated and omitted else ([], [])


def with_other_numbers(sent: HookRequest, names: Sequence[str]) -> HookRequest:
    """Return a request with other numbers in the named fields of the resources that an answer may change."""
    resources = merge.echo(sent).resources or NO_RESOURCES
    # Nearer to 0, but not 0, which means not set.
    sent_numbers = {name: getattr(resources, name) for name in names}
    numbers: dict[str, Any] = {name: n - (1 if n > 0 else -1) or 2 * n for name, n in sent_numbers.items()}
    changed = replace(resources, **numbers)
    if sent.container is None:
        return replace(sent, pod=replace(sent.pod, resources=changed))
    return replace(sent, container=replace(sent.container, resources=changed))


# -- concurrent calls -------------------------------------------------------------------------------------------------


async def concurrency(subject: TriedServer, hook_point: HookPoint) -> None:
    """Call it for many pods one by one, then concurrently on several connections; answers must not be mixed up."""
    bodies = [codec.encode(hook_point, marked(subject.given, number)) for number in range(CONCURRENT)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(subject.connection()) for _ in range(CONNECTIONS)]
        alone = [await subject.call(clients[0], hook_point, body) for body in bodies]
        calls = [subject.call(clients[number % len(clients)], hook_point, body) for number, body in enumerate(bodies)]
        together = await asyncio.gather(*calls, return_exceptions=True)
        if failed := [outcome for outcome in together if isinstance(outcome, BaseException)]:
            raise failed[0]
        for number, outcome in enumerate(together):
            _expect_own(number, outcome)
            if outcome != alone[number] and await subject.call(clients[0], hook_point, bodies[number]) == alone[number]:
                text = "an answer is another one than to the same request alone"
                raise Broken(f"{CONCURRENT} concurrent calls: {outcome.words if isinstance(outcome, Status) else text}")


def _expect_own(number: int, outcome: object) -> None:
    """Raise Broken if an answer contains the mark of another pod."""
    marks = {int(mark) for mark in _MARK.findall(str(outcome))} if isinstance(outcome, HookAnswer) else set()
    if marks - {number}:
        raise Broken(f"{CONCURRENT} concurrent calls: the answer about one pod holds what another pod was sent")


def marked(request: HookRequest, number: int) -> HookRequest:
    """Return the request for another pod, with its own mark in all fields that an answer can repeat."""
    mark, container = f"verify-pod-{number:02}", request.container
    entry = {_MARK_KEY: mark}
    pod = replace(request.pod, name=mark, uid=mark, labels={**request.pod.labels, **entry})
    request = replace(request, pod=_marked(pod, mark, number))
    if container is None:
        return request
    return replace(
        request, container=_marked(replace(container, envs={**container.envs, "VERIFY": mark}), mark, number)
    )


def _marked(info: T, mark: str, number: int) -> T:
    resources = replace(info.resources or Resources(), cpu_shares=1000 + number)
    annotations = {**info.annotations, _MARK_KEY: mark}
    return replace(info, annotations=annotations, cgroup_parent=f"/kubepods/{mark}", resources=resources)


# -- calls that end early --------------------------------------------------------------------------------------------


async def cancelled(subject: TriedServer, hook_point: HookPoint) -> None:
    """Cancel calls after increasing times; the next call on the same connection must be answered."""
    async with subject.connection() as client:
        for seconds in CANCELLED_AFTER_SECONDS:
            call = asyncio.create_task(subject.call(client, hook_point))
            await asyncio.sleep(seconds)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await _still_answers(subject, hook_point, client, "after a cancelled call")


async def broken_connection(subject: TriedServer, hook_point: HookPoint) -> None:
    """Break connections during a call: in its head, in its message, and before its answer."""
    calls = Calls(MAX_REPLY_BYTES)
    calls.open(codec.PATHS[hook_point.name], subject.bodies[hook_point], subject.timeout_seconds)
    sent = b"".join(calls.out)  # all bytes that a client sends on a new connection to make one call
    for length in (len(sent) // 2, len(sent) - 1, len(sent)):
        try:
            await _send_and_close(subject, sent[:length])
        except OSError as error:
            raise Broken(f"after a broken connection: {error.strerror or 'it takes no more'}") from None
        async with subject.connection() as client:
            await _still_answers(subject, hook_point, client, "after a broken connection")


async def _send_and_close(subject: TriedServer, data: bytes) -> None:
    """Send bytes on a new connection and close it. Raises OSError; TimeoutError if the server does not read them."""
    sock = await dial(subject.endpoint, subject.timeout_seconds)
    try:
        async with asyncio.timeout(subject.timeout_seconds):
            await asyncio.get_running_loop().sock_sendall(sock, data)
        await asyncio.sleep(_TIME_TO_READ_SECONDS)
    finally:
        sock.close()


async def _still_answers(subject: TriedServer, hook_point: HookPoint, client: UnaryClient, after: str) -> None:
    try:
        expect(await subject.call(client, hook_point), PLAIN, after)
    except Late:
        raise Broken(f"{after}: no answer in time") from None


# -- restart ---------------------------------------------------------------------------------------------------------


async def restart(subject: TriedServer) -> None:
    """Run the command that restarts the server; every hook point must answer again in time."""
    if subject.restart_command is None:
        raise Skipped("give --restart-command to try it")
    waiting = "the command to end"
    try:
        async with asyncio.timeout(RESTART_SECONDS):
            await _run(subject.restart_command)
            for hook_point in subject.working:
                waiting = f"an answer at {hook_point.name}"
                await _answers_again(subject, hook_point)
    except TimeoutError:
        raise Broken(f"waited {RESTART_SECONDS:g} s for {waiting}") from None


async def _run(command: str) -> None:
    """Run a command in a shell. Raises Broken if it fails."""
    # Not by the event loop: uvloop would leave a copy of our stderr to the server that the command starts.
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            await asyncio.sleep(_AGAIN_SECONDS)
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        raise Broken(f"the restart command ended with exit code {process.returncode}")


async def _answers_again(subject: TriedServer, hook_point: HookPoint) -> None:
    while True:
        async with subject.connection() as client:
            try:
                if code(await subject.call(client, hook_point)) in PLAIN:
                    return
            except Late:
                pass  # the server may still be starting
        await asyncio.sleep(_AGAIN_SECONDS)
