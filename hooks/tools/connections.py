"""The tests of the rules about connections: concurrent calls, broken and cancelled ones, a restart.

Invariant: each function raises Broken, Late or Skipped, or the rule is kept; a command that does not end in time is
killed with its children.
"""

import asyncio
import os
import re
import signal
import subprocess
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.relay.dial import dial
from runtimeproxy.relay.rpc.connection import MAX_REPLY_BYTES, UnaryClient
from runtimeproxy.relay.rpc.framing import Calls
from runtimeproxy_hooks.tools.subject import PLAIN, Broken, Late, Skipped, Status, TriedServer, code, expect

AT_ONCE = 32
CONNECTIONS = 4
CANCELLED_AFTER_SECONDS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
RESTART_SECONDS = 10.0

T = TypeVar("T", PodInfo, ContainerInfo)

_MARK_KEY = "verify.runtimeproxy/pod"
_MARK = re.compile(r"verify-pod-([0-9]{2})")
_AGAIN_SECONDS = 0.05
_TIME_TO_READ_SECONDS = 0.002


# -- many calls at once ----------------------------------------------------------------------------------------------


async def concurrency(subject: TriedServer, point: HookPoint) -> None:
    """Ask about many pods one by one, then concurrently on several connections; every answer must be about its own."""
    bodies = [codec.encode(point, marked(subject.given, number)) for number in range(AT_ONCE)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(subject.connection()) for _ in range(CONNECTIONS)]
        alone = [await subject.ask(clients[0], point, body) for body in bodies]
        calls = [subject.ask(clients[number % len(clients)], point, body) for number, body in enumerate(bodies)]
        together = await asyncio.gather(*calls, return_exceptions=True)
        if failed := [outcome for outcome in together if isinstance(outcome, BaseException)]:
            raise failed[0]
        for number, outcome in enumerate(together):
            _expect_own(number, outcome)
            if outcome != alone[number] and await subject.ask(clients[0], point, bodies[number]) == alone[number]:
                other = "an answer is another one than to the same request alone"
                raise Broken(f"{AT_ONCE} calls at once: {outcome.words if isinstance(outcome, Status) else other}")


def _expect_own(number: int, outcome: object) -> None:
    """Raise Broken if an answer contains the mark of another pod."""
    found = {int(mark) for mark in _MARK.findall(str(outcome))} if isinstance(outcome, HookAnswer) else set()
    if found - {number}:
        raise Broken(f"{AT_ONCE} calls at once: the answer about one pod holds what another pod was sent")


def marked(request: HookRequest, number: int) -> HookRequest:
    """Return the request for another pod, with a mark of its own in everything that an answer can repeat."""
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


async def cancelled(subject: TriedServer, point: HookPoint) -> None:
    """Cancel calls after longer and longer times; the next call on the same connection must be answered."""
    async with subject.connection() as client:
        for seconds in CANCELLED_AFTER_SECONDS:
            call = asyncio.create_task(subject.ask(client, point))
            await asyncio.sleep(seconds)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await _still_answers(subject, point, client, "after a cancelled call")


async def broken_connection(subject: TriedServer, point: HookPoint) -> None:
    """Break connections in the middle of a call: in its head, in its message, and while it is answered."""
    calls = Calls(MAX_REPLY_BYTES)
    calls.open(codec.PATHS[point.name], subject.body(point), subject.timeout_seconds)
    sent = b"".join(calls.out)  # all bytes that a client sends on a new connection to make one call
    for length in (len(sent) // 2, len(sent) - 1, len(sent)):
        try:
            await _send_and_close(subject, sent[:length])
        except OSError as error:
            raise Broken(f"after a broken connection: {error.strerror or 'it takes no more'}") from None
        async with subject.connection() as client:
            await _still_answers(subject, point, client, "after a broken connection")


async def _send_and_close(subject: TriedServer, data: bytes) -> None:
    """Send bytes on a new connection and close it. Raises OSError; TimeoutError if the server does not take them."""
    sock = await dial(subject.endpoint, subject.timeout_seconds)
    try:
        async with asyncio.timeout(subject.timeout_seconds):
            await asyncio.get_running_loop().sock_sendall(sock, data)
        await asyncio.sleep(_TIME_TO_READ_SECONDS)
    finally:
        sock.close()


async def _still_answers(subject: TriedServer, point: HookPoint, client: UnaryClient, after: str) -> None:
    try:
        expect(await subject.ask(client, point), PLAIN, after)
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
            for point in subject.sound:
                waiting = f"an answer at {point.name}"
                await _answers_again(subject, point)
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


async def _answers_again(subject: TriedServer, point: HookPoint) -> None:
    while True:
        async with subject.connection() as client:
            try:
                if code(await subject.ask(client, point)) in PLAIN:
                    return
            except Late:
                pass  # the server may still be starting
        await asyncio.sleep(_AGAIN_SECONDS)
