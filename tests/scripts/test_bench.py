"""The bench: limits are judged by the rounds' median, a failed call is no measurement, peers answer as Go's do."""

import asyncio
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from runtimeproxy.hookapi import api_pb2
from runtimeproxy.model.interner import StringInterner
from runtimeproxy.wire import http2
from scripts.benchmark import __main__ as benchmark
from scripts.benchmark import admin, cases, ends, fullnode, hooks, loads, measure, node, peers, programs, way
from scripts.benchmark.cases import CRI, DIRECT, DOCKER, EXPORT, HOOKED, IMPORT, PIPE, PROXY, Case, Figures, Round
from scripts.benchmark.loads import BUFFER_BYTES, LAST_CHUNK, H2load, Kubelet, Run, Transfer
from scripts.benchmark.programs import HOOKS, Served
from scripts.benchmark.way import Recorder, Way
from scripts.demonstration.processes import DemoError, Program
from scripts.figures import Figure, at_most
from tests.fakes import cri_pb2
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.server import StreamServer

Patch, Out = pytest.MonkeyPatch, pytest.CaptureFixture[str]
CREATE, START, VERSION = cases.CREATE, cases.START, cases.VERSION


def figures(p50: float, cpu: float = 100.0, growth: float = 0.5) -> Figures:
    return Figures(p50, 2 * p50, 1e6 / p50, cpu, growth)


def a_round(mode: str, changed: dict[tuple[Case, str], Figures] | None = None) -> Round:
    """Return a round in which every figure is 100, and the growth half a MiB, except for the changed ones."""
    ways = [(case, way) for case in cases.CASES if case.mode == mode for way in case.ways]
    nothing = float("nan")
    return {each: figures(100.0, *([nothing, nothing] if each[1] == DIRECT else [])) for each in ways} | (changed or {})


def slow_small(p50: float) -> Round:
    return a_round(CRI, {(VERSION, PROXY): figures(p50)})


MISSES = [
    (a_round(CRI), []),
    (a_round(DOCKER), []),
    (slow_small(116), ["Version: p50, proxy to pipe"]),
    (a_round(CRI, {(VERSION, PROXY): figures(100, 141)}), ["Version: cpu, proxy to pipe"]),
    (a_round(CRI, {(cases.LISTED, PROXY): figures(100, 116)}), ["list of 200: cpu, proxy to pipe"]),
    (a_round(CRI, {(CREATE, PROXY): figures(171)}), ["CreateContainer: p50, proxy to direct"]),
    (a_round(CRI, {(CREATE, HOOKED): figures(281)}), ["CreateContainer: p50, proxy+hook to direct"]),
    (a_round(CRI, {(CREATE.cold, PROXY): figures(191)}), ["CreateContainer, cold: p50, proxy to direct"]),
    (a_round(CRI, {(cases.RUN, HOOKED): figures(1, 901)}), ["RunPodSandbox: cpu, proxy+hook to pipe for Version"]),
    (a_round(DOCKER, {(cases.DOCKER_UPDATE, PROXY): figures(1, 701)}), ["update: cpu, proxy to pipe for ping"]),
    (a_round(DOCKER, {(IMPORT, PROXY): figures(112)}), ["import of 1 GiB: throughput, proxy to pipe"]),
    (a_round(DOCKER, {(EXPORT, PROXY): figures(100, growth=1.1)}), ["export of 1 GiB: growth, proxy"]),
]


@pytest.mark.parametrize(("measured", "missed"), MISSES)
def test_missed_limit_is_named(measured: Round, missed: list[str]) -> None:
    assert [figure.what for figure in cases.judge([measured]) if figure.kept is False] == missed


def test_median_of_the_rounds_decides() -> None:
    rounds = [slow_small(value) for value in (900.0, 112.0, 110.0, 114.0, 130.0)]
    name = "Version: p50, proxy to pipe"
    assert cases.judge(rounds)[0] == Figure(name, "1.14 (best round 1.10)", "at most 1.15", True)
    rounds[1] = rounds[2] = slow_small(116.0)
    assert cases.judge(rounds)[0] == Figure(name, "1.16 (best round 1.14)", "at most 1.15", False)
    assert cases.judge(rounds, judged=False)[0].verdict == "not judged"


def test_best_throughput_is_the_highest() -> None:
    found = cases.by_median("throughput", [1.0, 0.8, 0.5], 0.9, least=True)
    assert found == Figure("throughput", "0.80 (best round 1.00)", "at least 0.90", False)


