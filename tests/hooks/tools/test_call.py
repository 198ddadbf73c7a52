"""The changes of an answer as they are shown: YAML, whatever is answered."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import request
from runtimeproxy_hooks.tools.client import Server
from tests.amounts import examples
from tests.fakes import hookanswers
from tests.fakes.hookserver import HookServer
from tests.hooks.tools.test_request import ENTRIES, REQUESTS, RESOURCES, TEXTS

PRE_CREATE, PRE_START = BY_NAME["PreCreateContainer"], BY_NAME["PreStartContainer"]
POST_START = BY_NAME["PostStartContainer"]
RESOURCES_SENT = Resources(cpu_quota=50000, cpu_shares=2, cpuset_cpus="0-3", hugepage_limits={"2MB": 4096})
ENTRIES_SENT: Any = {"envs": {"A": "1", "EMPTY": ""}, "annotations": {"n": "a\nb"}}
SENT = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo(**ENTRIES_SENT, resources=RESOURCES_SENT))


def shown(answer: HookAnswer, point: Any = PRE_CREATE) -> str:
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
def test_shown_yaml_is_on_plain_lines_and_as_the_proxy_does(point: Any, asked: HookRequest, answer: HookAnswer) -> None:
    change = merge.difference(asked, answer)
    text = "\n".join(hook_client.answer_lines(point, asked, answer))
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


async def called(path: Path, answer: hookanswers.Answer, point: Any = PRE_CREATE, **server: Any) -> hook_client.Called:
    """Call a server with the example request, as the command does: in a thread with an event loop of its own."""
    async with HookServer(str(path / "hooks.sock"), default=answer):
        named = Server(str(path / "hooks.sock"), **server)
        return await asyncio.to_thread(hook_client.call, named, point, request.example(), 10.0)


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
