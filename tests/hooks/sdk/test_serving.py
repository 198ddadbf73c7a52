"""Hook servers: classes of hooks, results of exceptions, the gRPC server on real sockets, and servers as processes."""

import asyncio
import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import lru_cache, partialmethod, wraps
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any
from unittest import mock

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.wire import grpc as codes
from runtimeproxy_hooks.sdk import ContainerContext, Hook, Malformed, NotSayable, Rejected, statuses
from runtimeproxy_hooks.sdk.hook import call_hooks
from runtimeproxy_hooks.sdk.serving import BackgroundLoop, HookServer
from tests.hooks.sdk import processes
from tests.hooks.sdk.processes import CREATE, LONG_SECONDS, SECRET, Dreamy, Obedient, eventually, request, status

Log = pytest.LogCaptureFixture
Serve = Callable[..., str]


def new_class(*parents: type, **members: Any) -> Any:
    return type("New", parents or (Hook,), members)


async def generator(self: Hook, container: ContainerContext) -> AsyncIterator[None]:
    yield


MEANT = {
    **dict.fromkeys(("pre_creat_container", "PreCreateContainer"), r", did you mean pre_create_container\?"),
    "PostStopPodSandboxHook": r", did you mean post_stop_pod_sandbox\?",
    **{"pre_remove_run_pod_sandbox": r", did you mean pre_run_pod_sandbox\?", "pre_x": ":"},
}
MISSPELT = r"is not a hook point{} There are pre_run_.*post_stop_pod_sandbox\. Give a method"
NO_METHOD = r"must be a method, plain or async, and no generator$"
ONE_PARAMETER = r"must have one parameter: def pre_start_container\(self, container\)$"
WRONG_PARAMETERS = (
    *(lambda self: None, lambda self, container, more: None, lambda self, *, container: None),
    staticmethod(lambda self, container: None),
)
MISTAKES: list[tuple[str, Any, str]] = [
    *((name, value, MISSPELT.format(hint)) for name, hint in MEANT.items() for value in (repr, staticmethod(repr))),
    *(("pre_start_container", value, NO_METHOD) for value in ("x", property(lambda self: None), generator)),
    *(("pre_start_container", value, ONE_PARAMETER) for value in WRONG_PARAMETERS),
]


@pytest.mark.parametrize(("name", "value", "words"), MISTAKES)
def test_mistake_in_method_is_error_of_class(name: str, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"^New\.{name} {words}"):
        new_class(**{name: value})


CALLABLE = [
    *(lambda self, container, more=3: None, lambda self, *all, **more: None, repr, bool),
    *(staticmethod(bool), staticmethod(lambda container: None), classmethod(lambda cls, container: None)),
    *(partialmethod(lambda self, more, container: None, "more"), lru_cache(lambda self, container: None)),
    wraps(lambda self, container, more: None)(
        lambda self, container: None
    ),  # the signature of the callable itself, not of the wrapped one
]


NAMES = ("RunPodSandbox", "CreateContainer", "StartContainer")


def test_any_callable_and_methods_of_parents_are_hook_points() -> None:
    called = HookRequest(PodInfo(), ContainerInfo())
    for value in CALLABLE:
        call_hooks([new_class(pre_start_container=value)()], BY_NAME["PreStartContainer"], called, pytest.fail)
    mixin = type("Mixin", (), {"pre_run_pod_sandbox": lambda self, pod: None})
    parent = new_class(pre_create_container=lambda self, container: None, pre_start_container=repr)
    assert new_class(mixin, parent)().points == tuple(BY_NAME[f"Pre{name}"] for name in NAMES)
    assert new_class(parent, pre_create_container=None)().points == (BY_NAME["PreStartContainer"],)  # None removes one
    assert new_class(prepare=repr, postpone=repr, _pre_create_container=repr, post_url="/x")().points == ()
    with pytest.raises(TypeError, match=r"^New\.pre_run_pod is not a hook point"):
        new_class(type("Mixin", (), {"pre_run_pod": lambda self, pod: None}), Hook)


class Raising(Hook):
    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def pre_create_container(self, container: ContainerContext) -> None:
        raise self.error