def test_every_held_call_has_its_limits() -> None:
    held = {*cases.HELD, *(case.cold for case in cases.HELD)}
    to_direct = {(limit.case, limit.way) for limit in cases.LIMITS if limit.base == DIRECT}
    assert to_direct == {(case, way) for case in held for way in (PROXY, HOOKED)}
    for what in ("p50", "cpu"):
        assert {limit.case for limit in cases.LIMITS if limit.figure == what} >= {*cases.HELD, *cases.SMALL.values()}
    for limit in cases.LIMITS:
        assert {limit.way, limit.base or PIPE} <= set(limit.case.ways)


def test_table_has_ratios_where_there_is_a_base() -> None:
    _, *rows = cases.figure_table([slow_small(150.0), slow_small(170.0)])
    of = {(row[0], row[1]): row[2:] for row in rows}
    assert of[VERSION.name, PROXY] == ["160", "320", "6275", "100.00", "0.50", "1.60", "1.60", "1.00"]
    assert of[CREATE.name, DIRECT][3:] == ["-", "-", "1.00", "1.00", "-"]
    assert cases.figure_table([a_round(DOCKER, {(EXPORT, PROXY): figures(1.25e6)})])[-4][4] == "0.80"


def test_number_is_judged_before_it_is_rounded() -> None:
    found = at_most("a", 1.004, 1.0, " MiB")
    assert found == Figure("a", "1.00 MiB", "at most 1 MiB", False)
    assert (found.verdict, found.missed) == ("MISSED", "a is 1.00 MiB, the limit is at most 1 MiB")


@pytest.mark.parametrize(("check", "rounds"), [(True, 5), (False, 1)])
def test_missed_limit_fails_only_with_check(monkeypatch: Patch, capsys: Out, check: bool, rounds: int) -> None:
    slow = [slow_small(116.0) for _ in range(rounds)]
    monkeypatch.setattr(measure, "one_round", lambda mode, share: slow.pop())
    monkeypatch.setattr(measure, "resident", lambda mode, share: [at_most("start", 0.3, 0.2, " s")])
    monkeypatch.setattr(measure, "huge_list", lambda: Figure("a list", "changed", "unchanged", False))
    monkeypatch.setattr("sys.argv", ["bench", "--mode", "cri", *(["--check"] if check else [])])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert benchmark.main() == int(check)
    assert not slow
    assert capsys.readouterr().err.splitlines() == (check * 1) * [
        "FAILED: cri: start is 0.30 s, the limit is at most 0.2 s",
        "FAILED: cri: Version: p50, proxy to pipe is 1.16 (best round 1.16), the limit is at most 1.15",
        "FAILED: cri: a list is changed, the limit is unchanged",
    ]


FAILED = [
    ("", [(CRI, 1.0), (DOCKER, 1.0), (hooks.NAME, 1.0), (admin.NAME, 1.0)]),
    *(("--mode docker", [(DOCKER, 1.0)]), ("--mode hooks --quick", [(hooks.NAME, 0.1)])),
]


@pytest.mark.parametrize(("arguments", "measured"), FAILED)
def test_failed_mode_keeps_no_other_from_running(
    monkeypatch: Patch, capsys: Out, arguments: str, measured: list[Any]
) -> None:
    found = []

    def fail(name: str, check: bool, share: float) -> Iterator[Figure]:
        found.append((name, share))
        raise DemoError("h2load is missing")

    monkeypatch.setattr(benchmark, "bench", fail)
    monkeypatch.setattr("sys.argv", ["bench", *arguments.split()])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert benchmark.main() == 1
    assert found == measured
    assert capsys.readouterr().err.count("h2load is missing") == len(measured)


LOG = "1000000\t200\t300\n1000300\t200\t100\n1000400\t200\t600\n"


def test_h2load_log_is_read() -> None:
    run = loads.read_log(LOG, 3, 200)
    assert run == Run([300, 100, 600], 0.001, [1, 2, 2])
    assert run.plus(Run([1], 0.5, [1])) == Run((300, 100, 600, 1), 0.501, (1, 2, 2, 1))


