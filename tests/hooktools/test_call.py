"""What an answer changes, as it is shown: YAML, whatever is answered."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy import merge
from runtimeproxy.errors import ConfigError
from runtimeproxy.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy.hooktools import call, request
from runtimeproxy.hooktools.asking import HookCallFailed, Server
from runtimeproxy.model import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from tests.amounts import examples
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.hooks.nodes import rows
from tests.hooktools.test_request import ENTRIES, REQUESTS, RESOURCES, TEXTS
from tests.merge_cases import BAD

PRE_CREATE, PRE_START, POST_START = (
    BY_NAME[name] for name in ("PreCreateContainer", "PreStartContainer", "PostStartContainer")
)
SENT = HookRequest(
    PodInfo(cgroup_parent="/pod"),
    ContainerInfo(
        envs={"A": "1", "EMPTY": ""},
        annotations={"n": "a\nb"},
        resources=Resources(cpu_quota=50000, cpu_shares=2, cpuset_cpus="0-3", hugepage_limits={"2MB": 4096}),
    ),
)


def lines(answer: HookAnswer, point: Any = PRE_CREATE) -> str:
    return "\n".join(call.shown(point, SENT, answer))


ENTRIES_SET = HookAnswer(envs={"A": "2", "B": "x y", "EMPTY": "1", "on": "off"}, annotations={"n": "c"})
NUMBERS_SET = Resources(cpu_quota=-1, cpu_shares=2, hugepage_limits={"2MB": 0, "1GB": 8192})
BAD_NUMBERS = Resources(cpu_period=5, cpu_quota=60000, cpu_shares=4, oom_score_adj=2000)
SHOWN: list[tuple[str, Any, HookAnswer, str]] = [
    ("nothing", PRE_CREATE, HookAnswer(), "applied: {}"),
    ("an echo", PRE_CREATE, merge.echo(SENT), "applied: {}"),
    (
        "new and changed entries",
        PRE_CREATE,
        ENTRIES_SET,
        'applied:\n  annotations:\n    n: "c"  # was "a\\nb"\n'
        '  envs:\n    A: "2"  # was "1"\n    B: "x y"\n    EMPTY: "1"\n    "on": "off"',
    ),
    (
        "resources and the cgroup parent",
        PRE_CREATE,
        HookAnswer(cgroup_parent="/other", resources=NUMBERS_SET),
        'applied:\n  cgroup_parent: "/other"  # was "/pod"\n'
        '  resources:\n    cpu_quota: -1  # was 50000\n    cpuset_cpus: ""  # was "0-3"\n'
        '    hugepage_limits:\n      "2MB": 0  # was 4096\n      "1GB": 8192',
    ),
    (
        "what has no effect",
        PRE_START,
        HookAnswer(envs={"A": "2"}, resources=Resources(cpu_shares=4)),
        'applied:\n  resources:\n    cpu_shares: 4  # was 2\nwithout-effect:\n  envs:\n    A: "2"  # was "1"',
    ),
    (
        "every broken rule",
        PRE_CREATE,
        HookAnswer(envs={"A": "\0", "C": "1"}, resources=BAD_NUMBERS),
        'applied:\n  envs:\n    C: "1"\n  resources:\n    cpu_shares: 4  # was 2\n    cpuset_cpus: ""  # was "0-3"\n'
        'dropped:\n  envs:\n    A: "\\0"  # was "1"\n'
        "  resources:\n    cpu_period: 5\n    cpu_quota: 60000  # was 50000\n    oom_score_adj: 2000\n"
        'bad:\n  - "envs: a value must not contain NUL"\n'
        '  - "resources.cpu_period: must be 0 (not set) or 1000..1000000 microseconds"\n'
        '  - "resources.oom_score_adj: must be -1000..1000"',
    ),
    (
        "bad and without effect",
        PRE_START,
        HookAnswer(envs={"A": "2", "": "3"}, annotations={"n": "c"}),
        'applied: {}\ndropped:\n  envs:\n    "": "3"\n'
        'without-effect:\n  annotations:\n    n: "c"  # was "a\\nb"\n  envs:\n    A: "2"  # was "1"\n'
        'bad:\n  - "envs: a key must not be empty and must not contain \\"=\\" or NUL"',
    ),
    (
        "normal forms",
        PRE_CREATE,
        HookAnswer(resources=Resources(cpu_quota=834, cpuset_cpus="4-7,", cpuset_mems=",")),
        'applied:\n  resources:\n    cpu_quota: 1000  # was 50000\n    cpuset_cpus: "4-7"  # was "0-3"',
    ),
    (
        "a Post point ignores all, bad or not",
        POST_START,
        HookAnswer(envs={"": "2"}),
        'applied: {}\nwithout-effect:\n  envs:\n    "": "2"',
    ),
]


@pytest.mark.parametrize(("point", "answer", "text"), rows(SHOWN))
def test_answer_is_shown_as_what_it_changes(point: Any, answer: HookAnswer, text: str) -> None:
    assert lines(answer, point) == text


@pytest.mark.parametrize("letter", ["k", "\n", "é", "\x80"])
@pytest.mark.parametrize("length", [100, 102, 103, 511, 512, 1021, 1022, 1023, 1024, 1025, 5000])
def test_key_of_any_length_is_shown_as_yaml(letter: str, length: int) -> None:
    envs = {letter * length: "1", "B": "2"}
    assert yaml.safe_load(lines(HookAnswer(envs=envs))) == {"applied": {"envs": envs}}
    assert yaml.load(lines(HookAnswer(envs=envs)), yaml.CSafeLoader) == {"applied": {"envs": envs}}


@pytest.mark.parametrize("answer", [answer for _, answer in BAD], ids=[field for field, _ in BAD])
def test_bad_answer_is_shown_as_bad(answer: HookAnswer) -> None:
    read = yaml.safe_load("\n".join(call.shown(PRE_CREATE, HookRequest(PodInfo(), ContainerInfo()), answer)))
    assert read["applied"] == {}
    assert read["bad"]


ANSWERS = st.builds(
    HookAnswer, labels=ENTRIES, annotations=ENTRIES, envs=ENTRIES, cgroup_parent=TEXTS, resources=st.none() | RESOURCES
)


@given(st.sampled_from(HOOK_POINTS), REQUESTS, ANSWERS)
@settings(max_examples=examples(50))
def test_shown_yaml_is_on_plain_lines_and_says_what_the_proxy_does(
    point: Any, asked: HookRequest, answer: HookAnswer
) -> None:
    change = merge.difference(asked, answer)
    text = "\n".join(call.shown(point, asked, answer))
    assert all(line.isprintable() for line in text.split("\n"))
    read = yaml.safe_load(text)
    good, broken = merge.judged(change, asked) if point.applies else (change, ())
    assert read.get("bad", []) == list(map(str, broken))
    applied, dropped, idle = (read.get(part, {}) for part in ("applied", "dropped", "without-effect"))
    assert applied == _tree(merge.limited(point, good))
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


# -- calls -----------------------------------------------------------------------------------------------------------


async def called(path: Path, answer: hookanswers.Answer, point: Any = PRE_CREATE, **server: Any) -> call.Called:
    """Call a server with the example, as the command does: in a thread with an event loop of its own."""
    async with HookServer(str(path / "hooks.sock"), default=answer):
        named = Server(str(path / "hooks.sock"), **server)
        return await asyncio.to_thread(call.call, named, point, request.example(), 10.0)


async def test_call_tells_what_was_asked_and_what_is_changed(tmp_path: Path) -> None:
    found = await called(tmp_path, hookanswers.koordlet(cpu_quota=-1))
    heads = [line for line in found.text.splitlines() if line.startswith("#")]
    assert heads[0].startswith(f"# PreCreateContainer at {tmp_path}/hooks.sock answered in ")
    assert heads[1:] == ["# not told at this hook point: pod.runtime_handler, pod.overhead, container.id"]
    assert yaml.safe_load(found.text) == {"applied": {"resources": {"cpu_quota": -1}}}
    assert found.faults == ()


async def test_call_that_the_proxy_would_not_make_is_made_and_told(tmp_path: Path) -> None:
    found = await called(tmp_path, hookanswers.echo(), POST_START, points=frozenset({"PreStartContainer"}))
    assert "# the proxy would not ask: the registration file does not name PostStartContainer" in found.text
    assert "# the proxy ignores what is answered at this hook point" in found.text
    asked = await called(tmp_path, hookanswers.echo(), POST_START, points=frozenset({"PostStartContainer"}))
    assert "would not ask" not in asked.text


async def test_faults_of_a_bad_answer_are_told(tmp_path: Path) -> None:
    found = await called(tmp_path, hookanswers.koordlet(cpu_quota=-5))
    assert found.faults == tuple(yaml.safe_load(found.text)["bad"])
    assert len(found.faults) == 1
    assert (await called(tmp_path, hookanswers.koordlet(cpu_quota=-5), POST_START)).faults == ()


@pytest.mark.parametrize(
    ("answer", "words"),
    [("refuse", "refused (PERMISSION_DENIED): refused by the fake hook server"), ("fail", "INTERNAL: failed as told")],
)
async def test_failure_is_an_error_in_the_servers_words(tmp_path: Path, answer: str, words: str) -> None:
    with pytest.raises(HookCallFailed) as caught:
        await called(tmp_path, hookanswers.BY_NAME[answer]())
    assert str(caught.value) == f"{tmp_path}/hooks.sock: PreCreateContainer: {words}"


def test_request_that_cannot_be_told_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is about a container"):
        call.call(Server(str(tmp_path / "nobody.sock")), PRE_CREATE, HookRequest(PodInfo()), 1.0)
