"""A held call, whether it ends well or badly, leaves nothing to the garbage collector: its memory is freed at once."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest

import runtimeproxy
from runtimeproxy.core.call import HeldCall, Unreadable
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.model.fields import HookRequest
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.system.fronts import Failed, Front
from tests.system.proxy import until

pytestmark = pytest.mark.slow

CALLS = 3
PROGRAM = f"{Path(runtimeproxy.__file__).parent}/"
"""Not by the folder's name: the checkout may have the same."""
LATE, CANCELLED, UNREADABLE, UNREACHABLE = "no answer in time", "cancelled", "unreadable", "unreachable"
ANSWERS = {
    "served": hookanswers.empty(),
    "refused": hookanswers.status(grpc.StatusCode.PERMISSION_DENIED, "no"),
    "error status": hookanswers.status(grpc.StatusCode.INTERNAL, "no"),
    "not served": hookanswers.status(grpc.StatusCode.UNIMPLEMENTED),
    "broken answer": hookanswers.garbage(),
    LATE: hookanswers.hang(),
    CANCELLED: hookanswers.hang(),
    UNREADABLE: hookanswers.empty(),
    UNREACHABLE: hookanswers.empty(),
}


@contextmanager
def unreachable() -> Iterator[list[object]]:
    """Find, at the end of the block, which objects made by calls only the garbage collector would free."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [one for one in gc.garbage if _is_a_calls(one)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _is_a_calls(one: object) -> bool:
    if isinstance(one, FrameType):
        return one.f_code.co_filename.startswith(PROGRAM)
    return isinstance(one, RuntimeProxyError | Unreadable | HookRequest) or HeldCall in type(one).__mro__


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("case", ANSWERS)
async def test_call_leaves_no_garbage(case: str, policy: str, front: Front, tmp_path: Path) -> None:
    proxy: Any = front.inside(tmp_path)
    async with (
        front.runtime(str(proxy.runtime)),
        HookServer(str(tmp_path / "hooks.sock"), default=ANSWERS[case]) as hooks,
    ):
        socket = tmp_path / "nobody.sock" if case == UNREACHABLE else hooks.socket_path
        timeout = "50ms" if case == LATE else "20s"
        proxy.register("a.json", socket, ["PreRunPodSandbox", "PreCreateContainer"], policy=policy, timeout=timeout)
        async with proxy, front.caller(proxy.socket) as caller:

            async def call() -> None:
                """Make a held call, and wait until the proxy has finished it."""
                broken = caller.broken_request("run_pod", b"x")
                made: Any = caller.send("run_pod", broken) if case == UNREADABLE else caller.run_pod()
                made = asyncio.ensure_future(made)
                if case == CANCELLED:
                    await hooks.wait_for_calls("PreRunPodSandbox")
                    made.cancel()
                with suppress(Failed, asyncio.CancelledError):
                    await made
                hooks.calls.clear()
                await until(lambda: not proxy.app.front.tasks, "the call's task has ended")

            await call()
            with unreachable() as left:
                for _ in range(CALLS):
                    await call()
            assert left == []
            refused = case not in ("served", CANCELLED) and (policy == "Fail" or case == "refused")
            assert proxy.metrics.total("calls", outcome="refused") == refused * (CALLS + 1)
