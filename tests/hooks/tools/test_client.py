"""Finding a hook server; calling it once, with its changes shown as YAML; and often, for ``hook bench``."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.relay.rpc.connection import CallFailed, Kind
from runtimeproxy.settings.options import OPTIONS
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request
from runtimeproxy_hooks.tools.client import WARM_UP_CALLS, Figures, HookCallFailed, Server, bench, percentile
from tests.amounts import examples
from tests.fakes import hookanswers
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer
from tests.hooks.tools.test_request import ENTRIES, REQUESTS, RESOURCES, TEXTS

POINT = BY_NAME["PreCreateContainer"]
BODY = request.encoded(POINT, request.example())


NAMED: list[tuple[dict[str, object], Server]] = [
    ({}, Server("/run/x.sock", 2.0, frozenset())),
    ({"timeout": "500ms"}, Server("/run/x.sock", 0.5, frozenset())),
    ({"runtime-hooks": ["PreStartContainer"]}, Server("/run/x.sock", 2.0, frozenset({"PreStartContainer"}))),
]


@pytest.mark.parametrize(("more", "server"), NAMED)
def test_server_is_named_by_its_file_or_its_socket(tmp_path: Path, more: dict[str, object], server: Server) -> None:
    file = tmp_path / "10-x.json"
    file.write_text(json.dumps({"remote-endpoint": "unix:///run/x.sock", **more}))
    assert hook_client.find(str(file)) == server
    assert hook_client.find("unix:///run/x.sock") == Server("/run/x.sock")


UNNAMED = [
    ("x.sock", "SERVER: 'x.sock' is not a unix socket"),
    ("{}/x.json", "{}/x.json: remote-endpoint is missing"),
    ("{}/y.json", "{}/y.json: the registration file cannot be read: No such file"),
]


@pytest.mark.parametrize(("text", "words"), UNNAMED)
def test_text_that_names_no_server_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError) as caught:
        hook_client.find(text.format(tmp_path))
    assert str(caught.value).startswith(words.format(tmp_path))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (CallFailed(14, "/run/a: b.sock: Connection refused", Kind.UNREACHABLE), "not reachable: Connection refused"),
        (CallFailed(14, "the peer took no more", Kind.UNREACHABLE), "not reachable: the peer took no more"),
        (CallFailed(4, "no answer in time", Kind.DEADLINE), "no answer in time"),
        (CallFailed(13, "cut", Kind.BROKEN), "broken answer: cut"),
        (CallFailed(7, "not here", Kind.STATUS), "refused (PERMISSION_DENIED): not here"),
        (CallFailed(7, "", Kind.STATUS), "refused (PERMISSION_DENIED): without a text"),
        (CallFailed(12, "whatever", Kind.STATUS), "this hook point is not served (UNIMPLEMENTED)"),
        (CallFailed(2, "{text} \x1b[31mred\nline\x07", Kind.STATUS), "UNKNOWN: {text}  [31mred line"),
    ],
)
def test_failure_has_words_that_are_safe_to_print(failure: CallFailed, words: str) -> None:
    assert hook_client.words(failure) == words


def test_every_status_has_its_name() -> None:
    for status in grpc.StatusCode:
        number, _ = status.value
        if number not in (0, 7, 12):  # these have texts of their own, or are no failure
            assert hook_client.words(CallFailed(number, "x", Kind.STATUS)) == f"{status.name}: x"


def test_time_limit_is_the_proxys_own() -> None:
    assert ("hook-timeout", f"{hook_client.DEFAULT_TIMEOUT_SECONDS:g}s") in {
        (each.name, each.default) for each in OPTIONS
    }


async def test_answer_that_is_no_message_is_a_broken_one(tmp_path: Path) -> None:
    path = str(tmp_path / "hooks.sock")
    async with HookServer(path, default=hookanswers.garbage()), hook_client.connection(path) as client:
        with pytest.raises(CallFailed) as caught:
            await hook_client.call_hook(client, POINT, BODY, 10.0)
    assert (caught.value.kind, caught.value.code) == (Kind.BROKEN, 13)


RANKS = [(1, 99, 1), (2, 50, 1), (2, 51, 2), (2, 100, 2), (10, 90, 9), (10, 99, 10), (100, 99, 99), (101, 99, 100)]


@pytest.mark.parametrize(("count", "percent", "value"), RANKS)
def test_percentile_is_the_value_of_the_nearest_rank(count: int, percent: int, value: int) -> None:
    assert percentile(list(range(1, count + 1)), percent) == value


def test_figures_are_shown_in_milliseconds() -> None:
    figures = Figures([0.002, 0.001], 0.5, Counter({"no answer in time": 3, "INTERNAL: x": 1}))
    assert [" ".join(line.split()) for line in figures.lines] == [
        *("p50 1.000 ms", "p90 2.000 ms", "p99 2.000 ms", "longest 2.000 ms", "calls/s 4"),
        *("failures 4", "3 x no answer in time", "1 x INTERNAL: x"),
    ]
    assert [line.split() for line in Figures([], 1.0).lines] == [["calls/s", "0"], ["failures", "0"]]


async def measured(server: HookServer, **more: Any) -> Figures:
    return await asyncio.to_thread(bench, Server(server.socket_path), POINT, BODY, timeout_seconds=10.0, **more)


@pytest.mark.parametrize("concurrency", [1, 7, 300])
async def test_calls_are_made_after_a_warm_up(tmp_path: Path, concurrency: int) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        figures = await measured(server, calls=150, concurrency=concurrency)
        assert len(server.calls) == 1 + WARM_UP_CALLS + 150
    assert (len(figures.seconds), figures.failures) == (150, Counter())


async def test_calls_at_a_time_are_at_the_same_time(tmp_path: Path) -> None:
    """Each call waits until three have come: one after the other they would all be late."""
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        barrier = asyncio.Barrier(3)

        async def answer(call: HookCall) -> bytes:
            if len(server.calls) > 1:
                await barrier.wait()
            return b""

        server.default = answer
        figures = await measured(server, calls=3, concurrency=3)
    assert (len(figures.seconds), figures.failures) == (3, Counter())


async def test_failures_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        fail = hookanswers.status(grpc.StatusCode.INTERNAL, "odd")

        async def answer(call: HookCall) -> bytes:
            return await fail(call) if len(server.calls) % 2 == 0 else b""

        server.default = answer
        figures = await measured(server, calls=10, concurrency=1)
    assert (len(figures.seconds), figures.failures) == (5, Counter({"INTERNAL: odd": 5}))


async def test_server_that_fails_at_once_is_not_measured(tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.BY_NAME["refuse"]()) as server:
        with pytest.raises(HookCallFailed, match="PreCreateContainer: refused"):
            await measured(server, calls=10, concurrency=1)
        assert len(server.calls) == 1


PRE_START, POST_START = BY_NAME["PreStartContainer"], BY_NAME["PostStartContainer"]
RESOURCES_SENT = Resources(cpu_quota=50000, cpu_shares=2, cpuset_cpus="0-3", hugepage_limits={"2MB": 4096})
ENTRIES_SENT: Any = {"envs": {"A": "1", "EMPTY": ""}, "annotations": {"n": "a\nb"}}
SENT = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo(**ENTRIES_SENT, resources=RESOURCES_SENT))


def shown(answer: HookAnswer, point: Any = POINT) -> str:
    return "".join(f"{line}\n" for line in hook_client.answer_lines(point, SENT, answer))


CHANGED = """applied:
  annotations:
    n: "c"  # was "a\\nb"
  envs:
    A: "2"  # was "1"
    B: "x y"
    EMPTY: "1"
    "on": "off"
  cgroup_parent: "/other"  # was "/pod"
  resources:
    cpu_quota: -1  # was 50000
    cpuset_cpus: ""  # was "0-3"
    hugepage_limits:
      "2MB": 0  # was 4096
      "1GB": 8192
