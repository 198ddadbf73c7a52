"""The gRPC server of hooks, on real sockets: answers, statuses, limits, health, the event loop, and the shutdown."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy_hooks.sdk import ContainerContext, Hook
from runtimeproxy_hooks.sdk.serving import BackgroundLoop, HookServer
from tests.hooks.sdk.processes import (
    CREATE,
    LONG_SECONDS,
    SECRET,
    Dreamy,
    Obedient,
    bare,
    call,
    eventually,
    request,
    status,
)

METHOD = codec.PATHS[CREATE.name]
OK = (grpc.StatusCode.OK, "")
ENDED = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)

Serve, Log = Callable[..., str], pytest.LogCaptureFixture


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.sock")


def started(path: str, *hooks: Hook) -> HookServer:
    server = HookServer(hooks, "server")
    server.start(path)
    return server


@pytest.fixture
def serve(path: str) -> Iterator[Serve]:
    """Return a function that starts a server of hooks and returns its socket's path; it is stopped at the end."""
    servers: list[HookServer] = []
    yield lambda *hooks: servers.append(started(path, *hooks)) or path
    assert [server.stop(0) for server in servers] == [0] * len(servers)


class Controlled(Hook):
    """Runs the action of the pod's annotation; reports when a call arrived and when it was cancelled."""

    def __init__(self) -> None:
        self.entered, self.release, self.cancelled = threading.Semaphore(0), threading.Event(), threading.Event()

    def pre_create_container(self, container: ContainerContext) -> Any:
        self.entered.release()
        if container.pod.annotations["do"] == "hang":
            assert self.release.wait(LONG_SECONDS)
        return self.sleep() if container.pod.annotations["do"] == "sleep" else None

    async def sleep(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


async def test_answer_is_echo_with_edits_of_all_hooks(serve: Serve) -> None:
    class Edits(Hook):
        def pre_create_container(self, container: ContainerContext) -> None:
            container.resources.cpu_shares = 2

    sent = HookRequest(PodInfo(), ContainerInfo(envs={"A": "1"}, resources=Resources(cpu_quota=5000)))
    resources = Resources(cpu_quota=5000, cpu_shares=2)
    path = serve(Dreamy(), Edits(), Obedient(), Dreamy())
    assert await call(path, sent) == HookAnswer(envs={"A": "1", "MARKS": "dod"}, resources=resources)
    of_a_pod = await call(path, HookRequest(PodInfo(labels={"a": "b"})), BY_NAME["PostStopPodSandbox"])
    assert of_a_pod.labels == {"a": "b"}


UNLOADED = [
    ("sdk.testing", "aiohttp grpc uvloop"),
    ("sdk.serving", "aiohttp uvloop"),
    ("sdk.pytest_plugin", "grpc google.protobuf yaml runtimeproxy.hookapi runtimeproxy_hooks.sdk.testing"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "unloaded"), UNLOADED)
def test_sdk_imports_only_required_modules(module: str, unloaded: str) -> None:
    script = f"import sys, runtimeproxy_hooks.{module}; sys.exit(bool({set(unloaded.split())} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(("hook", "raised"), [(Obedient(), "SystemExit"), (Dreamy(), "RuntimeError")])
def test_exception_becomes_status_and_server_continues(serve: Serve, caplog: Log, hook: Hook, raised: str) -> None:
    caplog.set_level(logging.DEBUG)
    path, name = serve(hook), type(hook).__name__.lower()
    text = f"{name} at PreCreateContainer raised {raised}; its log shows where"
    assert status(path, request("leave", other=SECRET)) == (grpc.StatusCode.INTERNAL, text)
    assert status(path, request("refuse")) == (grpc.StatusCode.PERMISSION_DENIED, "not on my node")
    assert status(path, request()) == OK
    assert SECRET not in caplog.text


def test_call_that_cannot_be_served_is_refused(serve: Serve) -> None:
    path = serve(Obedient())
    text = "ContainerResourceHookRequest that is not a well-formed protobuf message"
    assert bare(path, METHOD, b"\xff\xff\xff") == (grpc.StatusCode.INVALID_ARGUMENT, text)
    unserved = bare(path, codec.PATHS["PreStartContainer"], b"")
    assert unserved == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    ten_mib, more = (HookRequest(PodInfo(), ContainerInfo(envs={"A": "x" * (mib << 20)})) for mib in (10, 17))
    assert status(path, ten_mib) == OK  # the answer has them, too
    assert status(path, more)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_async_methods_run_concurrently_on_one_loop(serve: Serve) -> None:
    class Meeting(Hook):
        met: asyncio.Barrier | None = None

        async def pre_create_container(self, container: ContainerContext) -> None:
            self.met = self.met or asyncio.Barrier(3)  # bound to the loop of its first waiter: there is only one loop
            await self.met.wait()
            container.env["THREAD"] = str(threading.get_ident())

    path = serve(Meeting())
    answers = await asyncio.gather(*(call(path, request()) for _ in range(3)))
    assert len({answer.envs["THREAD"] for answer in answers}) == 1


def test_method_is_cancelled_when_its_call_ends(serve: Serve, caplog: Log) -> None:
    path, seconds = serve(hook := Controlled()), 0.2
    while not hook.entered.acquire(blocking=False):  # on a busy machine the method may start late
        assert status(path, request("sleep"), seconds)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    assert hook.cancelled.wait(LONG_SECONDS)
    eventually(lambda: "controlled at PreCreateContainer: canceled, because" in caplog.text)


@pytest.mark.slow
def test_awaitable_is_cancelled_when_caller_disconnects(serve: Serve, caplog: Log) -> None:
    began, disconnected = threading.Event(), threading.Event()

    class Late(Hook):
        def pre_create_container(self, container: ContainerContext) -> Any:
            began.set()
            assert disconnected.wait(LONG_SECONDS)
            time.sleep(0.5)  # until the server has noticed
            return asyncio.Event().wait()

    path, seconds = serve(Late()), 0.2
    while not began.is_set():
        assert status(path, request(), seconds)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    disconnected.set()
    eventually(lambda: "late at PreCreateContainer: canceled, because" in caplog.text)


@pytest.mark.parametrize("service", ["", codec.SERVICE])
def test_health_watcher_is_notified_of_shutdown(path: str, service: str) -> None:
    server = started(path, Obedient())
    with grpc.insecure_channel(f"unix:{path}") as channel, ThreadPoolExecutor(1) as ending:
        health: Any = health_pb2_grpc.HealthStub(channel)
        statuses = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=LONG_SECONDS)
        assert next(statuses).status == health_pb2.HealthCheckResponse.SERVING
        stopped = ending.submit(server.stop, LONG_SECONDS)
        assert next(statuses).status == health_pb2.HealthCheckResponse.NOT_SERVING
        statuses.cancel()
        assert stopped.result() == 0


