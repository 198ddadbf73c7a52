"""The fake dockerd's long calls: events, output, hijacks both ways, progress, archives, and clients that leave."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dockerd import FakeDockerd, Injection
from tests.fakes.dockerd_client import Raw, ask, exchange, until
from tests.fakes.dockerd_programs import frame
from tests.fakes.dockerd_records import Container

IMAGE = "runtimeproxy-busybox:1"
MIB = 1 << 20
UPGRADE = b"Connection: Upgrade\r\nUpgrade: tcp\r\n"


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


@pytest.fixture
async def running(dockerd: FakeDockerd) -> Container:
    return run(dockerd, "c1")


def run(dockerd: FakeDockerd, name: str, *command: str, tty: bool = False, auto_remove: bool = False) -> Container:
    body = {"Image": IMAGE, "Cmd": list(command) or None, "Tty": tty, "HostConfig": {"AutoRemove": auto_remove}}
    container = dockerd.state.create(name, b"", body)
    dockerd.state.start(name)
    return container


def request(line: str, *headers: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\nContent-Type: application/json\r\n" % len(body) if body else b""
    return f"{line} HTTP/1.1\r\nHost: d\r\n".encode() + b"".join(headers) + length + b"\r\n" + body


async def exec_created(dockerd: FakeDockerd, *command: str, stdin: bool = False, tty: bool = False) -> str:
    config = {"Cmd": list(command), "AttachStdin": stdin, "AttachStdout": True, "AttachStderr": True, "Tty": tty}
    return str((await ask(dockerd.socket_path, "POST", "/containers/c1/exec", config)).json["Id"])


async def started(dockerd: FakeDockerd, exec_id: str, *headers: bytes, tty: bool = False, more: bytes = b"") -> Raw:
    """Start an exec; the reply's head is not read yet."""
    raw = await Raw.connect(dockerd.socket_path)
    body = json.dumps({"Detach": False, "Tty": tty}).encode()
    raw.send(request(f"POST /v1.41/exec/{exec_id}/start", *headers, body=body) + more)
    return raw


# ---- events


async def test_events_come_one_a_chunk_in_dockerds_order(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request('GET /v1.41/events?filters={"type":{"container":true}}'))
        assert b"Transfer-Encoding: chunked" in await raw.head()
        await until(lambda: dockerd.watchers == 1)
        container = run(dockerd, "c1")
        dockerd.state.images.add("web")
        dockerd.state.events.emit("image", "pull", "web", {})
        for change in ("rename?name=c2", "update", "stop", "restart", "restart", "kill"):
            body = {"CpuShares": 5} if change == "update" else None
            await ask(dockerd.socket_path, "POST", f"/containers/{container.id}/{change}", body)
        await ask(dockerd.socket_path, "DELETE", f"/containers/{container.id}")
        heard: list[Any] = []
        while not heard or heard[-1]["Action"] != "destroy":
            heard.append(json.loads(await raw.chunk()))
    assert " ".join(event["Action"] for event in heard) == (
        "create start rename update kill die stop start restart kill die stop start restart kill die destroy"
    )
    assert {event["id"] for event in heard} == {container.id}
    assert heard[2]["Actor"]["Attributes"] == {"image": IMAGE, "name": "c2", "oldName": "/c1"}
    assert [event["Actor"]["Attributes"].get("exitCode") for event in heard[4:6]] == [None, "143"]
    await until(lambda: dockerd.watchers == 0)


async def test_events_of_the_past_and_filters(dockerd: FakeDockerd) -> None:
    run(dockerd, "c1", auto_remove=True)
    dockerd.state.die("c1", 3)
    run(dockerd, "c2")

    async def actions(filters: str) -> list[str]:
        reply = await ask(dockerd.socket_path, "GET", f"/events?since=1&until=2&filters={filters}")
        assert reply.body == b""
        later = f"/events?since=1&until={time.time():.9f}&filters={filters}"
        reply = await ask(dockerd.socket_path, "GET", later)
        return [json.loads(line)["Action"] for line in reply.body.splitlines()]

    assert await actions("") == ["create", "start", "die", "destroy", "create", "start"]
    assert await actions('{"event":["die","destroy"]}') == ["die", "destroy"]
    assert await actions('{"container":["c2"],"type":["container"]}') == ["create", "start"]
    assert await actions('{"label":["none"]}') == []