"""
SECTIONS = """applied:
  resources:
    cpu_shares: 4  # was 2
dropped:
  resources:
    cpu_period: 5
without-effect:
  envs:
    A: "2"  # was "1"
bad:
  - "resources.cpu_period: must be 0 (not set) or 1000..1000000 microseconds"
"""


def test_answer_is_shown_as_what_it_changes() -> None:
    resources = Resources(cpu_quota=-1, cpu_shares=2, hugepage_limits={"2MB": 0, "1GB": 8192})
    envs = {"A": "2", "B": "x y", "EMPTY": "1", "on": "off"}
    answer = HookAnswer(envs=envs, annotations={"n": "c"}, cgroup_parent="/other", resources=resources)
    assert shown(answer) == CHANGED
    assert shown(merge.echo(SENT)) == shown(HookAnswer()) == "applied: {}\n"


def test_changes_that_are_lost_are_shown_with_the_reason() -> None:
    resources = Resources(cpu_period=5, cpu_shares=4)
    assert shown(HookAnswer(envs={"A": "2"}, resources=resources), PRE_START) == SECTIONS


@pytest.mark.parametrize("letter", ["k", "\n", "é", "\x80"])
@pytest.mark.parametrize("length", [100, 102, 103, 511, 512, 1021, 1022, 1023, 1024, 1025, 5000])
def test_key_of_any_length_is_shown_as_yaml(letter: str, length: int) -> None:
    envs = {letter * length: "1", "B": "2"}
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert yaml.load(shown(HookAnswer(envs=envs)), loader) == {"applied": {"envs": envs}}


MAPS = dict.fromkeys(("labels", "annotations", "envs"), ENTRIES)
ANSWERS = st.builds(HookAnswer, **MAPS, cgroup_parent=TEXTS, resources=st.none() | RESOURCES)


@given(st.sampled_from(HOOK_POINTS), REQUESTS, ANSWERS)
@settings(max_examples=examples(50))
def test_shown_yaml_is_on_plain_lines_and_as_the_proxy_does(
    point: Any, queried: HookRequest, answer: HookAnswer
) -> None:
    change = merge.difference(queried, answer)
    text = "\n".join(hook_client.answer_lines(point, queried, answer))
    assert all(line.isprintable() for line in text.split("\n"))
    read = yaml.safe_load(text)
    good, broken = merge.validated(change, queried) if point.applies else (change, ())
    assert read.get("bad", []) == list(map(str, broken))
    applied, dropped, idle = (read.get(part, {}) for part in ("applied", "dropped", "without-effect"))
    assert applied == _tree(merge.applicable(point, good))
    assert {*_leaves(applied), *_leaves(idle)} == {*_leaves(_tree(good))}
    assert sorted([*_leaves(applied), *_leaves(idle), *_leaves(dropped)]) == sorted(_leaves(_tree(change)))


def _leaves(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}/{key}")
        else:
            yield f"{path}/{key}={value}"


def _tree(change: Any) -> dict[str, Any]:
    parts = ("labels", "annotations", "envs", "cgroup_parent", "resources")
    return {part: value for part in parts if (value := getattr(change, part)) not in (None, {})}


async def called(path: Path, answer: hookanswers.Answer, point: Any = POINT, **server: Any) -> hook_client.Called:
    """Call a server with the example request, as the command does: in a thread with an event loop of its own."""
    async with HookServer(str(path / "hooks.sock"), default=answer):
        named = Server(str(path / "hooks.sock"), **server)
        return await asyncio.to_thread(hook_client.call, named, point, request.example(), 10.0)


async def test_call_shows_the_request_and_its_changes(tmp_path: Path) -> None:
    found = await called(tmp_path, hookanswers.koordlet(cpu_quota=-1))
    heads = [line for line in found.text.splitlines() if line.startswith("#")]
    assert heads[0].startswith(f"# PreCreateContainer at {tmp_path}/hooks.sock answered in ")
    assert heads[1:] == ["# not sent at this hook point: pod.runtime_handler, pod.overhead, container.id"]
    assert yaml.safe_load(found.text) == {"applied": {"resources": {"cpu_quota": -1}}}
    assert found.faults == ()


async def test_call_that_the_proxy_would_not_make_is_reported(tmp_path: Path) -> None:
    found = await called(tmp_path, hookanswers.echo(), POST_START, points=frozenset({"PreStartContainer"}))
    assert "# the proxy would not call: the registration file does not name PostStartContainer" in found.text
    assert "# the proxy ignores what is answered at this hook point" in found.text
    queried = await called(tmp_path, hookanswers.echo(), POST_START, points=frozenset({"PostStartContainer"}))
    assert "would not query" not in queried.text
