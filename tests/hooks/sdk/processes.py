"""Hook servers as processes, and calls of a server: by the proxy's client, or returning the gRPC status.

Run alone, it is a hook server whose hooks do what the pod's annotation ``do`` requests.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy.plugins.client import HookClient
from runtimeproxy_hooks.sdk import ContainerContext, Hook, PodContext, main, reject

CREATE = BY_NAME["PreCreateContainer"]
LONG_SECONDS = 20.0
ROOT = Path(__file__).parents[3]
CHILD = ("-m", "tests.hooks.sdk.processes")
BEGAN = "reported to wait"  # printed to stderr when a method begins to wait
SECRET = "canary-4711"  # in annotations and foreign exceptions; no output may contain it


def act(container: ContainerContext, mark: str) -> None:
    match container.pod.annotations.get("do"):
        case "refuse":
            reject("not on my node")
        case "leave":
            sys.exit(SECRET)
        case "hang":
            print(BEGAN, file=sys.stderr, flush=True)
            time.sleep(3600)
    container.env["MARKS"] = container.env.get("MARKS", "") + mark


class Obedient(Hook):
    def pre_create_container(self, container: ContainerContext) -> None:
        act(container, "o")


class Dreamy(Hook):
    """The same on the event loop; the action may block."""

    name, mark = "dreamy", "d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mark", default="d")

    def configure(self, arguments: argparse.Namespace) -> None:
        self.mark = mark = arguments.mark
        if len(Path(mark).read_text() if mark.startswith("/") else mark) != 1:
            raise ValueError("--mark: write\none letter")

    async def pre_create_container(self, container: ContainerContext) -> None:
        await asyncio.sleep(0.001)
        act(container, self.mark)

    async def post_stop_pod_sandbox(self, pod: PodContext) -> None:
        await asyncio.sleep(0.001)


class Process:
    """One hook server that listens in a directory and registers in a directory below it."""

    def __init__(
        self, folder: Path, *flags: str, program: Sequence[str] = CHILD, file: str = "obedient-dreamy.json"
    ) -> None:
        self.socket, self.registrations = folder / "a.sock", folder / "hookserver.d"
        self.file = self.registrations / file
        self._log = folder / f"log-{time.monotonic_ns()}"
        where = (f"--endpoint={self.socket}", f"--register-dir={self.registrations}")
        with self._log.open("wb") as log:
            command, environ = [sys.executable, *program, *where, *flags], os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=environ)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(LONG_SECONDS)


@contextmanager
def running(folder: Path, *flags: str, **more: Any) -> Iterator[Process]:
    """Run a hook server and wait until it is registered. It is killed at the end if it still runs."""
    server = Process(folder, *flags, **more)
    try:
        eventually(lambda: " serves " in server.log or server.process.poll() is not None)
        assert server.process.poll() is None, server.log
        yield server
    finally:
        server.process.kill()
        server.process.wait(LONG_SECONDS)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.01)


def request(do: str = "", **annotations: str) -> HookRequest:
    """Return a request with the action of the child's hooks."""
    pod = PodInfo(name="pod", namespace="ns", annotations={"do": do} | annotations)
    return HookRequest(pod, ContainerInfo(name="main"))


async def call(path: str, hook_request: HookRequest, hook_point: HookPoint = CREATE) -> HookAnswer:
    """Make a call as the proxy does. Raises HookError."""
    client = HookClient("plugin", path)
    try:
        return await client.call(hook_point, hook_request, LONG_SECONDS)
    finally:
        await client.close()


def bare(path: str, method: str, body: bytes, seconds: float = LONG_SECONDS) -> tuple[grpc.StatusCode, str]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"unix:{path}", options=unlimited) as channel:
        send: Any = channel.unary_unary(method)
        outcome = send.future(body, timeout=seconds, wait_for_ready=False)
        return outcome.code(), outcome.details()  # they wait for the end of the call


def status(path: str, hook_request: HookRequest, seconds: float = LONG_SECONDS) -> tuple[grpc.StatusCode, str]:
    return bare(path, codec.PATHS[CREATE.name], codec.encode(CREATE, hook_request), seconds)


if __name__ == "__main__":
    main(Obedient(), Dreamy())
