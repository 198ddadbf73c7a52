"""The control protocol on a socket: requests, errors without a value, bounds; the daemon's sockets and their modes."""

import asyncio
import errno
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from runtimeproxy.admin import queries, server
from runtimeproxy.admin.protocol import PART_BYTES, REQUEST_BYTES, Part, Refused, line, request
from runtimeproxy.admin.server import CONNECTIONS, Method, Query
from tests.admin.conftest import Proxy, Site, next_line, parts
from tests.control import call
from tests.patience import SECONDS, read, until
from tests.system.proxy import ProxyProcess, handed_over

END = {"schemaVersion": 1}
NOBODY = 65534


async def slowly(params: Mapping[str, Any]) -> AsyncIterator[Part]:
    for number in range(2):
        await asyncio.sleep(0)
        yield {"numbers": [number]}


def raising(error: Exception) -> Query:
    def query(params: Mapping[str, Any]) -> Iterator[Part]:
        yield {"first": 1}
        raise error

    return query


OK = {"id": 1, "end": END}
NONE, ENDLESS, SILENT, THIRTY = (request(method, {}) for method in ("none", "endless", "silent", "thirty"))
PART_SIZE = 10_000
made = [0]  # the number of parts of endless answers


def endless(params: Mapping[str, Any]) -> Iterator[Part]:
    while True:
        made[0] += 1
        yield {"text": "n" * PART_SIZE}


def echo(params: Mapping[str, Any]) -> Iterator[Part]:
    return iter([{"params": dict(params)}])


METHODS: dict[str, Method] = {
    "livez": parts({"checks": []}, public=True),
    "none": parts(),
    "joined": parts({"rows": [1], "next": 5}, {}, {"rows": [2, 3], "next": None}),
    "slowly": Method(slowly),
    "echo": Method(echo, {"pod": str, "limit": queries._number}, ("pod",)),
    "signed": Method(echo, {"name": str}, signed=True),
    "endless": Method(endless),
    "silent": Method(lambda params: repeat(None)),
    "refusing": Method(raising(Refused(404, "there are a and b"))),
}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path, METHODS) as site:
        yield site


def error(status: int, text: str) -> dict[str, Any]:
    return {"error": {"status": status, "text": text}}


