"""The fake dockerd answers as dockerd 20.10 does: containers, images, checks, versions, injections."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dockerd import DockerdState, FakeDockerd, Injection
from tests.fakes.dockerd_client import Raw, Reply, ask, exchange

IMAGE = "runtimeproxy-busybox:1"
MIB = 1 << 20


@pytest.fixture
async def dockerd(tmp_path: Path) -> AsyncIterator[FakeDockerd]:
    async with FakeDockerd(str(tmp_path / "docker.sock")) as fake:
        yield fake


async def created(dockerd: FakeDockerd, name: str = "", **body: Any) -> str:
    query = f"?name={name}" if name else ""
    reply = await ask(dockerd.socket_path, "POST", f"/containers/create{query}", {"Image": IMAGE, **body})
    assert (reply.status, reply.json["Warnings"]) == (201, []), reply
    return str(reply.json["Id"])


async def post(dockerd: FakeDockerd, target: str, body: Any = None) -> Reply:
    return await ask(dockerd.socket_path, "POST", target, body)


async def get(dockerd: FakeDockerd, target: str) -> Reply:
    return await ask(dockerd.socket_path, "GET", target)


# ---- the system


async def test_a_ping_is_go_s_reply_byte_for_byte(dockerd: FakeDockerd) -> None:
    async with await Raw.connect(dockerd.socket_path) as raw:
        raw.send(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
        head, date = (await raw.head()).split(b"Date: ")
        assert head == (
            b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nBuilder-Version: 1\r\n"
            b"Cache-Control: no-cache, no-store, must-revalidate\r\nDocker-Experimental: false\r\nOstype: linux\r\n"
            b"Pragma: no-cache\r\nServer: Docker/20.10.24 (linux)\r\n"
        )
        assert date.endswith(b" GMT\r\nContent-Length: 2\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n")
        assert await raw.exactly(2) == b"OK"
        # The slow way, which an injection takes, answers the same.
        dockerd.inject("GET /_ping", Injection(times=1))
        raw.send(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
        assert (await raw.head()).split(b"Date: ")[0] == head
        assert await raw.exactly(2) == b"OK"
        raw.send(b"HEAD /v1.41/_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
        reply = await raw.rest()
        assert b"\r\nContent-Length: 0\r\n" in reply
        assert reply.endswith(b"\r\nConnection: close\r\n\r\n")
    assert [received.route for received in dockerd.received] == ["GET /_ping", "GET /_ping", "HEAD /_ping"]
    assert {received.connection for received in dockerd.received} == {0}


async def test_version_and_info(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    async with FakeDockerd(path, cgroup_driver="systemd", api="1.51", minimum="1.44", server_version="29.0.0") as fake:
        version = (await get(fake, "/v1.45/version")).json
        assert (version["Version"], version["ApiVersion"], version["MinAPIVersion"]) == ("29.0.0", "1.51", "1.44")
        container = await created(fake, HostConfig={"CgroupParent": "kubepods-podx.slice"})
        await post(fake, f"/containers/{container}/start")
        info = (await get(fake, "/info")).json
        assert (info["CgroupDriver"], info["Containers"], info["ContainersRunning"]) == ("systemd", 1, 1)


@pytest.mark.parametrize(
    ("window", "target", "message"),
    [
        (("1.41", "1.12"), "/v1.42/info", "client version 1.42 is too new. Maximum supported API version is 1.41"),
        (
            ("1.51", "1.44"),
            "/v1.41/info",
            "client version 1.41 is too old. Minimum supported API version is 1.44, "
            "please upgrade your client to a newer version",
        ),
        (("1.41", "1.12"), "/v1.41/nothing", "page not found"),
        (("1.41", "1.12"), "/nothing", "page not found"),
    ],
)
async def test_versions_and_routes_that_are_refused(
    tmp_path: Path, window: tuple[str, str], target: str, message: str
) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), api=window[0], minimum=window[1]) as fake:
        reply = await get(fake, target)
        assert (reply.status, reply.message) == (400 if "version" in message else 404, message)
        assert reply.headers["Content-Type"] == "application/json"
        assert (await ask(fake.socket_path, "DELETE", "/info")).status == 404


async def test_errors_of_old_versions_are_plain_text(dockerd: FakeDockerd) -> None:
    reply = await get(dockerd, "/v1.23/containers/x/json")
    assert (reply.status, reply.body) == (404, b"No such container: x\n")
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/v1.41//containers/json?all=1&x=%2F", "/v1.41/containers/json?all=1&x=%2F"),
        ("/containers/%2Fc1/json", "/containers/c1/json"),
        ("/containers/../images/a%20b%3F/json", "/images/a%20b%3F/json"),
        ("/containers/./json/", "/containers/json/"),
    ],
)
async def test_an_unclean_path_is_redirected_as_gorilla_does(dockerd: FakeDockerd, target: str, location: str) -> None:
    reply = await get(dockerd, target)
    assert (reply.status, reply.headers["Location"], reply.body) == (301, location, b"")
    assert "Api-Version" not in reply.headers


# ---- containers


async def test_a_container_lives(dockerd: FakeDockerd) -> None:
    container = await created(dockerd, "c1", Cmd=["sleep", "9"], Labels={"a": "1"}, Env=["A=1", "PATH=/x"])
    shown = (await get(dockerd, "/containers/c1/json?size=1")).json
    assert (shown["Id"], shown["Name"], shown["State"]["Status"]) == (container, "/c1", "created")
    assert (shown["Config"]["Env"], shown["Config"]["Labels"]) == (["A=1", "PATH=/x"], {"a": "1"})
    assert (shown["HostConfig"]["ShmSize"], shown["HostConfig"]["NetworkMode"], shown["SizeRw"]) == (
        64 * MIB,
        "default",
        0,
    )
    statuses = []
    for method, call in (
        *(("POST", "start"), ("POST", "start"), ("POST", "restart"), ("POST", "kill?signal=HUP")),
        *(("DELETE", ""), ("POST", "stop?t=1"), ("POST", "stop"), ("POST", "kill"), ("POST", "restart")),
        *(("POST", "rename?name=c2"), ("DELETE", "?force=1&v=1"), ("DELETE", "?force=1"), ("POST", "stop")),
    ):
        target = f"/v1.41/containers/{container}" + (call if call.startswith("?") or not call else f"/{call}")
        reply = await ask(dockerd.socket_path, method, target)
        statuses.append(reply.status)
        assert bool(reply.body) == (reply.status not in (204, 304))
    assert statuses == [204, 304, 204, 204, 409, 204, 304, 409, 204, 204, 204, 404, 404]
    assert not dockerd.state.containers


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        ("x/kill", 404, "Cannot kill container: x: No such container: x"),
        ("c1/kill?signal=NO", 400, "Invalid signal: NO"),
        ("c1/stop?t=x", 400, 'strconv.Atoi: parsing "x": invalid syntax'),
    ],
)
async def test_calls_that_are_wrong(dockerd: FakeDockerd, call: str, status: int, message: str) -> None:
    container = await created(dockerd, "c1", HostConfig={"AutoRemove": True})
    dockerd.state.start(container)
    reply = await post(dockerd, f"/containers/{call}")
    assert (reply.status, reply.message) == (status, message)
    assert (await ask(dockerd.socket_path, "DELETE", "/containers/c1?force=1")).status == 204
    assert not dockerd.state.containers


async def test_a_container_is_found_by_id_name_and_prefix(dockerd: FakeDockerd) -> None:
    first = await created(dockerd, "k8s_a_b")
    second = await created(dockerd, first[:4])
    for reference in (first, "k8s_a_b", first[:20], "k8s%5Fa_b"):
        assert (await get(dockerd, f"/containers/{reference}/json")).json["Id"] == first
    assert (await get(dockerd, f"/containers/{first[:4]}/json")).json["Id"] == second
    missing = await get(dockerd, "/containers/a/b/json")
    assert (missing.status, missing.message) == (404, "No such container: a/b")
    for container in (first, second):
        dockerd.state.containers["ff" + container[2:]] = dockerd.state.containers.pop(container)
    several = await get(dockerd, "/containers/f/json")
    assert (several.status, several.message) == (500, "Multiple IDs found with provided prefix: f")


async def test_a_name_is_taken_once(dockerd: FakeDockerd) -> None:
    container = await created(dockerd, "one")
    taken = (
        f'Conflict. The container name "/one" is already in use by container "{container}". '
        "You have to remove (or rename) that container to be able to reuse that name."
    )
    again = await post(dockerd, "/containers/create?name=one", {"Image": IMAGE})
    assert (again.status, again.message) == (409, taken)
    await created(dockerd, "two")
    renamed = await post(dockerd, "/containers/two/rename?name=/one")
    assert (renamed.status, renamed.message) == (409, f"Error when allocating new name: {taken}")
    assert (await post(dockerd, "/containers/two/rename")).status == 400
    assert (await post(dockerd, "/containers/two/rename?name=two")).status == 400
    assert (await post(dockerd, "/containers/create?name=a%20b", {"Image": IMAGE})).status == 400


@pytest.mark.parametrize(
    ("host", "part"),
    [
        ({"Memory": 6 * MIB - 1}, "Minimum memory limit allowed is 6MB"),
        ({"Memory": -1}, "Minimum memory limit allowed is 6MB"),
        ({"Memory": 8 * MIB, "MemorySwap": 7 * MIB}, "Minimum memoryswap limit"),
        ({"MemorySwap": 8 * MIB}, "You should always set the Memory limit"),
        ({"NanoCpus": 1, "CpuPeriod": 1000}, "Nano CPUs and CPU Period"),
        ({"NanoCpus": 1, "CpuQuota": 1000}, "Nano CPUs and CPU Quota"),
        ({"NanoCpus": -1}, "Range of CPUs"),
        ({"CpuPeriod": 999}, "CPU cfs period"),
        ({"CpuPeriod": 1_000_001}, "CPU cfs period"),
        ({"CpuQuota": 999}, "CPU cfs quota"),
        ({"CpuShares": -1}, "shares: invalid argument"),
        ({"OomScoreAdj": 1001}, "range for oom score adj"),
        ({"CpusetCpus": "0-5000"}, "Requested CPUs are not available - requested 0-5000, available: 0-1023"),
        ({"CpusetCpus": "x"}, "Invalid value x for cpuset cpus"),
        ({"CpusetMems": "1"}, "Requested memory nodes are not available - requested 1, available: 0"),
        ({"CgroupParent": "/kubepods/podx"}, "should be a valid slice"),
        ({"CgroupParent": ".slice"}, "should be a valid slice"),
        ({"Memory": "1"}, "json: cannot unmarshal string into Go struct field HostConfig.Memory of type int64"),
        ([1], "json: cannot unmarshal array into Go value"),
    ],
)
async def test_what_the_daemon_does_not_take(tmp_path: Path, host: Any, part: str) -> None:
    async with FakeDockerd(str(tmp_path / "docker.sock"), cgroup_driver="systemd") as fake:
        reply = await post(fake, "/containers/create", {"Image": IMAGE, "HostConfig": host})
        assert reply.status == 400
        assert part in reply.message
        assert not fake.state.containers


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"{}", "text/plain", 400, "Content-Type specified (text/plain) must be 'application/json'"),
        (b"{}", "application/json", 400, "Config cannot be empty in order to create a container"),
        (b"", "application/json", 400, "EOF"),
        (b"{", "application/json; charset=utf-8", 400, "invalid JSON"),
        (b"[1]", "application/json", 400, "json: cannot unmarshal"),
        (b'{"Image":"none","Cmd":["a"]}', "application/json", 404, "No such image: none:latest"),
        (b'{"Image":""}', "application/json", 400, "No command specified"),
        (b'{"Image":1}', "application/json", 400, "json: cannot unmarshal number into Go struct field"),
    ],
)
async def test_creates_without_sense(dockerd: FakeDockerd, body: bytes, kind: str, status: int, message: str) -> None:
    reply = await ask(dockerd.socket_path, "POST", "/containers/create", body, {"Content-Type": kind})
    assert reply.status == status
    assert reply.message.startswith(message)
    assert not dockerd.state.containers


async def test_values_that_are_unusual_but_good(dockerd: FakeDockerd) -> None:
    host = {"Memory": 8 * MIB, "CpuQuota": -1, "CgroupParent": "/kubepods/podx", "CpusetCpus": "0-1,3", "Unknown": 1}
    container = await created(dockerd, HostConfig={**host, "Devices": None, "OomScoreAdj": None})
    shown = dockerd.container(container).host
    assert shown["MemorySwap"] == 16 * MIB
    assert {key: shown[key] for key in host if key != "Unknown"} == {
        key: value for key, value in host.items() if key != "Unknown"
    }
    assert (await get(dockerd, f"/containers/{container}/json")).json["HostConfig"] == shown


async def test_updates(dockerd: FakeDockerd) -> None:
    host = {"Memory": 64 * MIB, "MemorySwap": 64 * MIB, "CpuShares": 512, "CpusetCpus": "0-1", "CpuQuota": 50000}
    container = await created(dockerd, "c1", HostConfig=host)
    target = f"/v1.41/containers/{container}/update"
    zeros = {"Memory": 0, "CpusetCpus": "", "CpuShares": 0, "RestartPolicy": {"Name": "", "MaximumRetryCount": 0}}
    for body, changed in (
        (zeros, {}),
        ({"CpuShares": 100, "CgroupParent": "/x", "OomScoreAdj": 5}, {"CpuShares": 100}),
        ({"Memory": 32 * MIB}, {"Memory": 32 * MIB}),
        ({"Memory": 128 * MIB, "MemorySwap": 128 * MIB}, {"Memory": 128 * MIB, "MemorySwap": 128 * MIB}),
        ({"CpuQuota": -1, "CpusetCpus": "1"}, {"CpuQuota": -1, "CpusetCpus": "1"}),
        ({"RestartPolicy": {"Name": "always"}}, {"RestartPolicy": {"Name": "always"}}),
    ):
        before = dockerd.container(container).host
        reply = await post(dockerd, target, body)
        assert (reply.status, reply.json) == (200, {"Warnings": None})
        assert dockerd.container(container).host == {**before, **changed}
    above = await post(dockerd, target, {"Memory": 256 * MIB})
    assert (above.status, above.message) == (
        409,
        f"Cannot update container {container}: Memory limit should be smaller than already set memoryswap limit, "
        "update the memoryswap at the same time",
    )
    assert (await post(dockerd, target, {"CpuQuota": 10})).status == 400
    assert (await post(dockerd, "/containers/none/update", {})).status == 404
    await post(dockerd, target, {"CpuQuota": 50000})
    assert (await post(dockerd, target, {"NanoCpus": 1})).status == 409


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 7\r\n\r\n       ", 204),
        (b"Content-Length: 8\r\n\r\n        ", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
async def test_a_start_has_no_body(dockerd: FakeDockerd, head: bytes, status: int) -> None:
    await created(dockerd, "c1")
    start = b"POST /v1.41/containers/c1/start HTTP/1.1\r\nHost: d\r\nConnection: close\r\n"
    assert (await exchange(dockerd.socket_path, start + head)).startswith(b"HTTP/1.1 %d " % status)


async def test_lists_and_their_filters(dockerd: FakeDockerd) -> None:
    first = await created(dockerd, "first", Labels={"kind": "pod", "n": "1"})
    second = await created(dockerd, "second", Labels={"kind": "pod", "n": "2"})
    await post(dockerd, f"/containers/{second}/start")

    async def listed(query: str) -> list[str]:
        return [shown["Id"] for shown in (await get(dockerd, f"/containers/json?{query}")).json]

    assert await listed("") == [second]
    assert await listed("all=1") == [second, first]
    assert await listed("all=1&limit=1") == [second]
    assert await listed('all=1&filters={"label":{"kind=pod":true,"n=1":true}}') == [first]
    assert await listed('all=1&filters={"label":["kind"],"id":["' + second[:9] + '"]}') == [second]
    assert await listed('filters={"status":{"created":true}}') == [first]
    assert await listed('all=1&filters={"name":{"fir":true}}') == [first]
    assert (await get(dockerd, '/containers/json?filters={"x":{"y":true}}')).message == "Invalid filter 'x'"
    assert (await get(dockerd, "/containers/json?filters=[")).status == 400
    pruned = (await post(dockerd, "/containers/prune")).json
    assert (pruned["ContainersDeleted"], list(dockerd.state.containers)) == ([first], [second])


async def test_a_list_is_as_big_as_told(dockerd: FakeDockerd) -> None:
    dockerd.fill_list(200, 400_000)
    reply = await get(dockerd, "/v1.41/containers/json?all=1")
    assert abs(len(reply.body) - 400_000) < 400
    assert len({container["Id"] for container in reply.json}) == 200
    assert reply.headers["Transfer-Encoding"] == "chunked"


async def test_images(dockerd: FakeDockerd) -> None:
    image = dockerd.state.images.add(
        "docker.io/library/web", env=["PATH=/p", "X=1"], labels={"a": "image", "b": "image"}
    )
    for reference in ("web", "docker.io/library/web:latest", image.id, image.id[7:20]):
        shown = (await get(dockerd, f"/images/{reference}/json")).json
        assert (shown["Id"], shown["RepoTags"], shown["Config"]["Env"]) == (image.id, ["web:latest"], image.env)
    assert "web:latest" in [tag for shown in (await get(dockerd, "/images/json")).json for tag in shown["RepoTags"]]
    missing = await get(dockerd, "/v1.41/images/127.0.0.1:5000/none/json")
    assert (missing.status, missing.message) == (404, "No such image: 127.0.0.1:5000/none:latest")
    container = dockerd.container(await created(dockerd, Image="web", Env=["X=2", "Y=3", "PATH"], Labels={"a": "own"}))
    assert container.config["Env"] == ["X=2", "Y=3", "PATH"]
    assert container.config["Labels"] == {"a": "own", "b": "image"}
    assert container.image_id == image.id


async def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    state = DockerdState()
    async with FakeDockerd(path, state) as fake:
        container = await created(fake, "c1")
    assert not Path(path).exists()
    async with FakeDockerd(path, state) as fake:
        assert (await get(fake, "/containers/c1/json")).json["Id"] == container
