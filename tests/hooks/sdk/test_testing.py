"""The tester without sockets: the values that hooks get, and a result equal to the proxy's change."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runtimeproxy.model.fields import Resources
from runtimeproxy.model.hookpoints import SubjectKind
from runtimeproxy_hooks.sdk import testing
from runtimeproxy_hooks.sdk.context import ContainerContext, PodContext
from runtimeproxy_hooks.sdk.errors import Rejected
from runtimeproxy_hooks.sdk.hook import METHODS, Hook
from runtimeproxy_hooks.sdk.pytest_plugin import hook_tester as hook_tester  # the fixture
from runtimeproxy_hooks.sdk.testing import CONTAINER_ID, UID, Difference, HookTester

CREATE, RUN_POD = "pre_create_container", "pre_run_pod_sandbox"


class Everywhere(Hook):
    """Does the same at every hook point."""

    def __init__(self, edit: Callable[[Any], object]) -> None:
        self.edit = edit

    def _at(self, context: PodContext | ContainerContext) -> None:
        self.edit(context)

    pre_run_pod_sandbox = post_stop_pod_sandbox = pre_create_container = pre_start_container = _at
    post_start_container = pre_update_container_resources = post_stop_container = _at


def edit_everything(container: ContainerContext) -> None:
    container.env["NEW"] = type("Name", (str,), {})("1")
    container.annotations["new"] = "2"
    container.cgroup_parent = "/y"
    container.resources.cpu_shares = 2
    container.resources.cpu_quota = 50_000
    container.resources.cpuset_cpus = ""
    container.resources.unified["new"] = "3"


def test_difference_has_only_changes_in_yaml_form(hook_tester: type[HookTester]) -> None:
    sent = {"cpu_quota": 50_000, "cpuset_cpus": "0-3", "unified": {"old": "1"}}
    changed = hook_tester(Everywhere(edit_everything)).pre_create_container(env={"OLD": "1"}, resources=sent)
    resources = {"cpu_shares": 2, "cpuset_cpus": "", "unified": {"new": "3"}}
    assert changed == Difference({"NEW": "1"}, {}, {"new": "2"}, resources, "/y")
    assert type(changed.env["NEW"]) is str, "it was not transmitted"
    lines = '  A: "é\\""|resources:|  cpu_shares: 2|  unified:|    new: "3"|cgroup_parent: "/y"'
    text = str(Difference(env={"A": 'é"'}, resources={"cpu_shares": 2, "unified": {"new": "3"}}, cgroup_parent="/y"))
    assert text.splitlines() == ["env:", *lines.split("|")]
    assert str(Difference()) == "nothing is changed"


RESOURCES = {"cpu_quota": -1, "cpuset_cpus": "0", "unified": {"a": "b"}, "hugepage_limits": {"2MB": 5}}
POD: dict[str, Any] = {
    **{"pod": "web", "namespace": "shop", "uid": "u-1", "labels": {"l": "1"}, "annotations": {"a": "2", "b": "\udcff"}},
    **{"cgroup_parent": "/x", "pod_attempt": 3, "pod_resources": {"cpu_shares": 2}},
}
OF_POD = {
    **{"runtime_handler": "kata", "overhead": {"cpu_quota": -1}},
    **{name.removeprefix("pod_"): value for name, value in POD.items()},
}
CONTAINER = {"container": "side", "container_id": "c1", "attempt": 4, "container_annotations": {"c": "3"}}
OF_CONTAINER = {**POD, **CONTAINER, "env": {"E": "4"}, "resources": RESOURCES}


def values_of_pod(pod: Any) -> tuple[Any, ...]:
    return pod.name, pod.namespace, pod.uid, pod.attempt, dict(pod.labels), dict(pod.annotations), pod.resources.sent


def values_of_container(view: Any) -> tuple[Any, ...]:
    return view.name, view.id, view.attempt, view.resources.sent, dict(view.annotations), dict(view.env)


@pytest.mark.parametrize("method", METHODS)
def test_hook_gets_sent_or_default_values(method: str) -> None:
    seen: list[Any] = []
    call = getattr(HookTester(Everywhere(seen.append)), method)
    is_pod = METHODS[method].subject is SubjectKind.POD
    assert not call(**OF_POD if is_pod else OF_CONTAINER)
    assert not call()
    given, default = seen
    pod_given, pod_default = (given, default) if is_pod else (given.pod, default.pod)
    assert values_of_pod(pod_given) == ("web", "shop", "u-1", 3, {"l": "1"}, {"a": "2"}, Resources(cpu_shares=2))
    assert values_of_pod(pod_default) == ("pod", "default", UID, 0, {}, {}, None)
    assert (given.cgroup_parent, default.cgroup_parent) == ("/x", f"/kubepods/pod{UID}")
    if is_pod:
        assert (given.runtime_handler, given.overhead.sent) == ("kata", Resources(cpu_quota=-1))
        assert (default.runtime_handler, default.overhead.sent) == ("", None)
    else:
        container_id = "" if method == CREATE else CONTAINER_ID
        assert values_of_container(given) == ("side", "c1", 4, Resources(**RESOURCES), {"c": "3"}, {"E": "4"})
        assert values_of_container(default) == ("main", container_id, 0, None, {}, {})


class Slow(Hook):
    """Waits for something, then sets a variable."""

    def __init__(self, wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.wait = wait

    async def pre_create_container(self, container: ContainerContext) -> None:
        await self.wait()
        container.env["WAITED"] = "1"


async def test_async_method_is_awaited_in_async_test(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HookTester(Slow()).pre_create_container().env == {"WAITED": "1"}
    monkeypatch.setattr(testing, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.01 s"):
        HookTester(Slow(asyncio.Event().wait)).pre_create_container()


@pytest.mark.parametrize("error", [Rejected("no"), TimeoutError("its own")])
@pytest.mark.parametrize("kind", [Slow, Everywhere])
def test_error_of_hook_is_raised(error: Exception, kind: Callable[[Any], Hook]) -> None:
    def fail(*_: object) -> Any:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        HookTester(kind(fail)).pre_create_container()


def test_wrong_hook_or_hook_point_is_error() -> None:
    for value in (Everywhere, None):
        with pytest.raises(TypeError, match=r"HookTester\(MyHook\(\)\)"):
            HookTester(Hook(), value)
    with pytest.raises(LookupError, match=r"^no hook here has the method post_stop_container; they have pre_create"):
        HookTester(Hook(), Slow()).post_stop_container()
    with pytest.raises(LookupError, match=r"they have none at all$"):
        HookTester(Hook()).pre_create_container()


BAD_CALLS = [
    (CREATE, "label", {}, "label is nothing that is sent at PreCreateContainer, did you mean labels?"),
    ("post_stop_container", "overhead", {}, "overhead is nothing that is sent at PostStopContainer"),
    (RUN_POD, "env", {}, "env is nothing that is sent at PreRunPodSandbox; there are labels, annotations, pod, "),
    (CREATE, "resources", {"cpu_share": 2}, "resources: there is no field cpu_share, did you mean cpu_shares?"),
    (CREATE, "pod_resources", {"zzz": 2}, "pod_resources: there is no field zzz; there are cpu_period, cpu_quota, "),
    (RUN_POD, "overhead", {"cpu_shares": None}, "overhead: cpu_shares is of type int; leave it out for 'not set'"),
]


@pytest.mark.parametrize(("method", "name", "value", "words"), BAD_CALLS)
def test_argument_that_cannot_be_sent_is_error(method: str, name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError if "no field" in words else TypeError) as raised:
        getattr(HookTester(Everywhere(lambda context: None)), method)(**{name: value})
    assert str(raised.value).startswith(words)
