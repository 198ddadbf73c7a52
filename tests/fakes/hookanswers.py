"""The answers of the fake hook server: good ones, and all kinds of bad ones. An answer is raw bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.hookpoints import HookPoint, SubjectKind

Request = api_pb2.PodSandboxHookRequest | api_pb2.ContainerResourceHookRequest
Response = api_pb2.PodSandboxHookResponse | api_pb2.ContainerResourceHookResponse
Metadata = tuple[tuple[str, str | bytes], ...]

REQUESTS: dict[SubjectKind, type[Request]] = {
    SubjectKind.POD: api_pb2.PodSandboxHookRequest,
    SubjectKind.CONTAINER: api_pb2.ContainerResourceHookRequest,
}
RESPONSES: dict[SubjectKind, type[Response]] = {
    SubjectKind.POD: api_pb2.PodSandboxHookResponse,
    SubjectKind.CONTAINER: api_pb2.ContainerResourceHookResponse,
}


@dataclass(slots=True)
class HookCall:
    """A received call; ``deadline_seconds`` is the caller's remaining deadline, None if it set none."""

    point: HookPoint
    message: bytes
    metadata: Metadata
    deadline_seconds: float | None
    at: float
    context: grpc.aio.ServicerContext[Any, Any]
    cancelled: bool = False
    """Whether the caller disconnected, or its deadline passed, before the answer."""

    @property
    def request(self) -> Any:
        return REQUESTS[self.point.subject].FromString(self.message)


Answer = Callable[[HookCall], Awaitable[bytes]]


def raw(message: bytes) -> Answer:
    async def answer(call: HookCall) -> bytes:
        return message

    return answer


def empty() -> Answer:
    return raw(b"")


def reply(message: Message) -> Answer:
    return raw(message.SerializeToString())


def echo(change: Callable[[Any], None] = lambda response: None) -> Answer:
    """Return an answer that repeats the request's values, as koordlet's, with ``change`` applied to the response."""

    async def answer(call: HookCall) -> bytes:
        response = _echo(call)
        change(response)
        return response.SerializeToString()

    return answer


def koordlet(**values: int | str) -> Answer:
    """Return koordlet's answer: an echo with some resource fields overwritten, also with "".

    If the request has no resources message, only a value adds one.
    """

    def overwrite(response: Any) -> None:
        for name, value in values.items():
            setattr(resources(response), name, value)

    return echo(overwrite)


def annotations(message: Any) -> Any:
    return message.annotations if hasattr(message, "labels") else message.container_annotations


def resources(message: Any) -> Any:
    return message.resources if hasattr(message, "labels") else message.container_resources


def _echo(call: HookCall) -> Response:
    request, response = call.request, RESPONSES[call.point.subject]()
    for field, value in request.ListFields():
        if field.name not in response.DESCRIPTOR.fields_by_name:
            continue
        if isinstance(value, Message):
            getattr(response, field.name).CopyFrom(value)
        elif field.is_repeated:
            getattr(response, field.name).update(value)  # only maps are repeated fields of these messages
        else:
            setattr(response, field.name, value)
    return response


def after(seconds: float, then: Answer | None = None) -> Answer:
    async def answer(call: HookCall) -> bytes:
        await asyncio.sleep(seconds)
        return await then(call) if then else b""

    return answer


def hang() -> Answer:
    async def answer(call: HookCall) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return answer


def status(code: grpc.StatusCode, text: str = "", trailing_metadata: Metadata = ()) -> Answer:
    async def answer(call: HookCall) -> bytes:
        await call.context.abort(code, text, trailing_metadata)
        raise AssertionError("unreachable")

    return answer


def garbage() -> Answer:
    return raw(b"\xff\xff\xff\xff garbage")


def huge(size_bytes: int = 5 << 20) -> Answer:
    return echo(lambda response: annotations(response).update(huge="x" * size_bytes))


BY_NAME: dict[str, Callable[[], Answer]] = {
    **{"empty": empty, "echo": echo, "koordlet": koordlet, "hang": hang, "garbage": garbage, "huge": huge},
    "refuse": lambda: status(grpc.StatusCode.PERMISSION_DENIED, "refused by the fake hook server"),
    "fail": lambda: status(grpc.StatusCode.INTERNAL, "failed as requested"),
    "unimplemented": lambda: status(grpc.StatusCode.UNIMPLEMENTED, "no such hook"),
}
"""The answers by their names on the command line."""