def test_socket_that_cannot_be_bound_is_error(tmp_path: Path) -> None:
    server = HookServer([Obedient()], "server")
    (tmp_path / "a.sock.lock").touch()
    (tmp_path / f".{(tmp_path / 'a.sock.lock').stat().st_ino}.sock").mkdir()  # where the socket would be created
    with pytest.raises(ConfigError, match="gRPC could not bind there; set --endpoint"):
        server.start(str(tmp_path / "a.sock"))
    assert server.stop(0) == 0


def test_stop_answers_running_calls_and_refuses_new_ones(path: str) -> None:
    server = started(path, hook := Controlled())
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(status, path, request("hang"))
        assert hook.entered.acquire(timeout=LONG_SECONDS)
        ending, code = threads.submit(server.stop, LONG_SECONDS), grpc.StatusCode.OK
        # Until the shutdown has begun; grpcio may not answer a call at that moment (#10418).
        while code in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED):
            code = status(path, request("nothing"), 1)[0]
        assert code in ENDED
        hook.release.set()
        assert (waiting.result(), ending.result()) == (OK, 0)


@pytest.mark.parametrize(("do", "running"), [("hang", 1), ("sleep", 0)])
def test_stop_cancels_and_counts_running_calls(path: str, do: str, running: int) -> None:
    server = started(path, hook := Controlled())
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(status, path, request(do))
        assert hook.entered.acquire(timeout=LONG_SECONDS)
        assert server.stop(0.1) == running
        assert waiting.result()[0] in ENDED
    assert hook.cancelled.wait(LONG_SECONDS if do == "sleep" else 0) == (do == "sleep")
    hook.release.set()
    eventually(lambda: server.stop(0) == 0)


def test_blocked_event_loop_does_not_delay_its_close() -> None:
    loop = BackgroundLoop()
    began, released = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        released.wait(LONG_SECONDS)

    running = loop.submit(block())
    assert began.wait(LONG_SECONDS)
    loop.close(0.05)
    assert not running.done()
    released.set()
    running.result(LONG_SECONDS)


@pytest.mark.parametrize("after", [False, True])
def test_late_coroutine_is_cancelled(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The loop may have ended its last iteration, and never runs a later submission."""
    loop = BackgroundLoop()
    unseen: Future[None] = Future()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda coroutine, _: coroutine.close() or unseen)

    class Never:
        def __await__(self) -> Generator[None, None, None]:
            raise AssertionError

    if after:
        loop.close(LONG_SECONDS)
    waited_for = loop.submit(Never())
    loop.close(LONG_SECONDS)
    with pytest.raises(CancelledError):
        waited_for.result(LONG_SECONDS)