async def test_a_wait_sends_its_head_at_once_and_its_body_at_the_end(dockerd: FakeDockerd) -> None:
    container = run(dockerd, "c1", auto_remove=True)
    waits = []
    for condition in ("next-exit", "removed", "not-running"):
        raw = await Raw.connect(dockerd.socket_path)
        raw.send(request(f"POST /v1.41/containers/c1/wait?condition={condition}"))
        assert b" 200 OK" in await raw.head()
        waits.append(raw)
    dockerd.state.die(container.id, 7)
    for raw in waits:
        assert await raw.chunk() == b'{"Error":null,"StatusCode":7}\n'
        assert await raw.chunk() == b""
        raw.writer.close()
    assert (await ask(dockerd.socket_path, "POST", "/containers/c1/wait")).status == 404
    dockerd.state.create("c2", b"", {"Image": IMAGE})
    assert (await ask(dockerd.socket_path, "POST", "/containers/c2/wait")).json["StatusCode"] == 0
    assert (await ask(dockerd.socket_path, "POST", "/containers/c2/wait?condition=x")).status == 400


# ---- output of containers


@pytest.mark.parametrize("tty", [False, True])
async def test_logs_follow_line_by_line(dockerd: FakeDockerd, tty: bool) -> None:
    run(dockerd, "c1", tty=tty)
    dockerd.say("c1", b"one\n")
    dockerd.say("c1", b"two\n")
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("GET /containers/c1/logs?stdout=1&follow=1&tail=1"))
        assert b"Content-Type" not in await raw.head()
        assert await raw.chunk() == (b"two\n" if tty else frame(1, b"two\n"))
        for line in (b"three\n", b"four\n"):
            dockerd.say("c1", b"hidden", stream=2)
            dockerd.say("c1", line)
            assert await raw.chunk() == (line if tty else frame(1, line))
        dockerd.say("c1", b"last")
        dockerd.state.die("c1")
        assert await raw.chunk() == (b"last" if tty else frame(1, b"last"))
        assert await raw.chunk() == b""
    every = await ask(dockerd.socket_path, "GET", "/containers/c1/logs?stdout=1&stderr=1&follow=1")
    assert len(every.body) == sum(map(len, (b"onetwothreefourlast\n\n\n\n", b"hiddenhidden"))) + (0 if tty else 7 * 8)
    assert (await ask(dockerd.socket_path, "GET", "/containers/c1/logs?stdout=1&tail=0")).body == b""
    assert (await ask(dockerd.socket_path, "GET", "/containers/c1/logs")).status == 400


@pytest.mark.parametrize("upgrade", [UPGRADE, b""])
async def test_an_attach_carries_both_ways_until_the_death(
    dockerd: FakeDockerd, running: Container, upgrade: bytes
) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("POST /v1.41/containers/c1/attach?stream=1&stdin=1&stdout=1", upgrade))
        kind = b"Content-Type: application/vnd.docker.raw-stream\r\n"
        first = b"HTTP/1.1 101 UPGRADED\r\n" if upgrade else b"HTTP/1.1 200 OK\r\n"
        assert await raw.head() == first + kind + upgrade + b"\r\n"
        raw.send(b"typed")
        await until(lambda: running.stdin == b"typed")
        raw.end()
        dockerd.say("c1", b"out")
        assert await raw.exactly(11) == frame(1, b"out")
        dockerd.say("c1", b"end", stream=2)
        dockerd.state.die("c1")
        assert await raw.rest() == frame(2, b"end")


async def test_an_attach_before_the_start_feeds_a_cat(dockerd: FakeDockerd) -> None:
    dockerd.state.create("c1", b"", {"Image": IMAGE, "Cmd": ["cat"], "Tty": True})
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("POST /containers/c1/attach?stream=1&stdin=1&stdout=1", UPGRADE))
        await raw.head()
        raw.send(b"before")
        raw.end()
        assert dockerd.container("c1").status == "created"
        dockerd.state.start("c1")
        assert await raw.rest() == b"before"
    assert dockerd.container("c1").exit_code == 0


@pytest.mark.parametrize("upgrade", [UPGRADE, b""])
async def test_an_attach_to_nothing_is_answered_without_framing(dockerd: FakeDockerd, upgrade: bytes) -> None:
    assert await exchange(dockerd.socket_path, request("POST /containers/c1/attach?stream=1", upgrade)) == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\nNo such container: c1\r\n"
    )


