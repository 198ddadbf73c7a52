"""Selecting a hook server; requests as YAML; a call with its changes as YAML; and many calls for ``hook bench``."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, SubjectKind
from runtimeproxy.relay.rpc.connection import CallFailed, Kind
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request
from runtimeproxy_hooks.tools.client import WARM_UP_CALLS, Figures, HookCallFailed, Server, bench
from tests.fakes import hookanswers
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer

PRE_RUN, CREATE, PRE_START, POST_START = (
    BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer")
)
BODY = request.encoded(CREATE, request.example())


def test_server_is_selected_by_file_or_socket(tmp_path: Path) -> None:
    assert hook_client.find("unix:///run/x.sock") == Server("/run/x.sock")
    file, entry = tmp_path / "10-x.json", {"remote-endpoint": "unix:///run/x.sock"}
    file.write_text(json.dumps(entry))
    assert hook_client.find(str(file)) == Server("/run/x.sock", 2.0, frozenset())
    file.write_text(json.dumps({**entry, "timeout": "500ms", "runtime-hooks": ["PreStartContainer"]}))
    assert hook_client.find(str(file)) == Server("/run/x.sock", 0.5, frozenset({"PreStartContainer"}))


def test_text_that_names_no_server_is_error(tmp_path: Path) -> None:
    (file := tmp_path / "x.json").write_text("{}")
    for name, words in (
        ("x.sock", "SERVER: 'x.sock' is not a unix socket"),
        (file, f"{file}: remote-endpoint is missing"),
        (tmp_path / "y.json", f"{tmp_path}/y.json: the registration file cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=f"^{words}"):
            hook_client.find(str(name))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (CallFailed(14, "/run/a: b.sock: Connection refused", Kind.UNREACHABLE), "not reachable: Connection refused"),
        (CallFailed(14, "the peer took no more", Kind.UNREACHABLE), "not reachable: the peer took no more"),
        (CallFailed(4, "no answer in time", Kind.DEADLINE), "no answer in time"),
        (CallFailed(13, "cut", Kind.BROKEN), "broken answer: cut"),
        (CallFailed(16, "x", Kind.STATUS), "UNAUTHENTICATED: x"),
        (CallFailed(7, "not here", Kind.STATUS), "refused (PERMISSION_DENIED): not here"),
        (CallFailed(7, "", Kind.STATUS), "refused (PERMISSION_DENIED): without a text"),
        (CallFailed(12, "whatever", Kind.STATUS), "this hook point is not served (UNIMPLEMENTED)"),
        (CallFailed(2, "{text} \x1b[31mred\nline\x07", Kind.STATUS), "UNKNOWN: {text}  [31mred line"),
    ],
)
def test_failure_text_is_safe_to_print(failure: CallFailed, words: str) -> None:
    assert hook_client.words(failure) == words


async def test_undecodable_answer_is_reported_as_broken(tmp_path: Path) -> None:
    path = str(tmp_path / "hooks.sock")
    async with HookServer(path, default=hookanswers.garbage()), hook_client.connection(path) as client:
        with pytest.raises(CallFailed) as caught:
            await hook_client.call_hook(client, CREATE, BODY, 10.0)
    assert (caught.value.kind, caught.value.code) == (Kind.BROKEN, 13)


def test_figures_are_shown_in_milliseconds() -> None:
    figures = Figures([0.002, 0.001], 0.5, Counter({"no answer in time": 3, "INTERNAL: x": 1}))
    assert [" ".join(line.split()) for line in figures.lines] == [
        *("p50 1.000 ms", "p90 2.000 ms", "p99 2.000 ms", "longest 2.000 ms", "calls/s 4"),
        *("failures 4", "3 x no answer in time", "1 x INTERNAL: x"),
    ]
    assert [line.split() for line in Figures([], 1.0).lines] == [["calls/s", "0"], ["failures", "0"]]


async def measured(server: HookServer, **more: Any) -> Figures:
    return await asyncio.to_thread(bench, Server(server.socket_path), CREATE, BODY, timeout_seconds=10.0, **more)


async def test_calls_are_concurrent_after_warm_up(tmp_path: Path) -> None:
    """Each call waits for three of them: consecutive calls would all time out."""
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        barrier = asyncio.Barrier(3)

        async def answer(call: HookCall) -> bytes:
            if len(server.calls) > 1 + WARM_UP_CALLS:
                await barrier.wait()
            return b""

        server.default = answer
        figures = await measured(server, calls=150, concurrency=3)
        assert len(server.calls) == 1 + WARM_UP_CALLS + 150
    assert (len(figures.seconds), figures.failures) == (150, Counter())


async def test_failures_are_counted_by_their_reason(tmp_path: Path) -> None:
    async with HookServer(str(tmp_path / "hooks.sock")) as server:
        fail = hookanswers.status(grpc.StatusCode.INTERNAL, "odd")

        async def answer(call: HookCall) -> bytes:
            return await fail(call) if len(server.calls) % 2 == 0 else b""

        server.default = answer
        figures = await measured(server, calls=10, concurrency=1)
        server.default, earlier_calls = fail, len(server.calls)
        with pytest.raises(HookCallFailed, match="PreCreateContainer: INTERNAL: odd"):
            await measured(server, calls=10, concurrency=1)
        assert len(server.calls) == earlier_calls + 1
    assert (len(figures.seconds), figures.failures) == (5, Counter({"INTERNAL: odd": 5}))


RESOURCES_SENT = Resources(cpu_quota=50000, cpu_shares=2, cpuset_cpus="0-3", hugepage_limits={"2MB": 4096})
ENTRIES_SENT: Any = {"envs": {"A": "1", "EMPTY": ""}, "annotations": {"n": "a\nb"}}
SENT = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo(**ENTRIES_SENT, resources=RESOURCES_SENT))


def shown(answer: HookAnswer, hook_point: Any = CREATE) -> str:
    return "".join(f"{line}\n" for line in hook_client.answer_lines(hook_point, SENT, answer))


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


def test_answer_is_shown_as_changes_and_lost_entries() -> None:
    resources = Resources(cpu_quota=-1, cpu_shares=2, hugepage_limits={"2MB": 0, "1GB": 8192})
    envs = {"A": "2", "B": "x y", "EMPTY": "1", "on": "off"}
    answer = HookAnswer(envs=envs, annotations={"n": "c"}, cgroup_parent="/other", resources=resources)
    assert shown(answer) == CHANGED
    assert shown(merge.echo(SENT)) == shown(HookAnswer()) == "applied: {}\n"
    lost = HookAnswer(envs={"A": "2"}, resources=Resources(cpu_period=5, cpu_shares=4))
    assert shown(lost, PRE_START) == SECTIONS


@pytest.mark.parametrize("letter", ["k", "\n", "\x80"])
def test_key_of_any_length_is_shown_as_yaml(letter: str) -> None:
    for length in (100, 1022, 1023, 1024, 5000):
        envs = {letter * length: "1", "B": "2"}
        text = shown(HookAnswer(envs=envs))
        assert all(line.isprintable() for line in text.splitlines())
        assert yaml.safe_load(text) == {"applied": {"envs": envs}}


async def called(path: Path, answer: hookanswers.Answer, hook_point: Any = CREATE, **server: Any) -> hook_client.Called:
    """Call a server with the example request, as the command does: in a thread with its own event loop."""
    async with HookServer(str(path), default=answer):
        named = Server(str(path), **server)
        return await asyncio.to_thread(hook_client.call, named, hook_point, request.example(), 10.0)


async def test_call_shows_request_and_its_changes(tmp_path: Path) -> None:
    result = await called(tmp_path / "hooks.sock", hookanswers.koordlet(cpu_quota=-1))
    first, *heads = [line for line in result.text.splitlines() if line.startswith("#")]
    assert first.startswith(f"# PreCreateContainer at {tmp_path}/hooks.sock answered in ")
    assert heads == ["# not sent at this hook point: pod.runtime_handler, pod.overhead, container.id"]
    assert yaml.safe_load(result.text) == {"applied": {"resources": {"cpu_quota": -1}}}
    assert result.faults == ()
    points = frozenset({"PreStartContainer"})
    result = await called(tmp_path / "hooks.sock", hookanswers.echo(), POST_START, points=points)
    assert "# the proxy would not call: the registration file does not name PostStartContainer" in result.text
    assert "# the proxy ignores what is answered at this hook point" in result.text


# Requests as YAML.

EMPTY = HookRequest(PodInfo())


def of_pod(**fields: Any) -> HookRequest:
    return HookRequest(PodInfo(**fields))


NUMBERS = "{cpu_quota: -1, cpuset_cpus: 0, hugepage_limits: {2MB: 18446744073709551615}, unified: {a: b}}"
READ_NUMBERS = Resources(cpu_quota=-1, cpuset_cpus="0", hugepage_limits={"2MB": 2**64 - 1}, unified={"a": "b"})
READ: list[tuple[str, HookRequest]] = [
    *((text, EMPTY) for text in ("", "# nothing\n", "container:", "pod: {labels: , name: ~, attempt: null}")),
    ("container: {envs: {A: '1'}}", HookRequest(PodInfo(), ContainerInfo(envs={"A": "1"}))),
    ("pod: {name: web, uid: 0x1, attempt: 4294967295}", of_pod(name="web", uid="0x1", attempt=2**32 - 1)),
    ("pod: {overhead: {}}", of_pod(overhead=Resources())),
    (f"pod: {{resources: {NUMBERS}}}", of_pod(resources=READ_NUMBERS)),
    ("pod: {labels: &same {a: b}, annotations: *same}", of_pod(labels={"a": "b"}, annotations={"a": "b"})),
]


@pytest.mark.parametrize(("text", "read"), READ, ids=[text for text, _ in READ])
def test_request_is_parsed(text: str, read: HookRequest) -> None:
    assert request.parse(text, "f") == read


REFUSED = [
    ("- pod", "f:1: write 'key: value' lines here"),
    ("pod:\n  labls: {secret: canary}", "f:2: pod.labls: unknown key; did you mean labels?"),
    ("pod:\n  id: canary", "f:2: pod.id: unknown key; did you mean uid?"),
    ("container: {pod_id: canary}", "f:1: container.pod_id: unknown key; there are name, attempt, "),
    ("pod: {annotations: {a: {b: canary}}}", "f:1: pod.annotations.a: write one text, in quotes if it is JSON"),
    ("pod: {attempt: canary}", "f:1: pod.attempt: write a whole number, without a unit"),
    ("pod: {attempt: 4294967296}", "f:1: pod.attempt: write a number from 0 to 4294967295"),
    ("pod: {resources: {hugepage_limits: {2MB: -1}}}", "f:1: pod.resources.hugepage_limits.2MB: write a number from 0"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_error_has_line_and_key_but_no_value(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        request.parse(text, "f")
    assert str(caught.value).startswith(words)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_example_is_sent_completely_at_every_hook_point() -> None:
    for hook_point in HOOK_POINTS:
        sent = request.at_hook_point(hook_point, request.example())
        assert (sent.container is None) == (hook_point.subject is SubjectKind.POD)
        assert request.unsent(hook_point, sent) == ()
        assert request.encoded(hook_point, sent) == codec.encode(hook_point, sent)
    with pytest.raises(ConfigError, match=r"PreStartContainer is about a container, and the request has none: add"):
        request.encoded(PRE_START, EMPTY)


LOST = [
    *((PRE_RUN, "pod: {overhead: {cpu_shares: 2}}", ()), (PRE_RUN, "container: {name: main}", ("container",))),
    (CREATE, "{pod: {cgroup_parent: /b}, container: {cgroup_parent: /a}}", ("pod.cgroup_parent",)),
    (CREATE, "container: {id: c1}", ("container.id",)),
    (PRE_START, "{pod: {overhead: {}, runtime_handler: a}, container: {}}", ("pod.runtime_handler", "pod.overhead")),
    (PRE_START, '{pod: {}, container: {envs: {A: "\\ud83d"}}}', ("container.envs",)),
]


@pytest.mark.parametrize(("hook_point", "text", "lost"), LOST)
def test_field_that_proxy_never_sends_is_reported(hook_point: Any, text: str, lost: tuple[str, ...]) -> None:
    assert request.unsent(hook_point, request.parse(text, "f")) == lost
