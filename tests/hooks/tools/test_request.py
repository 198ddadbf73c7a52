"""Requests as YAML: every request can be written, and errors name the line."""

from typing import Any

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model.fields import ContainerInfo, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, SubjectKind
from runtimeproxy_hooks.tools import request

PRE_RUN, PRE_CREATE, PRE_START = (
    BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer")
)
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


@pytest.mark.parametrize("point", HOOK_POINTS, ids=lambda point: point.name)
def test_example_is_sent_completely_at_every_hook_point(point: Any) -> None:
    sent = request.at_point(point, request.example())
    assert sent.pod.name == request.example().pod.name
    assert (sent.container is None) == (point.subject is SubjectKind.POD)
    assert request.unsent(point, sent) == ()
    assert request.encoded(point, sent) == codec.encode(point, sent)


LOST = [
    *((PRE_RUN, "pod: {overhead: {cpu_shares: 2}}", ()), (PRE_RUN, "container: {name: main}", ("container",))),
    (PRE_CREATE, "{pod: {cgroup_parent: /b}, container: {cgroup_parent: /a}}", ("pod.cgroup_parent",)),
    (PRE_CREATE, "container: {id: c1}", ("container.id",)),
    (PRE_START, "{pod: {overhead: {}, runtime_handler: a}, container: {}}", ("pod.runtime_handler", "pod.overhead")),
    (PRE_START, '{pod: {}, container: {envs: {A: "\\ud83d"}}}', ("container.envs",)),
]


@pytest.mark.parametrize(("point", "text", "lost"), LOST)
def test_field_that_the_proxy_does_not_send_is_named(point: Any, text: str, lost: tuple[str, ...]) -> None:
    assert request.unsent(point, request.parse(text, "f")) == lost


def test_hook_point_of_a_container_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"PreStartContainer is about a container, and the request has none: add"):
        request.encoded(PRE_START, EMPTY)
