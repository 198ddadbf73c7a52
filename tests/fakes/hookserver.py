"""A fake hook server on a unix socket that records every call and misbehaves on command.

Run alone: ``python -m tests.fakes.hookserver --socket PATH [--answer empty]``.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any

import grpc
import uvloop

from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from tests.fakes import hookanswers
from tests.fakes.faults import FaultRelay
from tests.fakes.hookanswers import Answer, HookCall
from tests.fakes.server import Server, grpc_server, wait_for_signal

_POINTS = {f"/runtime.v1alpha1.RuntimeHookService/{hook_point.method}": hook_point for hook_point in HOOK_POINTS}


class HookServer(Server, grpc.GenericRpcHandler):
    """The server; ``answers`` maps hook point names to answers, all others get ``default``.

    With ``faulty`` a fault relay listens in its place: ``faults`` delays, cuts and stalls the traffic.
    """

    def __init__(
        self,
        socket_path: str,
        answers: Mapping[str, Answer] | None = None,
        *,
        default: Answer | None = None,
        faulty: bool = False,
        keep_calls: bool = True,
    ) -> None:
        self.socket_path = socket_path
        self.answers = dict(answers or {})
        self.default = default or hookanswers.empty()
        self.calls: list[HookCall] = []
        self.faults = FaultRelay(socket_path, socket_path + ".inner") if faulty else None
        self._records_calls = keep_calls
        self._called = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = await grpc_server(self.faults.backend if self.faults else self.socket_path, self)
        if self.faults is not None:
            await self.faults.start()

    async def stop(self) -> None:
        if self.faults is not None:
            await self.faults.stop()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def on(self, hook_point: str, answer: Answer) -> None:
        self.answers[BY_NAME[hook_point].name] = answer

    def calls_of(self, hook_point: str) -> list[HookCall]:
        return [call for call in self.calls if call.point.name == hook_point]

    async def wait_for_calls(self, hook_point: str) -> list[HookCall]:
        async with self._called:
            await self._called.wait_for(lambda: self.calls_of(hook_point))
        return self.calls_of(hook_point)

    def crash_mid_answer(self) -> Answer:
        """Return a good answer, but drop the connection 20 bytes after those of the busiest; needs ``faulty``."""
        assert self.faults is not None
        faults = self.faults

        async def answer(call: HookCall) -> bytes:
            sent = (len(connection.to_client) for connection in faults.connections if connection.is_open)
            faults.to_client.cut_after_bytes = max(sent, default=0) + 20
            return await hookanswers.echo()(call)

        return answer

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the hook point in a path; other paths are UNIMPLEMENTED."""
        hook_point = _POINTS.get(details.method)
        if hook_point is None:
            return None

        async def hook(message: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
            call = HookCall(hook_point, message, metadata, context.time_remaining(), time.monotonic(), context)
            async with self._called:
                if self._records_calls:
                    self.calls.append(call)
                self._called.notify_all()
            try:
                return await self.answers.get(hook_point.name, self.default)(call)
            except asyncio.CancelledError:
                call.cancelled = True
                raise

        return grpc.unary_unary_rpc_method_handler(hook)


async def alone(socket: str, answer: str) -> None:
    async with HookServer(socket, default=hookanswers.BY_NAME[answer](), keep_calls=False):
        await wait_for_signal(f"fake hook server {{}} listens on {socket}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="fake hook server")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--answer", choices=sorted(hookanswers.BY_NAME), default="empty")
    uvloop.run(alone(**vars(parser.parse_args())))