@pytest.mark.parametrize(("api", "version", "kind"), [("1.45", "", b"multiplexed"), ("1.45", "/v1.41", b"raw")])
async def test_newer_versions_name_multiplexed_streams(tmp_path: Path, api: str, version: str, kind: bytes) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api=api) as fake:
        run(fake, "c1")
        for line in (f"POST {version}/containers/c1/attach", f"GET {version}/containers/c1/logs?stdout=1"):
            async with await Raw.connect(fake.socket_path) as raw:
                raw.send(request(line, UPGRADE))
                head = await raw.head()
                assert (b"vnd.docker.%b-stream" % kind in head) or (version and "logs" in line)


# ---- execs


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("upgrade", [UPGRADE, b""])
async def test_an_exec_echoes_until_its_stdin_ends(
    dockerd: FakeDockerd, running: Container, upgrade: bytes, tty: bool
) -> None:
    exec_id = await exec_created(dockerd, "cat", stdin=True, tty=tty)
    async with await started(dockerd, exec_id, upgrade, tty=tty) as raw:
        head = await raw.head()
        assert head.startswith(b"HTTP/1.1 101 UPGRADED\r\n" if upgrade else b"HTTP/1.1 200 OK\r\n")
        assert b"Api-Version: 1.41\r\n" in head
        assert b"Content-Length" not in head
        assert b"Transfer-Encoding" not in head
        for data in (b"hello", bytes(100_000)):
            raw.send(data)
            got = await raw.exactly(len(data)) if tty else b""
            while len(got) < len(data):
                header = await raw.exactly(8)
                got += await raw.exactly(int.from_bytes(header[4:]))
            assert got == data
        assert (await ask(dockerd.socket_path, "GET", f"/exec/{exec_id}/json")).json["Running"]
        raw.end()
        assert await raw.rest() == b""
    inspected = (await ask(dockerd.socket_path, "GET", f"/exec/{exec_id}/json")).json
    assert (inspected["Running"], inspected["ExitCode"], inspected["ContainerID"]) == (False, 0, running.id)


@pytest.mark.parametrize(
    ("command", "stdin", "output", "code"),
    [
        (["true"], b"", b"", 0),
        (["false"], b"", b"", 1),
        (["sink"], bytes(300_000), frame(1, b"300000\n"), 0),
        (["source", "40000"], b"", frame(1, bytes(32768)) + frame(1, bytes(7232)), 0),
        (["echo", "a", "b"], b"", frame(1, b"a b\n"), 0),
        (["cat", "/sys/fs/cgroup/cpu/cpu.shares"], b"", frame(1, b"1024\n"), 0),
        (["cat", "/proc/1/environ"], b"", frame(1, b"PATH=/bin\0HOSTNAME=fake\0PATH=/bin\0"), 0),
        (["rm"], b"", frame(2, b"no such command in a fake container\n"), 127),
    ],
)
async def test_what_execs_do(
    dockerd: FakeDockerd, running: Container, command: list[str], stdin: bytes, output: bytes, code: int
) -> None:
    exec_id = await exec_created(dockerd, *command, stdin=bool(stdin))
    async with await started(dockerd, exec_id, UPGRADE) as raw:
        raw.send(stdin)
        raw.end()
        await raw.head()
        assert await raw.rest() == output
    assert dockerd.state.execs[exec_id].exit_code == code


async def test_execs_end_with_their_container_or_client(dockerd: FakeDockerd, running: Container) -> None:
    first, second, third = [await exec_created(dockerd, "sleep", "100", stdin=True) for _ in range(3)]
    await ask(dockerd.socket_path, "POST", f"/exec/{third}/start", {"Detach": True})
    async with await started(dockerd, first, UPGRADE) as raw:
        await raw.head()
        again = await ask(dockerd.socket_path, "POST", f"/exec/{first}/start", {"Detach": False})
        assert (again.status, again.message) == (409, f"Error: Exec command {first} has already run")
        dockerd.state.kill("c1", "KILL")
        assert await raw.rest() == b""
    await until(lambda: not dockerd.state.execs[third].running)
    assert [dockerd.state.execs[exec_id].exit_code for exec_id in (first, second, third)] == [137, None, 137]
    stopped = await ask(dockerd.socket_path, "POST", f"/exec/{second}/start", {"Detach": False})
    assert (stopped.status, stopped.message) == (409, f"Container {running.id} is not running")
    assert (await ask(dockerd.socket_path, "POST", "/containers/c1/exec", {"Cmd": ["true"]})).status == 409
    assert (await ask(dockerd.socket_path, "POST", "/containers/c1/exec", {"Cmd": []})).status == 400
    missing = await ask(dockerd.socket_path, "POST", "/exec/abc/start", {})
    assert (missing.status, missing.message) == (404, "No such exec instance: abc")


