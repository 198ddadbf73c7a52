"""Requests as YAML: every request can be written, and errors name the line."""

from dataclasses import asdict
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import settings
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import (
    NUMBER_FIELDS,
    TEXT_FIELDS,
    ContainerInfo,
    HookRequest,
    PodInfo,
    Resources,
)
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, SubjectKind
from runtimeproxy_hooks.tools import request
from tests.amounts import examples

PRE_RUN, PRE_CREATE, PRE_START = (
    BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer")
)
EMPTY = HookRequest(PodInfo())


def of_pod(**fields: Any) -> HookRequest:
    return HookRequest(PodInfo(**fields))


READ: list[tuple[str, HookRequest]] = [
    *((text, EMPTY) for text in ("", "# nothing\n", "~", "pod:", "container:")),
    ("pod: {labels: , name: ~, attempt: null}", EMPTY),
    ("container: {}", HookRequest(PodInfo(), ContainerInfo())),
    ("pod: {name: web, uid: 0x1, attempt: 4294967295}", of_pod(name="web", uid="0x1", attempt=2**32 - 1)),
    ("pod: {resources: {}}", of_pod(resources=Resources())),
    ("pod: {resources: {cpu_quota: -1, cpuset_cpus: 0}}", of_pod(resources=Resources(cpu_quota=-1, cpuset_cpus="0"))),
    ("pod: {labels: &same {a: b}, annotations: *same}", of_pod(labels={"a": "b"}, annotations={"a": "b"})),
]


@pytest.mark.parametrize(("text", "read"), READ, ids=[text for text, _ in READ])
def test_request_is_parsed(text: str, read: HookRequest) -> None:
    assert request.parse(text, "f") == read


REFUSED = [
    ("- pod", "f:1: write 'key: value' lines here"),
    ("pods: {}", "f:1: pods: unknown key; did you mean pod?"),
    ("pod:\n  labls: {secret: canary}", "f:2: pod.labls: unknown key; did you mean labels?"),
    ("pod:\n  id: canary", "f:2: pod.id: unknown key; did you mean uid?"),
    ("container: {pod_id: canary}", "f:1: container.pod_id: unknown key; there are name, attempt, "),
    ("pod: {annotations: {a: {b: canary}}}", "f:1: pod.annotations.a: write one text, in quotes if it is JSON"),
    ("pod: {attempt: canary}", "f:1: pod.attempt: write a whole number, without a unit"),
    ("pod: {attempt: 4294967296}", "f:1: pod.attempt: write a number from 0 to 4294967295"),
    ("pod: {resources: {cpu_quota: 9223372036854775808}}", "f:1: pod.resources.cpu_quota: write a number from -9223"),
    ("pod: {resources: {hugepage_limits: {2MB: -1}}}", "f:1: pod.resources.hugepage_limits.2MB: write a number from 0"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_error_has_line_and_key_but_no_value(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        request.parse(text, "f")
    assert str(caught.value).startswith(words)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ENTRIES = st.dictionaries(TEXTS, TEXTS, max_size=3)
INT64 = st.integers(-(2**63), 2**63 - 1)
RESOURCES = st.builds(
    Resources,
    **dict.fromkeys(NUMBER_FIELDS, INT64),
    **dict.fromkeys(TEXT_FIELDS, TEXTS),
    hugepage_limits=st.dictionaries(TEXTS, st.integers(0, 2**64 - 1), max_size=3),
    unified=ENTRIES,
)
COMMON: dict[str, Any] = {"name": TEXTS, "cgroup_parent": TEXTS, "annotations": ENTRIES}
COMMON |= {"attempt": st.integers(0, 2**32 - 1), "resources": st.none() | RESOURCES}
TEXT_PARTS = dict.fromkeys(("uid", "namespace", "runtime_handler"), TEXTS)
PODS = st.builds(PodInfo, **COMMON, **TEXT_PARTS, labels=ENTRIES, overhead=st.none() | RESOURCES)
CONTAINERS = st.builds(ContainerInfo, **COMMON, id=TEXTS, envs=ENTRIES)
REQUESTS = st.builds(HookRequest, PODS, st.none() | CONTAINERS)


def written(given: HookRequest) -> str:
    """Return a request as YAML, written by PyYAML."""
    values = {name: value for name, value in asdict(given).items() if value is not None}
    for name, unsent in (("pod", "id"), ("container", "id"), ("container", "pod_id")):
        if name in values and not values[name][unsent]:
            del values[name][unsent]
    return yaml.safe_dump(values)


@hypothesis.given(REQUESTS)
@settings(max_examples=examples(50))
def test_every_request_can_be_written(given: HookRequest) -> None:
    assert request.parse(written(given), "f") == given


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.name)
def test_example_is_sent_completely_at_every_hook_point(point: Any) -> None:
    sent = request.at_hook_point(point, request.example())
    assert sent.pod.name == request.example().pod.name
    assert (sent.container is None) == (point.subject is SubjectKind.POD)
    assert request.unsent(point, sent) == ()
    assert request.encoded(point, sent) == codec.encode(point, sent)


LOST = [
    (PRE_RUN, "pod: {overhead: {cpu_shares: 2}, runtime_handler: kata}", ()),
    (PRE_RUN, "container: {name: main}", ("container",)),
    (PRE_CREATE, "container: {name: main, cgroup_parent: /a}", ()),
    (PRE_CREATE, "{pod: {cgroup_parent: /b}, container: {cgroup_parent: /a}}", ("pod.cgroup_parent",)),
    (PRE_CREATE, "container: {id: c1}", ("container.id",)),
    (PRE_START, "container: {id: c1}", ()),
    (PRE_START, "{pod: {overhead: {}, runtime_handler: a}, container: {}}", ("pod.runtime_handler", "pod.overhead")),
    (PRE_START, '{pod: {}, container: {envs: {A: "\\ud83d"}}}', ("container.envs",)),
]


@pytest.mark.parametrize(("point", "text", "lost"), LOST)
def test_field_that_the_proxy_does_not_send_is_named(point: Any, text: str, lost: tuple[str, ...]) -> None:
    assert request.unsent(point, request.parse(text, "f")) == lost


def test_hook_point_of_a_container_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"PreStartContainer is about a container, and the request has none: add"):
        request.encoded(PRE_START, EMPTY)