@pytest.mark.parametrize(
    ("text", "calls", "says"),
    [
        (LOG, 4, "3 requests of 4, 3 of them"),
        (LOG.replace("200\t100", "-1\t100"), 3, "3 requests of 3, 2 of them"),
        (LOG.replace("200\t100", "503\t100"), 3, "3 requests of 3, 2 of them with status 200"),
        ("", 1, "0 requests of 1"),
    ],
)
def test_failed_request_is_no_measurement(text: str, calls: int, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        loads.read_log(text, calls, 200)


@pytest.mark.parametrize(
    ("microseconds", "percent", "expected"),
    [((7,), 50, 7), ((3, 1, 2), 50, 2), ((4, 3, 1, 2), 50, 2), (range(1, 201), 99, 198), ((5, 9), 99, 9)],
)
def test_percentiles_are_by_nearest_rank(microseconds: Any, percent: float, expected: int) -> None:
    assert Run(microseconds, 1.0).percentile(percent) == expected


AT_A_TIME = [(CRI, 1, 1000, 1, 200), (CRI, 20, 1000, 20, 10), (DOCKER, 1, 1000, 200, 1), (DOCKER, 1, 2, 2, 1)]


@pytest.mark.parametrize(("mode", "connections", "calls", "clients", "streams"), AT_A_TIME)
def test_h2load_makes_so_many_calls(mode: str, connections: int, calls: int, clients: int, streams: int) -> None:
    command = H2load(mode, "/", Path("x.sock"), Path("files"), b"", 200, connections).command(calls)
    assert {f"--requests={calls}", f"--clients={clients}", f"--max-concurrent-streams={streams}"} <= {*command}
    assert ("--h1" in command) is (mode == DOCKER)


OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(path: Path, end: bytes, answer: Callable[[bytes], bytes]) -> AsyncIterator[None]:
    """Read a request of each connection up to ``end``, answer it, close."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readuntil(end)))
        writer.close()

    async with StreamServer(path, serve, limit=4 * BUFFER_BYTES):
        yield


@pytest.mark.parametrize(
    ("method", "reply", "says"),
    [
        ("GET", b"", "ended after 0 bytes"),
        ("GET", OK + b"5\r\nabc", "ended after 53 bytes"),
        ("GET", OK + LAST_CHUNK, "only 52 bytes came"),
        ("GET", b"HTTP/1.1 404 Not Found\r\n\r\n", "the reply is b'HTTP/1.1 404 Not Found"),
        ("POST", b"HTTP/1.1 400 Bad Request\r\n\r\n", "the reply is b'HTTP/1.1 400 Bad Request"),
        ("POST", OK + b"5\r\nabcde\r\n" + LAST_CHUNK, "the daemon says"),
    ],
)
async def test_transfer_that_is_cut_is_no_measurement(tmp_path: Path, method: str, reply: bytes, says: str) -> None:
    transfer = Transfer(method, "/target", tmp_path / "x.sock", BUFFER_BYTES)
    async with answering(transfer.path, LAST_CHUNK if method == "POST" else b"\r\n\r\n", lambda _: reply):
        with pytest.raises(DemoError, match=says):
            await asyncio.to_thread(transfer.run, 1)


@pytest.mark.parametrize(
    ("create", "start", "says"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", b"", "create was answered b'HTTP/1.1 404"),
        (b'HTTP/1.1 201 Created\r\n\r\n{"Id": "1"}', b"HTTP/1.1 500 \r\n\r\n", "start was answered b'HTTP/1.1 500"),
        (b'HTTP/1.1 201 Created\r\n\r\n{"Id": "1"}', peers.UPGRADED + b"short", "and 5 bytes"),
    ],
)
async def test_exec_that_fails_is_no_measurement(tmp_path: Path, create: bytes, start: bytes, says: str) -> None:
    path = tmp_path / "x.sock"
    async with answering(path, b"\r\n\r\n", lambda asked: start if b"/start" in asked else create):
        with pytest.raises(DemoError, match=says):
            await asyncio.to_thread(loads.Execs(path, "c1", 1).run, 1)


@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_every_case_is_answered_and_counted(mode: str) -> None:
    with programs.served(mode, [DIRECT], share=0.001) as served:
        for case in cases.CASES:
            if case.mode == mode:
                load = measure.prepare(served, case, DIRECT)
                run = load.run(3) if isinstance(load, Kubelet) else served.send(DIRECT, case.route, load, 3)
                assert len(run.microseconds) == 3
                assert run.seconds >= sum(run.microseconds) / 1e6 - 1e-5 + 3 * case.pause
                assert served.made[DIRECT][case.route] >= 3


@pytest.mark.parametrize(
    ("mode", "route", "made"),
    [
        (CRI, START.route, {cases.RUN.route: 1, CREATE.route: 1, START.route: 2}),
        (DOCKER, cases.DOCKER_CREATE.route, {cases.DOCKER_POD: 1, cases.DOCKER_CREATE.route: 2}),
    ],
)
def test_what_a_call_is_about_is_counted_with_it(mode: str, route: str, made: dict[str, int]) -> None:
    with programs.served(mode, [DIRECT]) as served:
        Kubelet(served.client(DIRECT), route).run(2)
        assert +served.made[DIRECT] == made


@pytest.mark.slow
def test_answers_are_whole_and_ids_are_new() -> None:
    with programs.served(CRI, [DIRECT], list_bytes=3 << 20) as served:
        client = served.client(DIRECT)
        assert isinstance(client, ends.CriClient)
        listed = client.call("ListContainers", cri_pb2.ListContainersRequest())
        assert [len(listed.containers), listed.ByteSize() >= 3 << 20] == [node.LISTED, True]
        run = cri_pb2.RunPodSandboxRequest(config=node.pod_config())
        ids = {client.call("RunPodSandbox", run).pod_sandbox_id for _ in range(3)}
        assert len(ids - {pod.id for pod in node.PODS.items}) == 3
        with pytest.raises(DemoError, match="'grpc-status': '12'"):
            client.call("Attach", cri_pb2.AttachRequest())
    with programs.served(DOCKER, [DIRECT]) as served:
        docker = served.client(DIRECT)
        assert isinstance(docker, ends.DockerClient)
        assert docker.call(cases.DOCKER_LISTED.route, "/containers/json") == node.docker_containers()
        made = docker.call(peers.INSPECT, f"/containers/{docker.container()}/json")
        assert made["Name"] == "/k8s_main_web_default_u1_0"
        with pytest.raises(DemoError, match=r"GET /nothing failed: HTTP/1\.1 404"):
            docker.call("GET /nothing", "/nothing")


@pytest.mark.parametrize(
    ("sent", "output", "says"),
    [
        ({"Version": 5}, '{"Version": 5}\nTask exception was never retrieved', ""),
        ({"Version": 6}, 'listening\n{"Version": 5}\n', "direct answered {'Version': 5}, sent was"),
        ({"Version": 5}, "Traceback (most recent call last):\nOSError\n", "direct answered None"),
    ],
)
def test_servers_must_have_counted_what_was_sent(tmp_path: Path, sent: dict[str, int], output: str, says: str) -> None:
    served = Served(tmp_path, CRI, sent=Counter(sent))
    served.made[HOOKED] = Counter({START.route: 3})
    hook = '{"PreStartContainerHook": 3, "PostStartContainerHook": 3}'
    for name, text in {DIRECT: output, HOOKS: hook}.items():
        (tmp_path / name).write_text(text)
        served.programs[name] = Program(name, None, tmp_path / name)  # type: ignore[arg-type]
    if not says:
        served.compare_counts([HOOKED], list(cases.POINTS))
        served.made[HOOKED][START.route] += 1
    with pytest.raises(DemoError, match=re.escape(says or "hooks answered")):
        served.compare_counts([HOOKED], list(cases.POINTS))


def test_hook_server_changes_containers() -> None:
    answer = api_pb2.ContainerResourceHookResponse.FromString(peers._hook("PreCreateContainerHook", b""))
    assert answer.container_resources.cpuset_cpus == "0"
    assert answer.container_envs == {"HOOKED": "1"}
    assert peers._hook("PreRunPodSandboxHook", b"") == b""


def test_data_is_answered_with_credit_and_one_ping_at_a_time() -> None:
    end, peer = ends.GrpcEnd(), ends.GrpcEnd()
    first, second = (end.beside(http2.DATA, 0, b"12345") for _ in range(2))
    assert [kind for kind, *_ in peer.frames(first)] == [http2.WINDOW_UPDATE, http2.PING]
    assert second == http2.window_update(0, 5)
    [(kind, flags, _, payload)] = peer.frames(peer.beside(http2.PING, 0, b"12345678"))
    assert (kind, flags, payload) == (http2.PING, http2.ACK, b"12345678")
    assert end.beside(kind, flags, payload) == b""
    assert end.beside(http2.DATA, 0, b"12345") == first


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 204 No Content\r\nA: b\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", True),
        (OK + b"3\r\nabc", False),
        (OK + b"3\r\nabc\r\n0\r\n\r\n", True),
    ],
)
def test_end_of_an_http_message_is_known(message: bytes, ended: bool) -> None:
    assert (ends.read_message(message) is not None) is ended


def test_full_node_has_its_pods_and_no_two_alike(tmp_path: Path) -> None:
    answers = fullnode.cri_answers(3, 2)
    assert Counter(method for method, _ in answers)["ContainerStatus"] == 6
    listed = cri_pb2.ListPodSandboxResponse.FromString(answers["ListPodSandbox", b""])
    assert len({pod.metadata.uid for pod in listed.items}) == 3
    dockerd = FakeDockerd(str(tmp_path / "x.sock"))
    fullnode.fill(dockerd, 3, 2)
    assert len(dockerd.state.containers) == 9


@pytest.mark.slow
@pytest.mark.parametrize("mode", [CRI, DOCKER])
def test_all_that_runs_on_a_full_node_is_found(mode: str) -> None:
    """Fault matrix S1."""
    found = measure.full_node(mode, pods=3, containers=2)
    assert (found.pods, found.containers) == (3, 6)
    assert min(found.ready, found.complete) >= 0


@contextmanager
def noted(metrics: Recorder) -> Iterator[socket.socket]:
    """Record what the block calls, and sends on the socket."""
    end, peer = socket.socketpair()
    with end, peer:
        metrics.start()
        sys.setprofile(metrics.note)
        try:
            yield end
        finally:
            sys.setprofile(None)
            metrics.on = False


def test_functions_calls_and_sends_of_a_way_are_counted() -> None:
    metrics = Recorder("")  # the address of a socket of a pair
    with noted(metrics) as end:
        http2.frame(http2.DATA, 0, 1)
        http2.window_update(1, 5)
        http2.settings({1: 2})  # has a generator expression
        end.send(b"the end of the answer")
        answered = monotonic_ns()
        StringInterner()
        http2.frame(http2.DATA, 0, 1)
        end.send(b"more")
    found = metrics.way("start", True, answered)
    names = ("frame", "window_update", "settings", "settings_payload")
    assert found.named == tuple(("wire/http2.py", name) for name in names)
    assert found.row == ("start", "asked", "4", "1", "6", "1", "1", "1")  # two of them call frame


def test_way_without_an_answer_is_no_measurement() -> None:
    metrics = Recorder("/elsewhere")
    with noted(metrics) as end:
        end.send(b"to the runtime")
    with pytest.raises(DemoError, match="start: no send of the answer"):
        metrics.way("start", True, monotonic_ns())


def a_way(call: str, hooked: bool, functions: int = 1, files: int = 1, sends: int = 1) -> Way:
    named = [(f"{min(number, files)}.py", str(number)) for number in range(1, functions + 1)]
    return Way(call, hooked, named, functions, sends, 0, 0)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        (a_way("CreateContainer", True, 110, 22, 5), []),
        (a_way("CreateContainer", True, 111), ["CreateContainer, hooked: 111 functions, the limit is 110"]),
        (a_way("create", True, 26, 26), ["create, hooked: 26 files, the limit is 25"]),
        (a_way("CreateContainer", True, sends=6), ["CreateContainer, hooked: 6 sends, the limit is 5"]),
        (a_way("StartContainer", True, sends=8), ["StartContainer, hooked: 8 sends, the limit is 7"]),
        (a_way("StartContainer", False, 61), ["StartContainer, without a hook server: 61 functions, the limit is 60"]),
    ],
)
def test_missed_limit_of_a_way_is_named(changed: Way, missed: list[str]) -> None:
    assert way.missed([changed]) == missed


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--check"], 1)])
def test_way_fails_only_with_check(monkeypatch: Patch, capsys: Out, flags: list[str], code: int) -> None:
    long = {mode: [a_way(case.name, True, 200) for case in cases.HELD if case.mode == mode] for mode in cases.MODES}
    monkeypatch.setattr(way, "measure", lambda mode, hooked: long[mode])
    monkeypatch.setattr("sys.argv", ["way", *flags])
    assert way.main() == code
    assert ("CreateContainer, hooked: 200 functions" in capsys.readouterr().err) is bool(flags)


@pytest.mark.slow
def test_functions_of_a_real_call_are_listed() -> None:
    command = [sys.executable, "-m", "scripts.benchmark.way", "--list", "CreateContainer"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bare, hooked = printed.split("CreateContainer, ")[1:]
    for listed, head in ((bare, "no hook server: "), (hooked, "hook server asked: ")):
        first, *functions = listed.splitlines()
        assert first.startswith(head)
        assert len(functions) == len(set(functions)) == int(first.split()[-2])
        assert functions[0].split()[0] == "relay/connection.py"
    assert "plugins/client.py" not in bare
    assert "plugins/client.py" in hooked
