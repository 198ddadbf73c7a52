"""Python's clients of dockerd through a socket in between: the docker SDK and requests-unixsocket.

Each scenario runs twice on the same daemon: directly, and through ``between``; the results must be equal.
"""

import gc
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import docker  # type: ignore[import-untyped]  # it has no types
import pytest
import requests_unixsocket  # type: ignore[import-untyped]

from tests.engines.dockerd import BUSYBOX, Dockerd

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MEGABYTE = bytes(range(256)) * 4096
SLEEP = ["sleep", "1000"]
TALK = "for i in 1 2 3; do echo $i; sleep 0.05; done; exec sleep 1000"
"""Followed up to its last line, and ended then: a client that follows a log that ends with that line may miss it."""


@contextmanager
def client_of(path: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=f"unix://{path}", version="auto", timeout=60)
    try:
        yield client
    finally:
        client.close()
        gc.collect()  # it leaves a stream's socket to the collector: free it in this test, not in a later one


def running(client: docker.DockerClient, command: list[str] = SLEEP, **more: Any) -> Any:
    return client.containers.run(BUSYBOX, command, name="box", detach=True, **more)


def exec_with_half_close(client: docker.DockerClient) -> Any:
    """Send a megabyte, shut down writing, and only then read the answer."""
    box = running(client)
    answer = box.exec_run(["wc", "-c"], stdin=True, socket=True)
    connection = answer.output._sock
    connection.sendall(MEGABYTE)
    connection.shutdown(socket.SHUT_WR)
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    answer.output.close()
    assert received.endswith(b"1048576\n")
    return received


def attach(client: docker.DockerClient) -> Any:
    box = client.containers.create(BUSYBOX, ["sh", "-c", "read line; echo got $line"], stdin_open=True, name="box")
    attached = box.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
    box.start()
    attached._sock.sendall(b"a word\n")
    received = b"".join(iter(lambda: attached._sock.recv(65536), b""))
    attached.close()
    assert received.endswith(b"got a word\n")
    return received, box.wait()


def logs(client: docker.DockerClient) -> Any:
    box = running(client, ["sh", "-c", TALK])
    followed = b""
    for piece in box.logs(stream=True, follow=True):
        followed += piece
        if followed.endswith(b"3\n"):
            box.kill()
    assert followed == b"1\n2\n3\n"
    return followed, box.logs(tail=1)


def events(client: docker.DockerClient) -> Any:
    """Follow the events of a container from before its creation until it is removed."""
    stream = client.events(decode=True, filters={"type": "container"})
    running(client).remove(force=True)
    seen = []
    for event in stream:
        seen.append((event["Action"], event["Actor"]["Attributes"]))
        if event["Action"] == "destroy":
            break
    stream.close()
    assert [action for action, _ in seen] == ["create", "start", "kill", "die", "destroy"]
    return seen


SDK = (exec_with_half_close, attach, logs, events)
"""Features that it uses differently from the docker CLI."""


# From Python 3.13 on a response is flushed that the SDK has closed below it.
@pytest.mark.filterwarnings("ignore:.* <http.client.HTTPResponse:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed .socket.socket .*family=1:ResourceWarning")
@pytest.mark.parametrize("scenario", SDK, ids=lambda scenario: scenario.__name__)
def test_the_sdk_for_python(dockerd: Dockerd, between: str, scenario: Callable[[docker.DockerClient], Any]) -> None:
    seen = []
    for path in (dockerd.socket, between):
        with dockerd.restored(), client_of(path) as client:
            seen.append(scenario(client))
    assert seen[0] == seen[1]


class Requests:
    """A session of requests-unixsocket on a socket."""

    def __init__(self, path: str) -> None:
        self.session = requests_unixsocket.Session()
        self._base = f"http+unix://{quote(path, safe='')}"

    def __call__(self, method: str, path: str, **more: Any) -> Any:
        return self.session.request(method, f"{self._base}{path}", timeout=60, **more)

    def made(self, *command: str, **more: Any) -> str:
        body = {"Image": BUSYBOX, "Cmd": command, **more}
        return str(self("POST", "/containers/create?name=box", json=body).json()["Id"])


def every_version(http: Requests) -> Any:
    offered = http("GET", "/version").json()
    versions = (offered["MinAPIVersion"], offered["ApiVersion"], "9.99")
    paths = ("/_ping", *(f"/v{version}/version" for version in versions), "/nowhere")
    answers = [http("GET", path) for path in paths]
    head = http("HEAD", "/_ping")
    assert [answer.status_code for answer in (*answers, head)] == [200, 200, 200, 400, 404, 200]
    return [told(answer) for answer in (*answers, head)]


def told(answer: Any) -> Any:
    """Return status, headers except the time, and body."""
    headers = {name: value for name, value in answer.headers.items() if name != "Date"}
    return answer.status_code, answer.reason, headers, answer.content


def two_streams(http: Requests) -> Any:
    """Follow the daemon's events, and meanwhile the log of a container that ends."""
    http.made("sh", "-c", TALK, Tty=True)
    lines = []
    with http("GET", f"/events?since={time.time():.9f}", stream=True) as events:
        http("POST", "/containers/box/start")
        with http("GET", "/containers/box/logs?stdout=1&follow=1", stream=True) as log:
            for line in log.iter_lines():
                lines.append(line)
                if line == b"3":
                    http("POST", "/containers/box/kill")
        first_event = json.loads(next(events.iter_lines()))["Action"]
    assert (lines, first_event) == ([b"1", b"2", b"3"], "start")
    return lines, first_event


REQUESTS = (every_version, two_streams)


@pytest.mark.parametrize("scenario", REQUESTS, ids=lambda scenario: scenario.__name__)
def test_requests_unixsocket(dockerd: Dockerd, between: str, scenario: Callable[[Requests], Any]) -> None:
    seen = []
    for path in (dockerd.socket, between):
        http = Requests(path)
        with dockerd.restored(), http.session:
            seen.append(scenario(http))
    assert seen[0] == seen[1]