async def test_requests_get_answers_or_errors_in_order(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The id is repeated in each line."""
    with_signer = {"name": "a", "by": f"uid {os.geteuid()}, pid {os.getpid()}"}
    expected_answers: list[tuple[str, dict[str, Any], list[Part], dict[str, Any]]] = [
        ("none", {}, [], {"end": END}),
        ("joined", {}, [{"rows": [1], "next": 5}, {}, {"rows": [2, 3], "next": None}], {"end": END}),
        ("slowly", {}, [{"numbers": [0]}, {"numbers": [1]}], {"end": END}),
        ("echo", {"pod": "a\n\ud800", "limit": 7}, [{"params": {"pod": "a\n\ud800", "limit": 7}}], {"end": END}),
        ("signed", {"name": "a"}, [{"params": with_signer}], {"end": END}),
        ("refusing", {}, [{"first": 1}], error(404, "there are a and b")),
    ]
    ids: list[Any] = [({"id": number}, number) for number in (0, -1, "", "\ud800\n")]
    form = 'a request is a line like {"id": 1, "method": "hooks", "params": {}}'
    echo_parameters = "echo takes pod, limit"
    formless = [
        *(b"\n", b"GET /canary HTTP/1.1\n", b"\x16\x03\x01\xff\n", b"[" * 16_000 + b"\n", b'["canary"]\n'),
        *(b'{"method":"none","method":"canary"}', b'{"method":"echo","params":{"pod":"a","pod":"canary"}}'),
        *(line(params={"pod": "canary"}), line(method=["canary"])),
    ]
    wrong: list[tuple[bytes, int, str]] = [
        *((octets, 400, form) for octets in formless),
        (line(method="canary"), 404, f"no such method; there are {', '.join(METHODS)}"),
        *(
            (line(method="echo", params=given), 400, "echo: params is not a JSON object")
            for given in (["canary"], None)
        ),
        (line(method="echo", params={"pod": "a", "canary": "a"}), 400, f"unknown parameter: {echo_parameters}"),
        (line(method="none", params={"canary": 1}), 400, "unknown parameter: none takes no parameters"),
        (line(method="signed", params={"by": "canary"}), 400, "unknown parameter: signed takes name"),
        (line(method="echo", params={"limit": 1}), 400, f"pod is missing: {echo_parameters}"),
        (line(method="echo", params={"pod": "a", "limit": "canary"}), 400, "limit is not a number from 0"),
        (b"canary" * 3000, 400, f"a request has {REQUEST_BYTES} bytes at most"),
    ]
    for method, params, answer, last in expected_answers:
        expected = [*({"part": part} for part in answer), last]
        assert await site.call(method, **params) == [{"id": 1, **reply} for reply in expected]
    for given, repeated in [*ids, ({}, None), ({"id": [1]}, None), ({"id": 1.5, "more": 1}, None)]:
        octets = [line(method=method, **given) for method in ("joined", "refusing", "no")]
        replies = await site.send(b"".join([*octets, line(method="none", params=[], **given)]))
        assert [reply["id"] for reply in replies] == [repeated] * (4 + 2 + 1 + 1)
    octets = [line(id=number, method="slowly" if number % 2 else "none") for number in range(20)]
    replies = await site.send(b"".join(octets)[:-1])  # the last line needs no line feed
    assert [reply["id"] for reply in replies if "end" in reply] == [*range(20)]
    with site.connect() as client:
        for number in range(3):  # each after the answer to the previous one
            client.send(line(id=number, method="none"))
            assert await next_line(client) == {"id": number, "end": END}
    assert await site.send(b"") == []
    for request_line, status, text in wrong:
        assert await site.send(request_line) == [{"id": None, **error(status, text)}]
    assert caplog.records == []


async def test_internal_error_returns_500_and_logs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def failing_slowly(params: Mapping[str, Any]) -> AsyncIterator[Part]:
        yield {"first": 1}
        raise KeyError("canary")

    inside: dict[str, Method] = {
        "early": Method(Mock(side_effect=ValueError("canary"))),
        "late": Method(raising(FileNotFoundError(2, "canary"))),
        "time": Method(raising(TimeoutError("canary"))),
        "async": Method(failing_slowly),
        "unserializable": parts({"canary": {1}}),
        "too_long": parts({"text": "n" * PART_BYTES}),
    }
    async with Site(tmp_path, {**inside, "none": parts()}) as site:
        for name in inside:
            replies = await site.send(line(method=name) + line(id=2, method="none"))
            internal = error(500, f"{name}: an error in the proxy; see its log")
            assert replies[-2:] == [{"id": None, **internal}, {"id": 2, "end": END}]
            assert "canary" not in json.dumps(replies)
    failures = [(record.getMessage(), record.levelno) for record in caplog.records]
    assert failures == [(f"the request {name} failed", logging.ERROR) for name in inside]


async def test_public_socket_serves_public_methods_only(tmp_path: Path) -> None:
    methods = Proxy().methods
    refused = error(404, "no such method; there are metrics, livez, readyz")
    async with Site(tmp_path, methods, public=True) as site:
        served = {name: (await site.call(name))[-1] for name in methods}
    assert served == {name: OK if name in ("metrics", "livez", "readyz") else {"id": 1, **refused} for name in methods}


_AS_NOBODY = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
try:
    client.sendall(b'{{"method": "livez"}}\\n')
    client.shutdown(socket.SHUT_WR)
except OSError:
    pass  # refused already
print(client.makefile("rb").readline().decode())
"""


@pytest.mark.engine  # it needs root
@pytest.mark.parametrize("public", [True, False])
async def test_unprivileged_user_is_served_on_public_socket_only(public: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to users without rights
        os.chmod(folder, 0o755)
        async with Site(Path(folder), METHODS, public=public) as site:
            os.chmod(site.path, 0o666)
            command = [sys.executable, "-c", _AS_NOBODY, site.path]
            output = await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=30)
    refused = error(403, "only root may use the admin endpoint")
    assert json.loads(output) == {"id": None, **({"part": {"checks": []}} if public else refused)}


@contextmanager
def maximum(measure: Callable[[], int]) -> Iterator[list[int]]:
    """Yield a list of one number, the maximum of a measure over the iterations of the event loop."""
    loop, highest = asyncio.get_running_loop(), [0]

    def measure_again() -> None:
        nonlocal handle
        highest[0] = max(highest[0], measure())
        handle = loop.call_soon(measure_again)

    handle = loop.call_soon(measure_again)
    yield highest
    handle.cancel()


async def test_stalled_or_gone_client_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """It disconnects within an answer, sends nothing or half a line, never reads, or sends a line slowly."""
    for sent in (ENDLESS, SILENT):
        with site.connect(sent):
            await until(lambda: any(client.requested for client in site.server.clients))
        await until(lambda: not site.server.clients)
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.05)
    for sent in (b"", NONE + b"{", ENDLESS, b"\n" * REQUEST_BYTES):
        with site.connect() as client:
            await asyncio.get_running_loop().sock_sendall(client, sent)
            await until(lambda: site.server.clients)
            await until(lambda: not site.server.clients)
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    with site.connect(NONE) as client:
        assert await next_line(client) == OK
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                while True:
                    client.send(b"{")
                    await asyncio.sleep(server.SILENT_SECONDS / 10)
        assert not site.server.clients
    assert await site.call("none") == [OK]
    assert caplog.records == []


