"""What the fake dockerd has beyond a real one: its record, what goes wrong as told, other versions, said streams.

That it answers as a real one does is in test_dockerd_contract.py.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dockerd import DockerdState, FakeDockerd, Injection
from tests.fakes.dockerd_client import Raw, Reply, ask, exchange, until
from tests.fakes.dockerd_engines import ENGINE_20, ENGINE_28, ENGINE_29, Engine
from tests.fakes.dockerd_programs import frame
from tests.fakes.dockerd_records import Container

IMAGE = "runtimeproxy-busybox:1"
MIB = 1 << 20
START = "POST /containers/{ref}/start"
CREATE = "POST /containers/create"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: tcp\r\n"


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


@pytest.fixture
async def running(dockerd: FakeDockerd) -> Container:
    container = dockerd.state.create("c1", b"", {"Image": IMAGE})
    dockerd.state.start("c1")
    return container


async def call(dockerd: FakeDockerd, line: str, body: Any = None, **headers: str) -> Reply:
    method, target = line.split(" ", 1)
    return await ask(dockerd.socket_path, method, target, body, headers)


def request(line: str, *headers: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\nContent-Type: application/json\r\n" % len(body) if body else b""
    return f"{line} HTTP/1.1\r\nHost: d\r\n".encode() + b"".join(headers) + length + b"\r\n" + body


# ---- what came in


async def test_requests_are_kept_as_they_came(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    sent = (
        b"POST /containers/create?name=one&name=two HTTP/1.1\r\nhOst: docker\r\nX-Twice: 1\r\nX-Twice:  2\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'9;ext=1\r\n{"Image":\r\n1A\r\n"runtimeproxy-busybox:1"}\n\r\n0\r\nTrailer: x\r\n\r\n'
    )
    async with FakeDockerd(path, keep_received=2, keep_body_bytes=20) as fake:
        waiting = asyncio.create_task(fake.wait_for_requests(CREATE, 2))
        await call(fake, "GET /version")
        assert b" 201 Created" in await exchange(path, sent)
        assert not waiting.done()
        assert b" 201 Created" in await exchange(path, sent.replace(b"name=one&", b""))
        first, second = await waiting
        assert (first.method, first.target) == ("POST", "/containers/create?name=one&name=two")
        assert first.headers[:3] == (("hOst", "docker"), ("X-Twice", "1"), ("X-Twice", "2"))
        assert (first.head.query["name"], second.head.query["name"]) == ("one", "two")
        assert (first.body_bytes, len(first.body), len(first.wire_body), first.status) == (35, 20, 20, 201)
        assert (fake.counts[CREATE], list(fake.received)) == (2, [first, second])
        assert fake.container("one").request == b'{"Image":"runtimeproxy-busybox:1"}\n'
    async with FakeDockerd(path) as fake:
        await exchange(path, sent)
        assert fake.received[0].raw == sent


async def test_pipelined_requests_are_answered_in_order(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /version", Injection(delay_seconds=0.05))
    names = ("version", "info", "none", "_ping")
    requests = [request(f"GET /{name}") for name in names[:-1]]
    reply = await exchange(dockerd.socket_path, b"".join(requests) + request("GET /_ping", b"Connection: close\r\n"))
    starts = [reply.index(part) for part in (b'"Platform"', b'"CgroupDriver"', b"not found", b"\r\n\r\nOK")]
    assert starts == sorted(starts)
    assert [received.target for received in dockerd.received] == [f"/{name}" for name in names]
    assert {received.connection for received in dockerd.received} == {0}


async def test_bytes_that_came_before_an_upgrade_are_counted(dockerd: FakeDockerd, running: Container) -> None:
    made = (await call(dockerd, "POST /containers/c1/exec", {"Cmd": ["cat"], "AttachStdin": True})).json["Id"]
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request(f"POST /exec/{made}/start", UPGRADE, body=b"{}") + b"early")
        await raw.head()
        assert await raw.exactly(13) == frame(1, b"early")
    assert dockerd.received[-1].early_bytes == 5


async def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    path, state = str(tmp_path / "docker.sock"), DockerdState()
    async with FakeDockerd(path, state) as fake:
        made = (await call(fake, "POST /containers/create?name=c1", {"Image": IMAGE})).json["Id"]
    assert not Path(path).exists()
    async with FakeDockerd(path, state) as fake:
        assert (await call(fake, "GET /containers/c1/json")).json["Id"] == made


# ---- injections


async def test_an_injected_error_has_the_daemons_form(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": IMAGE})
    dockerd.inject(START, Injection(0.01, status=500, message='no "space" <left>', times=1))
    reply = await call(dockerd, "POST /v1.41/containers/c1/start")
    assert (reply.status, reply.body) == (500, b'{"message":"no \\"space\\" <left>"}\n')
    assert reply.headers["Api-Version"] == "1.41"
    assert (await call(dockerd, "POST /containers/c1/start")).status == 204
    with pytest.raises(KeyError, match="no such route"):
        dockerd.inject("POST /start", Injection())


async def test_a_call_hangs_until_it_is_released(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": IMAGE})
    injection = dockerd.inject(START, Injection(hang=True))
    hanging = asyncio.create_task(call(dockerd, "POST /containers/c1/start"))
    await until(lambda: injection.hanging == 1)
    assert dockerd.container("c1").status == "created"
    injection.release()
    assert (await hanging).status == 204


@pytest.mark.parametrize("count", [0, 1, 20, 10_000])
async def test_a_reply_is_cut(dockerd: FakeDockerd, count: int) -> None:
    dockerd.inject(CREATE, Injection(cut_after_bytes=count))
    sent = request(CREATE, b"Connection: close\r\n", body=b'{"Image":"%b"}' % IMAGE.encode())
    assert len(await exchange(dockerd.socket_path, sent)) == count or count == 10_000
    assert len(dockerd.state.containers) == 1


async def test_raw_bytes_and_a_close_are_injected(dockerd: FakeDockerd) -> None:
    dockerd.inject("GET /info", Injection(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"))
    dockerd.inject("GET /version", Injection(close=True))
    info, version = request("GET /info"), request("GET /version")
    reply = await exchange(dockerd.socket_path, info + version + info)
    assert reply.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nApi-Version")
    assert b"\r\nConnection: close\r\n" in reply
    assert len(dockerd.received) == 2


async def test_a_list_is_as_big_as_told(dockerd: FakeDockerd) -> None:
    dockerd.fill_list(200, 400_000)
    reply = await call(dockerd, "GET /v1.41/containers/json?all=1")
    assert abs(len(reply.body) - 400_000) < 400
    assert len({container["Id"] for container in reply.json}) == 200


# ---- streams


@pytest.mark.parametrize("line", ["POST /images/create?fromImage=web&tag=2", "POST /build?t=web:2"])
async def test_progress_comes_as_it_is_said(dockerd: FakeDockerd, line: str) -> None:
    feed = dockerd.feed(line.partition("?")[0])
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request(line))
        await raw.head()
        for said in (b'{"status":"1"}\r\n', b'{"status":"2"}\r\n'):
            feed.say(said)
            assert await raw.chunk() == said
        feed.end()
        assert await raw.chunk() == b""
        raw.send(request(line))  # without a feed: three lines
        await raw.head()
        assert [len(await raw.chunk()) > 0 for _ in range(4)] == [True, True, True, False]
    assert ("web:2" in dockerd.state.images.by_name) == ("images" in line)


async def test_a_load_reads_and_writes_at_once(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("POST /images/load", b"Transfer-Encoding: chunked\r\n"))
        raw.send(b"100000\r\n" + bytes(MIB) + b"\r\n")
        await raw.head()
        assert json.loads(await raw.chunk())["progressDetail"] == {"current": MIB}
        raw.send(b"3\r\nabc\r\n0\r\n\r\n")
        assert await raw.chunk() == b'{"stream":"Loaded %d bytes\\n"}\n' % (MIB + 3)
    assert dockerd.received[0].body_bytes == MIB + 3


@pytest.mark.parametrize("path", ["images/get?names=web", "images/web/get", "containers/c1/export"])
async def test_archives_are_as_long_as_told(dockerd: FakeDockerd, running: Container, path: str) -> None:
    dockerd.export_bytes = (32 << 10) * 9 + 5
    assert len((await call(dockerd, f"GET /{path}")).body) == dockerd.export_bytes


@pytest.mark.parametrize(
    ("command", "stdin", "output", "code"),
    [
        (["true"], b"", b"", 0),
        (["sink"], bytes(300_000), frame(1, b"300000\n"), 0),
        (["source", "40000"], b"", frame(1, bytes(32768)) + frame(1, bytes(7232)), 0),
        (["cat", "/sys/fs/cgroup/cpu/cpu.shares"], b"", frame(1, b"1024\n"), 0),
        (["cat", "/proc/1/environ"], b"", frame(1, b"PATH=/bin\0HOSTNAME=fake\0PATH=/bin\0"), 0),
        (["rm"], b"", frame(2, b"no such command in a fake container\n"), 127),
    ],
)
async def test_what_execs_do(
    dockerd: FakeDockerd, running: Container, command: list[str], stdin: bytes, output: bytes, code: int
) -> None:
    config = {"Cmd": command, "AttachStdin": bool(stdin)}
    made = (await call(dockerd, "POST /containers/c1/exec", config)).json["Id"]
    sent = request(f"POST /exec/{made}/start", UPGRADE, body=b"{}") + stdin
    _, _, came = (await exchange(dockerd.socket_path, sent, end=True)).partition(b"\r\n\r\n")
    assert (came, dockerd.state.execs[made].exit_code) == (output, code)


@pytest.mark.parametrize(
    "line",
    [
        "GET /events",
        "GET /containers/c1/logs?stdout=1&follow=1",
        "GET /containers/c1/stats",
        "POST /containers/c1/wait",
        "POST /images/create?fromImage=web",
        "POST /build",
    ],
)
async def test_a_stream_ends_with_its_client(dockerd: FakeDockerd, running: Container, line: str) -> None:
    dockerd.feed("POST /images/create")
    dockerd.feed("POST /build")
    assert (await exchange(dockerd.socket_path, request(line), end=True)).endswith(b"0\r\n\r\n")
    assert (dockerd.received[0].client_ended, dockerd.received[0].cancelled) == (True, True)
    await until(lambda: dockerd.connections == 0)


async def test_a_half_closed_create_is_answered(dockerd: FakeDockerd) -> None:
    injection = dockerd.inject(CREATE, Injection(hang=True))
    sent = request(CREATE, body=json.dumps({"Image": IMAGE}).encode())
    asked = asyncio.create_task(exchange(dockerd.socket_path, sent, end=True))
    [received] = await dockerd.wait_for_requests(CREATE)
    await until(lambda: received.client_ended)
    injection.release()
    assert (await asked).startswith(b"HTTP/1.1 201 Created\r\n")
    assert not received.cancelled


async def test_a_dying_dockerd_ends_no_stream_well(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("GET /events"))
        await raw.head()
        await dockerd.stop()
        assert await raw.rest() == b""


# ---- the systemd driver, and the versions that no test machine has


@pytest.mark.parametrize("parent", ["/kubepods/podx", ".slice"])
async def test_the_systemd_driver_takes_slices_only(tmp_path: Path, parent: str) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), cgroup_driver="systemd") as fake:
        assert (await call(fake, "GET /info")).json["CgroupDriver"] == "systemd"
        reply = await call(fake, CREATE, {"Image": IMAGE, "HostConfig": {"CgroupParent": parent}})
        assert (reply.status, "should be a valid slice" in reply.message) == (400, True)


@pytest.mark.parametrize(
    ("engine", "window", "swarm"),
    [
        (ENGINE_20, ("1.41", "1.12", "1.11", "1.42"), None),
        (ENGINE_28, ("1.51", "1.24", "1.23", "1.52"), "inactive"),
        (ENGINE_29, ("1.52", "1.44", "1.43", "1.53"), "inactive"),
    ],
    ids=["20.10", "28", "29"],
)
async def test_a_ping_and_the_window_of_versions(
    tmp_path: Path, engine: Engine, window: tuple[str, ...], swarm: str | None
) -> None:
    newest, oldest, too_old, too_new = window
    async with FakeDockerd(str(tmp_path / "docker.sock"), engine=engine) as dockerd:
        for line in ("GET /_ping", "HEAD /_ping", f"GET /v{oldest}/_ping"):
            headers = (await call(dockerd, line)).headers
            assert (headers["Api-Version"], headers.get("Swarm")) == (newest, swarm)
        version = (await call(dockerd, "GET /version")).json
        assert [version[key] for key in ("Version", "ApiVersion", "MinAPIVersion")] == [engine.version, newest, oldest]
        for refused, why in ((too_old, "is too old. Minimum"), (too_new, "is too new. Maximum")):
            reply = await call(dockerd, f"GET /v{refused}/info")
            assert (reply.status, f"client version {refused} {why}".encode() in reply.body) == (400, True)


def at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name, "away") if isinstance(document, dict) else "away"
    return document


OLD = {"Config.OnBuild": None, "NetworkSettings.Bridge": ""}
C1 = "containers/c1/json"


@pytest.mark.parametrize(
    ("engine", "target", "shown"),
    [
        (ENGINE_20, "info", {"CgroupVersion": "1", "DefaultRuntime": "runc", "Runtimes.runc.status": "away"}),
        (ENGINE_28, "info", {"CgroupVersion": "2", "DefaultRuntime": "runc", "Runtimes.runc.status": {}}),
        (ENGINE_28, "v1.48/info", {"FirewallBackend": "away", "CgroupDriver": "cgroupfs"}),
        (ENGINE_29, "info", {"Driver": "overlayfs", "DiscoveredDevices": [], "CgroupDriver": "cgroupfs"}),
        (ENGINE_20, C1, {**OLD, "HostConfig.NetworkMode": "default"}),
        (ENGINE_28, C1, {**OLD, "HostConfig.NetworkMode": "bridge", "HostConfig.CgroupnsMode": "private"}),
        (
            ENGINE_29,
            C1,
            {**dict.fromkeys((*OLD, "GraphDriver"), "away"), "Storage.RootFS.Snapshot.Name": "overlayfs"},
        ),
        (ENGINE_29, f"v1.44/{C1}", {**OLD, "GraphDriver.Name": "overlayfs", "ImageManifestDescriptor": "away"}),
        (ENGINE_28, f"v1.48/images/{IMAGE}/json", {"Config.Hostname": "", "Config.Env": ["PATH=/bin"]}),
        (ENGINE_28, f"images/{IMAGE}/json", {"Config.Hostname": "away", "Config.User": "", "Config.Volumes": None}),
        (ENGINE_29, f"v1.44/images/{IMAGE}/json", {"Config.Hostname": "", "Config.Tty": False}),
        (ENGINE_29, f"images/{IMAGE}/json", {"Config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]}, "Parent": "away"}),
        (ENGINE_29, "images/bare:1/json", {"Config": None}),
        (ENGINE_29, "v1.44/images/bare:1/json", {"Config.Env": []}),
    ],
)
async def test_what_an_answer_has_in_each_version(
    tmp_path: Path, engine: Engine, target: str, shown: dict[str, Any]
) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), engine=engine) as dockerd:
        dockerd.state.create("c1", b"", {"Image": IMAGE})
        dockerd.state.images.add("bare:1", env=()).command = []
        document = (await call(dockerd, f"GET /{target}")).json
        assert {path: at(document, path) for path in shown} == shown


@pytest.mark.parametrize(
    ("engine", "version", "accept", "kind", "old"),
    [
        (ENGINE_20, "", "*/*", "application/json", True),
        (ENGINE_28, "", "application/x-ndjson", "application/json", True),
        (ENGINE_29, "", "*/*", "application/x-ndjson", False),
        (ENGINE_29, "", "application/json-seq, application/x-ndjson", "application/json-seq", False),
        (ENGINE_29, "", "text/html", "application/json", False),
        (ENGINE_29, "/v1.51", "*/*", "application/x-ndjson", True),
    ],
)
async def test_events_in_each_version(
    tmp_path: Path, engine: Engine, version: str, accept: str, kind: str, old: bool
) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), engine=engine) as dockerd:
        dockerd.state.create("c1", b"", {"Image": IMAGE})
        line = f"GET {version}/events?since=1&until={time.time():.9f}"
        reply = await call(dockerd, line, Accept=accept)
        separator = b"\x1e" if kind == "application/json-seq" else b""
        assert (reply.headers["Content-Type"], reply.body[:1]) == (kind, separator or b"{")
        event = json.loads(reply.body.removeprefix(separator))
        assert (event["Action"], "status" in event, "from" in event) == ("create", old, old)


@pytest.mark.parametrize(("version", "kind"), [("", b"multiplexed"), ("/v1.41", b"raw")])
async def test_newer_versions_name_multiplexed_streams(tmp_path: Path, version: str, kind: bytes) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api="1.45") as dockerd:
        dockerd.state.create("c1", b"", {"Image": IMAGE})
        async with await Raw.connect(dockerd.socket_path) as raw:
            raw.send(request(f"POST {version}/containers/c1/attach", UPGRADE))
            assert b"vnd.docker.%b-stream" % kind in await raw.head()