class Deleting(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        del container.env["A"]  # the SDK raises


def status_of(*hooks: Hook) -> tuple[int, str]:
    try:
        call_hooks(hooks, CREATE, request(), pytest.fail)
    except BaseException as error:
        return statuses.status(error, "server", CREATE, request())
    raise AssertionError("nothing was raised")


def internal(name: str, hook: str = "raising") -> tuple[int, str]:
    return codes.INTERNAL, f"{hook} at PreCreateContainer raised {name}; its log shows where"


MALFORMED = Malformed("annotation A", "must be JSON")
INVALID = (codes.INVALID_ARGUMENT, "annotation A: must be JSON")
MOST = statuses.MAX_TEXT
TEXTS = [("x" * MOST, "x" * MOST), ("x" * (MOST + 1), "x" * (MOST - 1) + "…"), ("a\udc80b", "a?b")]
CANCELED = ": canceled, because the caller no longer waits: ns/pod/main"
STATUSES = [
    *((Rejected(text), (codes.PERMISSION_DENIED, sent), "INFO", " rejected ns/pod/main") for text, sent in TEXTS),
    (MALFORMED, INVALID, "WARNING", ": cannot read annotation A of ns/pod/main: must be JSON"),
    (NotSayable("0 is no value"), internal("NotSayable"), "ERROR", ": at {}: 0 is no value"),
    (KeyError(SECRET), internal("KeyError"), "ERROR", ": KeyError at {} for ns/pod/main"),
    (SystemExit(SECRET), internal("SystemExit"), "ERROR", ": SystemExit at {} for ns/pod/main"),
    (CancelledError(), internal("CancelledError"), "WARNING", CANCELED),
]


@pytest.mark.parametrize(("error", "expected", "level", "line"), STATUSES)
def test_error_has_its_status_and_line(caplog: Log, error: BaseException, expected: Any, level: str, line: str) -> None:
    caplog.set_level(logging.INFO)
    after = new_class(pre_create_container=lambda self, container: pytest.fail("it was called"))()
    assert status_of(Hook(), Raising(error), after) == expected
    [record] = caplog.records
    place = f"{__file__}:{Raising.pre_create_container.__code__.co_firstlineno + 1}"
    assert record.levelname == level
    assert record.getMessage() == f"raising at PreCreateContainer{line.format(place)}"


def test_place_is_in_hook_module_and_log_has_no_text(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    for hook in (Deleting(), Raising(KeyError(SECRET))):
        status_of(hook)
        assert f" at {__file__}:{type(hook).pre_create_container.__code__.co_firstlineno + 1}" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "DEBUG"]
    assert "raise self.error" in caplog.messages[2]
    with pytest.raises(OverflowError) as raised:
        raise OverflowError(SECRET)
    assert statuses.status(raised.value, "server", CREATE, request()) == internal("OverflowError", "server")
    assert f"server at PreCreateContainer: OverflowError at {__file__}:" in caplog.text
    assert SECRET not in caplog.text


# The gRPC server.
OK, ENDED = (grpc.StatusCode.OK, ""), (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


def started(folder: Path, *hooks: Hook) -> tuple[str, HookServer]:
    path, server = str(folder / "a.sock"), HookServer(hooks, "server")
    server.start(path)
    return path, server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts a server of hooks and returns its socket's path; it is stopped at the end."""
    servers: dict[str, HookServer] = {}
    yield lambda *hooks: servers.update([started(tmp_path, *hooks)]) or next(iter(servers))
    assert [server.stop(0) for server in servers.values()] == [0] * len(servers)


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
    assert await processes.call(path, sent) == HookAnswer(envs={"A": "1", "MARKS": "dod"}, resources=resources)
    of_a_pod = await processes.call(path, HookRequest(PodInfo(labels={"a": "b"})), BY_NAME["PostStopPodSandbox"])
    assert of_a_pod.labels == {"a": "b"}


UNLOADED = {"testing": "aiohttp grpc uvloop", "serving": "aiohttp uvloop"}
UNLOADED["pytest_plugin"] = "grpc google.protobuf yaml runtimeproxy.hookapi runtimeproxy_hooks.sdk.testing"


@pytest.mark.slow
@pytest.mark.parametrize("module", UNLOADED)
def test_sdk_imports_only_required_modules(module: str) -> None:
    unloaded = set(UNLOADED[module].split())
    script = f"import sys, runtimeproxy_hooks.sdk.{module}; sys.exit(bool({unloaded} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.slow  # requests of 10 and 17 MiB
@pytest.mark.parametrize(("hook", "raised"), [(Obedient(), "SystemExit"), (Dreamy(), "RuntimeError")])
def test_exception_becomes_status_and_server_continues(serve: Serve, caplog: Log, hook: Hook, raised: str) -> None:
    caplog.set_level(logging.DEBUG)
    path, name = serve(hook), type(hook).__name__.lower()
    text = f"{name} at PreCreateContainer raised {raised}; its log shows where"
    assert status(path, request("leave", other=SECRET)) == (grpc.StatusCode.INTERNAL, text)
    assert status(path, request("refuse")) == (grpc.StatusCode.PERMISSION_DENIED, "not on my node")
    assert status(path, request()) == OK
    assert SECRET not in caplog.text
    text = "ContainerResourceHookRequest that is not a well-formed protobuf message"
    assert processes.bare(path, codec.PATHS[CREATE.name], b"\xff\xff\xff") == (grpc.StatusCode.INVALID_ARGUMENT, text)
    unserved = processes.bare(path, codec.PATHS["PreStartContainer"], b"")
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
    answers = await asyncio.gather(*(processes.call(path, request()) for _ in range(3)))
    assert len({answer.envs["THREAD"] for answer in answers}) == 1


def test_method_is_cancelled_when_its_call_ends(serve: Serve, caplog: Log) -> None:
    path, seconds = serve(hook := Controlled()), 0.2
    while not hook.entered.acquire(blocking=False):  # on a busy machine the method may start late
        assert status(path, request("sleep"), seconds)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    assert hook.cancelled.wait(LONG_SECONDS)
    eventually(lambda: "controlled at PreCreateContainer: canceled, because" in caplog.text)


@pytest.mark.timeout(10)
def test_wait_after_end_of_call_is_cancelled(tmp_path: Path) -> None:
    _, server = started(tmp_path, Obedient())
    with pytest.raises(CancelledError):
        server._wait(mock.Mock(add_callback=lambda cancel: False), asyncio.Event().wait())
    assert server.stop(0) == 0


def test_socket_that_cannot_be_bound_is_error(tmp_path: Path) -> None:
    server = HookServer([Obedient()], "server")
    (tmp_path / "a.sock.lock").touch()
    (tmp_path / f".{(tmp_path / 'a.sock.lock').stat().st_ino}.sock").mkdir()  # where the socket would be created
    with pytest.raises(ConfigError, match="gRPC could not bind there; set --endpoint"):
        server.start(str(tmp_path / "a.sock"))
    assert server.stop(0) == 0


@pytest.mark.parametrize("service", ["", codec.SERVICE])
def test_stop_notifies_answers_running_and_refuses_new_calls(tmp_path: Path, service: str) -> None:
    path, server = started(tmp_path, hook := Controlled())
    with ThreadPoolExecutor(2) as threads, grpc.insecure_channel(f"unix:{path}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watched = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=LONG_SECONDS)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        waiting = threads.submit(status, path, request("hang"))
        assert hook.entered.acquire(timeout=LONG_SECONDS)
        ending, code = threads.submit(server.stop, LONG_SECONDS), grpc.StatusCode.OK
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watched.cancel()
        # Until the shutdown has begun; grpcio may not answer a call at that moment (#10418).
        while code in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED):
            code = status(path, request("nothing"), 1)[0]
        assert code in ENDED
        hook.release.set()
        assert (waiting.result(), ending.result()) == (OK, 0)


@pytest.mark.parametrize(("do", "running"), [("hang", 1), ("sleep", 0)])
def test_stop_cancels_and_counts_running_calls(tmp_path: Path, do: str, running: int) -> None:
    path, server = started(tmp_path, hook := Controlled())
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(status, path, request(do))
        assert hook.entered.acquire(timeout=LONG_SECONDS)
        assert server.stop(0.1) == running
        assert waiting.result()[0] in ENDED
    assert hook.cancelled.wait(LONG_SECONDS if do == "sleep" else 0) == (do == "sleep")
    hook.release.set()
    eventually(lambda: server.stop(0) == 0)


@pytest.mark.parametrize("after", [False, True])
def test_late_coroutine_is_cancelled(after: bool) -> None:
    """The loop may have ended its last iteration, and never runs a later submission."""
    never: Any = object()
    loop, unseen = BackgroundLoop(), Future[None]()
    with mock.patch("asyncio.run_coroutine_threadsafe", side_effect=lambda late, _: late.close() or unseen):
        if after:
            loop.close(LONG_SECONDS)
        waited_for = loop.submit(never)
        loop.close(LONG_SECONDS)
    with pytest.raises(CancelledError):
        waited_for.result(LONG_SECONDS)


def test_blocked_event_loop_does_not_delay_its_close() -> None:
    async def block() -> None:
        began.release()
        assert released.wait(LONG_SECONDS)

    loop, began, released = BackgroundLoop(), threading.Semaphore(0), threading.Event()
    running = loop.submit(block())
    assert began.acquire(timeout=LONG_SECONDS)
    loop.close(0.05)
    assert not running.done()
    released.set()
    running.result(LONG_SECONDS)


# A process.
POINTS = ["PreCreateContainer", "PostStopPodSandbox"]
FLAGS = ("--order=7", "--failure-policy=Fail", "--timeout=500ms", "--mark=x", "--unregister")
FILE, SECOND = "obedient-dreamy.json", "07-obedient-dreamy.json"
LIVES: list[tuple[Signals, tuple[str, ...], str, dict[str, str], str]] = [
    (SIGTERM, ("--failure-policy=Fail",), FILE, {"failure-policy": "Fail"}, "od"),
    (SIGKILL, (), FILE, {"failure-policy": "Ignore"}, "od"),
    (SIGINT, FLAGS, SECOND, {"failure-policy": "Fail", "timeout": "500ms"}, "ox"),
]


@pytest.mark.slow
async def test_server_registers_serves_and_cleans_up(tmp_path: Path) -> None:
    for number, flags, file, more, marks in LIVES:
        with processes.running(tmp_path, *flags, file=file) as server:
            entry = {"remote-endpoint": str(server.socket), "runtime-hooks": POINTS, **more}
            assert (json.loads(server.file.read_text()), os.listdir(server.registrations)) == (entry, [file])
            assert stat.S_IMODE(server.socket.lstat().st_mode) == 0o600
            assert (await processes.call(str(server.socket), request())).envs == {"MARKS": marks}
            killed, left = number is SIGKILL, [] if "--unregister" in flags else [file]  # it stays under Fail
            assert server.end(number) == (-SIGKILL if killed else 0)
            assert (os.listdir(server.registrations), server.socket.is_socket()) == (left, killed)
        serves = f"obedient-dreamy serves {', '.join(POINTS)} on {server.socket}, registered in {server.file}"
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) runtimeproxy_hooks", server.log)
        assert f"Z INFO runtimeproxy_hooks.sdk.command: {serves}\n" in server.log
        assert (f" {number.name}: ending\n" in server.log) != killed
        assert (f"{server.file} stays, because its policy is Fail: calls are refused until" in server.log) == (
            number is SIGTERM
        )
    assert f" WARNING runtimeproxy_hooks.sdk.registering: {tmp_path}/hookserver.d/{FILE} " in server.log
    (tmp_path / "hookserver.d").rmdir()
    (tmp_path / "hookserver.d").write_text("no directory")
    server = processes.Process(tmp_path)
    assert (server.process.wait(LONG_SECONDS), server.socket.exists()) == (1, False)
    words = f"cannot write {tmp_path}/hookserver.d/{FILE}: File exists"
    assert server.log == f"obedient-dreamy: error: {words}; check the directory or set --register-dir\n"


@pytest.mark.slow
def test_hanging_call_is_abandoned_and_no_value_is_logged(tmp_path: Path) -> None:
    with processes.running(tmp_path, "--log-level=debug", "--register-dir=") as server, ThreadPoolExecutor(1) as caller:
        status(str(server.socket), request(other=SECRET))
        waiting = caller.submit(status, str(server.socket), request("hang"))
        eventually(lambda: processes.BEGAN in server.log)
        assert server.end(SIGTERM) == 0
        assert waiting.result()[0] in ENDED
        assert (server.socket.exists(), server.registrations.exists()) == (False, False)
        assert f" on {server.socket}, not registered\n" in server.log
        assert re.search(r" DEBUG \S+: PreCreateContainer: ns/pod/main in \d+\.\d{3} ms\n", server.log)
        assert server.log.endswith("calls that did not end in time and are abandoned: 1\n")
        assert SECRET not in server.log
        assert " asyncio: " not in server.log  # the debug lines of libraries may contain values


@pytest.mark.slow
def test_file_is_rewritten_until_sigterm_and_calls_served(tmp_path: Path) -> None:
    with processes.running(tmp_path) as server:
        server.file.write_bytes(b"{}")
        eventually(lambda: f"{server.file} was changed: written again" in server.log)
        server.process.send_signal(SIGTERM)
        eventually(lambda: "ending" in server.log and not server.file.exists())
        server.file.write_bytes(b"foreign")
        assert status(str(server.socket), request()) == OK
        assert server.process.wait(LONG_SECONDS) == 0
        assert server.file.read_bytes() == b"foreign"
