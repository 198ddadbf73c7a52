"""The Docker front for tests: a fake dockerd, and dockershim's calls for a kubelet.

A request is its head and body. Only a caller's has the API's version in its path, the proxy's own ones have not.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.docker.client import Answer, Client, request
from tests.engines.images import PAUSE_IMAGE
from tests.fakes import dockershim_bodies as bodies
from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_shapes import ENGINES, Engine, go_json
from tests.fakes.dockershim_bodies import Container, Pod, Values
from tests.system.fronts import POD, SECONDS, Caller, Failed, Front

VERSION = "/v1.41"
CREATE = "POST /containers/create"
ROUTES = {
    "run_pod": CREATE,
    "create": CREATE,
    "start": "POST /containers/{ref}/start",
    "update": "POST /containers/{ref}/update",
    "stop": "POST /containers/{ref}/stop",
    "remove": "DELETE /containers/{ref}",
    "stop_pod": "POST /containers/{ref}/stop",
    "remove_pod": "DELETE /containers/{ref}",
    "pod_status": "GET /containers/{ref}/json",
    "ping": "GET /_ping",
    "list": "GET /containers/json",
    "images": "GET /images/json",
}
QUERIES = {"stop": "?t=0", "stop_pod": "?t=10", "remove": "?force=1&v=1", "remove_pod": "?force=1&v=1"}
UPGRADE = ("Connection: Upgrade", "Upgrade: tcp")
POD_NAME = "name=k8s_POD_"
ENDED = "the connection ended"


class DockerRuntime(FakeDockerd):
    def __init__(self, socket_path: str, **more: Any) -> None:
        super().__init__(socket_path, keep_body_bytes=32 << 20, **more)

    def _of_callers(self) -> Iterator[tuple[str, bytes]]:
        for received in self.received:
            if received.target.startswith("/v"):
                of_pod = POD_NAME in received.target or any(pod_id in received.target for pod_id in self.pod_ids())
                for verb, route in ROUTES.items():
                    if route == received.route and of_pod == verb.endswith(("_pod", "pod_status")):
                        yield verb, received.raw
                        break

    def arrived(self, verb: str) -> list[bytes]:
        return [raw for arrived, raw in self._of_callers() if arrived == verb]

    def set_fault(self, verb: str, *, delay_seconds: float = 0.0, text: str = "") -> None:
        status = 500 if text else 0
        self.inject(ROUTES[verb], Injection(delay_seconds=delay_seconds, status=status, message=text))

    def _ids(self, kind: str) -> list[str]:
        label = "io.kubernetes.docker.type"
        return [c.id for c in self.state.containers.values() if (c.config["Labels"] or {}).get(label) == kind]

    def pod_ids(self) -> list[str]:
        return self._ids("podsandbox")

    def container_ids(self) -> list[str]:
        return self._ids("container")

    def reads(self) -> int:
        return sum(not received.target.startswith("/v") for received in self.requests(ROUTES["pod_status"]))

    def vanish(self, subject_id: str) -> None:
        del self.state.containers[subject_id]

    def long_list(self, count: int, total_bytes: int) -> bytes:
        self.fill_list(count, total_bytes)
        return self.big_list or b""


class _Stream:
    """An exec of ``cat`` on a terminal: raw bytes both ways."""

    def __init__(self, client: Client) -> None:
        self._client, self.close = client, client.close

    async def write(self, data: bytes) -> None:
        self._client.send(data)

    async def read(self) -> bytes:
        if data := await self._client.reader.read(1 << 16):
            return data
        raise Failed(None, ENDED)


class DockerCaller(Caller):
    """A kubelet that speaks through dockershim; ``version`` is the prefix of every path."""

    def __init__(self, socket: Path | str, *, version: str = VERSION) -> None:
        super().__init__()
        self._socket = str(socket)
        self._version = version
        self._idle: list[Client] = []
        self._tunnels: list[Client] = []

    async def close(self) -> None:
        for client in (*self._idle, *self._tunnels):
            await client.close()

    async def send(self, verb: str, request: bytes, seconds: float = SECONDS) -> bytes:
        return (await self._answer(request, seconds)).body

    async def _answer(self, data: bytes, seconds: float = SECONDS) -> Answer:
        self._idle = [client for client in self._idle if not client.reader.at_eof()]
        client = self._idle.pop() if self._idle else await Client.connect(self._socket)
        try:
            async with asyncio.timeout(seconds):
                client.send(data)
                answer = await client.answer()
        except BaseException as error:
            client.abort()
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
                raise Failed(None, ENDED if not isinstance(error, TimeoutError) else "its time has ended") from None
            raise
        if answer.headers.get("connection") == "close":
            await client.close()
        else:
            self._idle.append(client)
        return _checked(answer)

    async def run_pod(self, pod: Pod = POD) -> str:
        pod_id = await super().run_pod(pod)
        await self.act("start", pod_id)
        return pod_id

    def _request(self, method: str, path: str, body: Any = None, *lines: str) -> bytes:
        return request(method, self._version + path, b"" if body is None else go_json(body), *lines)

    def pod_request(self, pod: Pod) -> bytes:
        body = bodies.sandbox_body(pod, PAUSE_IMAGE, "cgroupfs")
        return self._request("POST", f"/containers/create?name={bodies.sandbox_name(pod)}", body)

    def container_request(self, pod_id: str, container: Container) -> bytes:
        pod = self.pods.get(pod_id, POD)
        body = bodies.container_body(pod, container, pod_id, "cgroupfs")
        return self._request("POST", f"/containers/create?name={bodies.container_name(pod, container)}", body)

    def update_request(self, container_id: str, resources: Values, annotations: Mapping[str, str]) -> bytes:
        return self._request("POST", f"/containers/{container_id}/update", bodies.update_body(resources, True))

    def request(self, verb: str, subject_id: str = "") -> bytes:
        method, _, path = ROUTES[verb].partition(" ")
        body = bodies.update_body({}, True) if verb == "update" else None
        return self._request(method, path.replace("{ref}", subject_id) + QUERIES.get(verb, ""), body)

    def broken_request(self, verb: str, text: bytes) -> bytes:
        method, _, path = ROUTES[verb].partition(" ")
        target = self._version + path.replace("{ref}", text.decode())
        if verb == "start":
            return request(method, target)
        return request(method, target, b'{"Labels":{"io.kubernetes.docker.type":"podsandbox","secret":"' + text)

    def id_in(self, verb: str, reply: bytes) -> str:
        return str(json.loads(reply)["Id"])

    async def open_stream(self) -> _Stream:
        container_id = await self.create(await self.run_pod())
        await self.act("start", container_id)
        config = {**bodies.exec_body(["cat"]), "AttachStdin": True, "Tty": True}
        reply = json.loads((await self._answer(self._request("POST", f"/containers/{container_id}/exec", config))).body)
        client = await Client.connect(self._socket)
        self._tunnels.append(client)
        client.send(self._request("POST", f"/exec/{reply['Id']}/start", {"Detach": False, "Tty": True}, *UPGRADE))
        assert b" 101 " in await client.reader.readuntil(b"\r\n\r\n")
        return _Stream(client)

    async def call_unheld(self, secret: str) -> None:
        auth = f"X-Registry-Auth: {secret}"
        container_id = await self.create(await self.run_pod())
        for data in (
            self._request("POST", f"/containers/{container_id}/exec", bodies.exec_body(["/bin/sh", "-c", secret])),
            self._request("POST", f"/images/create?fromImage={secret}&tag=1", None, auth),
            self._request("GET", f"/{secret}/{secret}?{secret}={secret}", None, f"Authorization: {secret}"),
            self._request("POST", f"/containers/{secret}/start"),
            self._request("POST", f"/containers/create?name={secret}", {"Image": secret, "Env": [f"A={secret}"]}),
            f"GET /{secret} HTTP/1.1\r\n{secret}\r\n\r\n".encode(),
            f"GET /{secret} HTTP/9.{secret}\r\n\r\n".encode(),
            request("POST", f"/{secret}", b"", f"Content-Length: {secret}", f"Transfer-Encoding: {secret}"),
            f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{secret}".encode(),
        ):
            with suppress(Failed):
                await self._answer(data, seconds=1)


def _checked(answer: Answer) -> Answer:
    if answer.status < 400:
        return answer
    raise Failed(answer.status, answer.message if "json" in answer.headers.get("content-type", "") else "")


async def exchange(socket: Path | str, verb: str = "ping", request: bytes = b"", *, version: str = VERSION) -> bytes:
    client = await Client.connect(str(socket))
    try:
        client.send(request or DockerCaller(socket, version=version).request(verb))
        return _checked(await client.answer()).body
    except (Failed, asyncio.IncompleteReadError) as error:
        raise ConnectionError(str(error)) from None
    finally:
        client.abort()


DOCKER = Front(
    name="docker",
    flags={"backend_runtime_mode": "Docker"},
    runtime=DockerRuntime,
    caller=DockerCaller,
    exchange=exchange,
    failed=500,
    refused=500,
    lost=None,
    default_socket="run/docker.sock",
    never_imported=("runtimeproxy.cri",),
)


def _of(engine: Engine) -> Front:
    """Return the front for an engine; its clients use the engine's newest API."""
    version = f"/v{engine.api}"
    return replace(
        DOCKER,
        name=f"docker {engine.name}",
        runtime=partial(DockerRuntime, engine=engine),
        caller=partial(DockerCaller, version=version),
        exchange=partial(exchange, version=version),
    )


DOCKER_ENGINES = tuple(map(_of, ENGINES))
"""The front with each version of the daemon, the oldest first."""
