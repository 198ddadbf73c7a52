"""The gRPC server of hooks, on real sockets: answers, statuses, health, async methods, and its end."""

import asyncio
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from runtimeproxy.errors import ConfigError, HookError, Reason
from runtimeproxy.hookapi import codec
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.model import HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy_hooks.sdk import ContainerContext, Hook
from runtimeproxy_hooks.sdk.serving import THREADS, HookServer
from tests.hooks.sdk import callers
from tests.hooks.sdk.callers import CREATE, bare, call, request
from tests.hooks.sdk.child import SECRET, Dreamy, Obedient

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server of hooks and return its socket's path; it is stopped in the end."""
    servers = []

    def started(*hooks: Hook) -> str:
        path = str(tmp_path / f"{len(servers)}.sock")
        servers.append(HookServer(hooks, "server"))
        servers[-1].start(path)
        return path

    yield started
    for server in servers:
        assert server.stop(0) == 0


# Answers.


async def test_an_answer_is_an_echo_with_the_edits(serve: Serve) -> None:
    class Edits(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            container.resources.cpu_shares = 2
            container.env["B"] = "2"

    asked = request()
    assert asked.container is not None
    object.__setattr__(asked.container, "envs", {"A": "1"})
    object.__setattr__(asked.container, "resources", Resources(cpu_quota=5000))
    expected = HookAnswer(envs={"A": "1", "B": "2"}, resources=Resources(cpu_quota=5000, cpu_shares=2))
    assert await call(serve(Edits()), asked) == expected


@pytest.mark.parametrize(
    ("hooks", "marks"),
    [([Obedient()], "o"), ([Dreamy()], "d"), ([Obedient(), Dreamy()], "od"), ([Dreamy(), Obedient(), Dreamy()], "dod")],
)
async def test_each_hook_sees_what_the_ones_before_it_edited(serve: Serve, hooks: list[Hook], marks: str) -> None:
    assert (await call(serve(*hooks), request())).envs == {"MARKS": marks}


async def test_a_point_of_pods_is_served_too(serve: Serve) -> None:
    answer = await call(serve(Dreamy()), HookRequest(PodInfo(labels={"a": "b"})), BY_NAME["PostStopPodSandbox"])
    assert answer.labels == {"a": "b"}


@pytest.mark.parametrize(
    ("module", "unloaded"), [("sdk", "aiohttp grpc uvloop"), ("sdk.testing", "grpc"), ("sdk.serving", "aiohttp uvloop")]
)
def test_the_sdk_loads_only_what_it_needs(module: str, unloaded: str) -> None:
    script = f"import sys, runtimeproxy_hooks.{module}; sys.exit(bool({set(unloaded.split())} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_interceptors_see_each_call_first(tmp_path: Path) -> None:
    class Counting(grpc.ServerInterceptor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen: list[str] = []

        def intercept_service(self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails) -> Any:
            self.seen.append(details.method)
            return continuation(details)

    counting, path = Counting(), str(tmp_path / "a.sock")
    server = HookServer([Obedient()], "server", interceptors=[counting])
    server.start(path)
    assert callers.status(path, request()) == (grpc.StatusCode.OK, "")
    assert server.stop(0) == 0
    assert counting.seen == [codec.method_path(CREATE)]


def test_more_services_can_be_served_reflection_among_them(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    names = (codec.SERVICE, reflection.SERVICE_NAME)
    server = HookServer(
        [Obedient()], "server", prepare=lambda server: reflection.enable_server_reflection(names, server)
    )
    server.start(path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        described = ProtoReflectionDescriptorDatabase(channel)
        assert set(described.get_services()) == set(names)
        file = described.FindFileContainingSymbol(codec.SERVICE)
    assert server.stop(0) == 0
    assert {method.name for method in file.service[0].method} >= {point.method for point in HOOK_POINTS}


async def test_large_messages_go_both_ways(serve: Serve) -> None:
    class Large(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            container.annotations["large"] = container.pod.annotations["large"][: 3 << 20]

    answer = await call(serve(Large()), request(large="x" * (12 << 20)))
    assert answer.annotations["large"] == "x" * (3 << 20)


# Failures.


@pytest.mark.parametrize(
    ("do", "code", "text"),
    [
        ("refuse", grpc.StatusCode.PERMISSION_DENIED, "not on my node"),
        ("malformed", grpc.StatusCode.INVALID_ARGUMENT, "annotation do: must be a verb"),
        ("boom", grpc.StatusCode.INTERNAL, "{} at PreCreateContainer raised Unprintable; its log says where"),
        ("leave", grpc.StatusCode.INTERNAL, "{} at PreCreateContainer raised {}; its log says where"),
        ("unsayable", grpc.StatusCode.INTERNAL, "{} at PreCreateContainer raised NotSayable; its log says where"),
        ("no action", grpc.StatusCode.INTERNAL, "{} at PreCreateContainer raised KeyError; its log says where"),
    ],
)
@pytest.mark.parametrize(("hook", "exit"), [(Obedient(), "SystemExit"), (Dreamy(), "RuntimeError")])
def test_an_exception_becomes_a_status(
    serve: Serve, caplog: pytest.LogCaptureFixture, hook: Hook, exit: str, do: str, code: grpc.StatusCode, text: str
) -> None:
    caplog.set_level(logging.DEBUG)
    path = serve(hook)
    name = type(hook).__name__.lower()
    assert callers.status(path, request(do, other=SECRET)) == (code, text.format(name, exit))
    assert callers.status(path, request()) == (grpc.StatusCode.OK, "")
    assert SECRET not in caplog.text


async def test_the_proxy_takes_a_rejection_as_one(serve: Serve) -> None:
    with pytest.raises(HookError) as raised:
        await call(serve(Obedient()), request("refuse"))
    assert (raised.value.reason, raised.value.said) == (Reason.REFUSED, "not on my node")


def test_bytes_that_are_no_request_are_refused(serve: Serve) -> None:
    code, text, _ = bare(serve(Obedient()), codec.method_path(CREATE), b"\xff\xff\xff")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "ContainerResourceHookRequest that is no well-formed protobuf message"


@pytest.mark.parametrize(
    "method",
    [codec.method_path(BY_NAME["PreStartContainer"]), f"/{codec.SERVICE}/PreRemoveRunPodSandboxHook", "/other/Method"],
)
def test_what_no_hook_has_a_method_for_is_unimplemented(serve: Serve, method: str) -> None:
    assert bare(serve(Obedient()), method, b"")[0] is grpc.StatusCode.UNIMPLEMENTED


# Threads and the event loop.


async def test_plain_methods_run_at_the_same_time(serve: Serve) -> None:
    class Meeting(Hook):
        barrier = threading.Barrier(THREADS)

        def pre_create_container(self, container: ContainerContext) -> None:
            self.barrier.wait(callers.LONG_SECONDS)

    path = serve(Meeting())
    await asyncio.gather(*(call(path, request()) for _ in range(THREADS)))


async def test_async_methods_run_at_the_same_time_on_one_loop(serve: Serve) -> None:
    class Meeting(Hook):
        met: asyncio.Barrier | None = None

        async def pre_create_container(self, container: ContainerContext) -> None:
            self.met = self.met or asyncio.Barrier(3)  # bound to the loop of its first waiter: there is one loop only
            await self.met.wait()
            container.env["THREAD"] = str(threading.get_ident())

    path = serve(Meeting())
    answers = await asyncio.gather(*(call(path, request()) for _ in range(3)))
    assert len({answer.envs["THREAD"] for answer in answers}) == 1


class Waiting(Hook):
    """Waits for ever, and tells when it began and when it was cut off."""

    name = "waiting"

    def __init__(self) -> None:
        self.began, self.cut_off = threading.Event(), threading.Event()

    async def pre_create_container(self, container: ContainerContext) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cut_off.set()


def late(path: str, began: threading.Event) -> None:
    """Make a call whose deadline passes in its method; a busy machine may need a longer one to begin that."""
    seconds = 0.2
    while not began.is_set():
        assert callers.status(path, request(), seconds)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2


def test_an_async_method_is_cut_off_with_its_call(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    hook = Waiting()
    late(serve(hook), hook.began)
    assert hook.cut_off.wait(callers.LONG_SECONDS)
    eventually(lambda: "waiting at PreCreateContainer: cut off" in caplog.text)


def test_a_method_whose_caller_has_gone_already_is_cut_off(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    began, gone = threading.Event(), threading.Event()

    class Late(Hook):
        def pre_create_container(self, container: ContainerContext) -> Any:
            began.set()
            assert gone.wait(callers.LONG_SECONDS)
            time.sleep(0.1)  # until the server has noticed, too
            return asyncio.Event().wait()

    late(serve(Late()), began)
    gone.set()
    eventually(lambda: "late at PreCreateContainer: cut off" in caplog.text)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + callers.LONG_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Health.


def test_the_health_service_says_serving(serve: Serve) -> None:
    with grpc.insecure_channel(f"unix:{serve(Obedient())}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", codec.SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=callers.LONG_SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as raised:
            health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=callers.LONG_SECONDS)
        failed: Any = raised.value
        assert failed.code() is grpc.StatusCode.NOT_FOUND


def test_whoever_watches_its_health_is_told_of_the_end(tmp_path: Path) -> None:
    server, path = HookServer([Obedient()], "server"), str(tmp_path / "a.sock")
    server.start(path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        told = health.Watch(health_pb2.HealthCheckRequest(), timeout=callers.LONG_SECONDS)
        assert next(told).status == health_pb2.HealthCheckResponse.SERVING
        with ThreadPoolExecutor(1) as ending:
            left = ending.submit(server.stop, callers.LONG_SECONDS)
            assert next(told).status == health_pb2.HealthCheckResponse.NOT_SERVING
            told.cancel()
            assert left.result() == 0


# Start and end.


def test_the_socket_is_narrow_and_gone_in_the_end(tmp_path: Path) -> None:
    server, path = HookServer([Obedient()], "server"), tmp_path / "a.sock"
    server.start(str(path))
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert server.stop(0) == 0
    assert os.listdir(tmp_path) == ["a.sock.lock"]
    assert server.stop(0) == 0


def test_a_start_that_fails_can_be_stopped_and_another_one_works(tmp_path: Path) -> None:
    (tmp_path / "a.sock").write_text("mine")
    first = HookServer([Obedient()], "server")
    with pytest.raises(ConfigError, match="is no socket; remove it"):
        first.start(str(tmp_path / "a.sock"))
    assert first.stop(0) == 0
    second = HookServer([Obedient()], "server")
    second.start(str(tmp_path / "b.sock"))
    assert second.stop(0) == 0


def test_a_socket_that_cannot_be_bound_is_an_error(tmp_path: Path) -> None:
    server = HookServer([Obedient()], "server")
    (tmp_path / "a.sock.lock").touch()
    (tmp_path / f".{(tmp_path / 'a.sock.lock').stat().st_ino}.sock").mkdir()  # where the socket would be made
    with pytest.raises(ConfigError, match="gRPC could not bind there; set --endpoint"):
        server.start(str(tmp_path / "a.sock"))
    assert server.stop(0) == 0


def test_the_end_cuts_off_what_hangs_and_counts_it(tmp_path: Path) -> None:
    released = threading.Event()
    entered = threading.Barrier(2)

    class Hanging(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            entered.wait(callers.LONG_SECONDS)
            released.wait(callers.LONG_SECONDS)

    server, path = HookServer([Hanging()], "server"), str(tmp_path / "a.sock")
    server.start(path)
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(callers.status, path, request())
        entered.wait(callers.LONG_SECONDS)
        assert server.stop(0.1) == 1
        assert waiting.result()[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    released.set()
    eventually(lambda: server.stop(0) == 0)


def test_the_end_cuts_off_async_methods(tmp_path: Path) -> None:
    hook = Waiting()
    server, path = HookServer([hook], "server"), str(tmp_path / "a.sock")
    server.start(path)
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(callers.status, path, request())
        assert hook.began.wait(callers.LONG_SECONDS)
        assert server.stop(0.1) == 0
        assert waiting.result()[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert hook.cut_off.wait(callers.LONG_SECONDS)