async def test_unread_answer_or_long_request_is_not_buffered(site: Site) -> None:
    made[0], before = 0, -1
    with site.connect(ENDLESS * 3):
        while before != made[0] or not before:
            before = made[0]
            for _ in range(50):
                await asyncio.sleep(0)
        assert await site.call("none") == [OK]
    assert 0 < made[0] * PART_SIZE < 1 << 20
    with maximum(lambda: max((len(client.received) for client in site.server.clients), default=0)) as most:
        replies = await site.send(b"n" * (1 << 20))
    text = f"a request has {REQUEST_BYTES} bytes at most"
    assert replies == [{"id": None, "error": {"status": 400, "text": text}}]
    assert most[0] <= 2 * REQUEST_BYTES
    for size in (REQUEST_BYTES, REQUEST_BYTES + 1):
        (answer,) = await site.send(line(id="", method="none")[:-1].ljust(size) + b"\n")
        assert ("error" in answer) == (size > REQUEST_BYTES)


async def test_silent_connections_lose_their_places(site: Site) -> None:
    with ExitStack() as stack:
        used = stack.enter_context(site.connect(NONE))
        assert await next_line(used) == OK
        for number in range(3 * CONNECTIONS):
            stack.enter_context(site.connect(b"{" if number % 2 else b""))
        assert await site.call("none") == [OK]
        assert len(site.server.clients) <= CONNECTIONS
        used.send(NONE)  # a connection that was used keeps its place
        assert await next_line(used) == OK


async def test_lack_of_descriptors_pauses_accepting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.01)
    accept, error = socket.socket.accept, OSError(24, "Too many open files")
    failing = Mock(side_effect=[error, error, *[DEFAULT] * 99], wraps=accept)
    monkeypatch.setattr(socket.socket, "accept", lambda listener: failing(listener))
    assert [await site.call("none") for _ in range(3)] == [[OK]] * 3
    assert failing.call_count > 2