async def test_bytes_that_came_too_early_are_counted(dockerd: FakeDockerd, running: Container) -> None:
    exec_id = await exec_created(dockerd, "cat", stdin=True)
    async with await started(dockerd, exec_id, UPGRADE, more=b"early") as raw:
        await raw.head()
        assert await raw.exactly(13) == frame(1, b"early")
    assert dockerd.received[-1].early_bytes == 5
    resized = await ask(dockerd.socket_path, "POST", f"/exec/{exec_id}/resize?h=1&w=1")
    assert (resized.status, resized.body) == (200, b"")
    assert (await ask(dockerd.socket_path, "POST", "/containers/c1/resize?h=1&w=1")).status == 200


# ---- progress and archives


@pytest.mark.parametrize(
    ("route", "line"),
    [("POST /images/create", "POST /images/create?fromImage=web&tag=2"), ("POST /build", "POST /build?t=web:2")],
)
async def test_progress_comes_as_it_is_said(dockerd: FakeDockerd, route: str, line: str) -> None:
    feed = dockerd.feed(route)
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
    assert ("web:2" in dockerd.state.images.by_name) == (route == "POST /images/create")


async def test_a_load_reads_and_writes_at_once(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("POST /images/load", b"Transfer-Encoding: chunked\r\n"))
        raw.send(b"100000\r\n" + bytes(MIB) + b"\r\n")
        await raw.head()
        assert json.loads(await raw.chunk())["progressDetail"] == {"current": MIB}
        raw.send(b"3\r\nabc\r\n0\r\n\r\n")
        assert await raw.chunk() == b'{"stream":"Loaded %d bytes\\n"}\n' % (MIB + 3)
        assert await raw.chunk() == b""
    assert dockerd.received[0].body_bytes == MIB + 3


async def test_archives(dockerd: FakeDockerd, running: Container) -> None:
    dockerd.export_bytes = (32 << 10) * 9 + 5
    for target in (
        "/images/get?names=web",
        "/images/web/get",
        "/containers/c1/export",
        "/containers/c1/archive?path=/x",
    ):
        reply = await ask(dockerd.socket_path, "GET", target)
        assert (reply.status, len(reply.body), reply.headers["Transfer-Encoding"]) == (
            *(200, dockerd.export_bytes),
            "chunked",
        )
    put = await ask(dockerd.socket_path, "PUT", "/containers/c1/archive?path=/x", bytes(2 * MIB))
    assert (put.status, put.body, dockerd.received[-1].body_bytes) == (200, b"", 2 * MIB)
    stat = await ask(dockerd.socket_path, "HEAD", "/containers/c1/archive?path=/x")
    assert (stat.status, "X-Docker-Container-Path-Stat" in stat.headers) == (200, True)
    for method, call in (
        ("HEAD", "archive"),
        ("GET", "archive"),
        ("GET", "export"),
        ("GET", "stats"),
        ("POST", "wait"),
    ):
        assert (await ask(dockerd.socket_path, method, f"/containers/none/{call}")).status == 404


async def test_stats(dockerd: FakeDockerd, running: Container) -> None:
    dockerd.stats_seconds = 0.01
    once = await ask(dockerd.socket_path, "GET", "/containers/c1/stats?stream=0&one-shot=1")
    assert once.json["id"] == running.id
    assert "Content-Length" in once.headers
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("GET /containers/c1/stats?stream=1"))
        await raw.head()
        assert [json.loads(await raw.chunk())["name"] for _ in range(3)] == ["/c1"] * 3


# ---- clients that leave


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
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request(line))
        await raw.head()
        raw.end()
        assert (await raw.rest()).endswith(b"0\r\n\r\n")
    assert (dockerd.received[0].client_ended, dockerd.received[0].cancelled) == (True, True)
    await until(lambda: dockerd.connections == 0)


async def test_a_half_closed_create_is_answered(dockerd: FakeDockerd) -> None:
    injection = dockerd.inject("POST /containers/create", Injection(hang=True))
    body = json.dumps({"Image": IMAGE}).encode()
    asked = asyncio.create_task(exchange(dockerd.socket_path, request("POST /containers/create", body=body), end=True))
    [received] = await dockerd.wait_for_requests("POST /containers/create")
    await until(lambda: received.client_ended)
    injection.release()
    assert (await asked).startswith(b"HTTP/1.1 201 Created\r\n")
    assert not received.cancelled
    assert len(dockerd.state.containers) == 1


async def test_a_dying_dockerd_ends_no_stream_well(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(request("GET /events"))
        await raw.head()
        await dockerd.stop()
        assert await raw.rest() == b""