async def test_stop_closes_all_connections(tmp_path: Path, site: Site) -> None:
    with ExitStack() as stack:
        for sent in [b"", b"{", SILENT, ENDLESS] * (CONNECTIONS // 2):
            stack.enter_context(site.connect(sent))
        await until(lambda: len(site.server.clients) == CONNECTIONS)
        await site.server.stop()
        assert not site.server.clients
    for iterations in range(6):  # after it was accepted
        async with Site(tmp_path / str(iterations), METHODS) as other:
            await asyncio.sleep(0)
            client = other.connect()
            for _ in range(iterations):
                await asyncio.sleep(0)
        with client, suppress(ConnectionResetError):
            assert await read(client) == b""


async def test_iteration_makes_one_part_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it reads one request."""
    lock, total, done = asyncio.Lock(), [0], [0]

    def thirty(params: Mapping[str, Any]) -> Iterator[Part]:
        for _ in range(30):
            done[0] += 1
            yield {}

    def counted(octets: bytes, read: Any = server._read) -> Any:
        done[0] += 1
        return read(octets)

    def growth() -> int:
        growth, done[0] = done[0], 0
        total[0] += growth
        return growth

    monkeypatch.setattr(server, "_read", counted)
    methods = {"thirty": Method(thirty, public=True)}
    async with Site(tmp_path / "a", methods, lock=lock) as site, Site(tmp_path / "b", methods, True, lock) as metrics:
        with maximum(growth) as most:
            await asyncio.gather(*(reply.send(NONE * 50 + THIRTY) for reply in (site, metrics) for _ in range(10)))
    assert (most, total[0] + done[0]) == ([1], 20 * (50 + 1 + 30))


WELL = {"checks": [{"name": "loop", "state": "ok", "reason": ""}], "schemaVersion": 1}


def rights(path: Path) -> tuple[int, int]:
    """Return mode and group."""
    return stat.S_IMODE(path.lstat().st_mode), path.lstat().st_gid


GROUPS = [(None, 0o600, 0o700), ("12345" if os.geteuid() == 0 else str(os.getegid()), 0o660, 0o750)]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "mode", "directory_mode"), GROUPS)
def test_daemon_serves_both_sockets_with_own_rights(tmp_path: Path, group: Any, mode: int, directory_mode: int) -> None:
    tmp_path.chmod(0o755)
    metrics = tmp_path / "m" / "metrics.sock"
    flags: dict[str, Any] = {} if group is None else {"metrics_group": group}
    flags |= {"socket_mode": "0666", "socket_group": str(os.getgid()), "metrics_endpoint": str(metrics)}
    with ExitStack() as clients, ProxyProcess(tmp_path, **flags) as proxy:
        assert (rights(proxy.socket)[0], rights(proxy.admin)[0]) == (0o666, 0o600)
        assert proxy.admin.lstat().st_uid == os.geteuid()
        assert (rights(metrics)[0], rights(metrics.parent)[0]) == (mode, directory_mode)
        assert group is None or rights(metrics)[1] == rights(metrics.parent)[1] == int(group)
        assert call(proxy.admin, "livez") == call(metrics, "livez") == WELL
        assert ["connections_open", [], 0] in call(metrics, "metrics")["values"]
        with pytest.raises(Refused, match="no such method; there are metrics, livez, readyz"):
            call(metrics, "version")
        assert call(proxy.admin, "version")["pid"] == proxy.pid
        assert Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text() == ""
        for octets in (b"", b"{", request("events", {"follow": True})):  # the end does not wait for them
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(proxy.admin))
            client.sendall(octets)
    assert not proxy.admin.exists()
    assert not metrics.exists()


@pytest.mark.slow
def test_systemd_admin_socket_is_served_and_not_removed(tmp_path: Path) -> None:
    given = tmp_path / "given.sock"
    with handed_over(given) as handed:
        given.chmod(0o600)
        with ProxyProcess(tmp_path, **handed, environment={"LISTEN_FDNAMES": "admin"}) as proxy:
            assert call(given, "livez") == WELL
            assert not proxy.admin.exists()
        assert given.exists()


_CONNECT = """
import os, socket, sys
path, group = sys.argv[1:]
os.setgroups([int(group)])
os.setgid(65534)
os.setuid(65534)
print(socket.socket(socket.AF_UNIX).connect_ex(path))
"""


@pytest.mark.slow
@pytest.mark.engine
def test_metrics_socket_admits_its_group_only() -> None:
    def connected_as_nobody(path: Path, group: int = NOBODY) -> int:
        return int(subprocess.check_output([sys.executable, "-c", _CONNECT, str(path), str(group)], timeout=30))

    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to users without rights
        os.chmod(folder, 0o755)
        metrics = Path(folder, "m", "metrics.sock")
        flags = {"socket_mode": "0666", "metrics_endpoint": str(metrics), "metrics_group": "12345"}
        with ProxyProcess(Path(folder), **flags) as proxy:
            assert connected_as_nobody(proxy.socket) == 0
            for path, group in ((proxy.admin, NOBODY), (proxy.admin, 12345), (metrics, NOBODY)):
                assert connected_as_nobody(path, group) == errno.EACCES
            assert connected_as_nobody(metrics, 12345) == 0
