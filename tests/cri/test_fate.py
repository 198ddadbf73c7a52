"""What became of a call that the runtime has not answered, by what the runtime has now."""

from dataclasses import replace

import pytest

from runtimeproxy.call import DONE, GONE, NOT_DONE, UNANSWERED, Reply
from runtimeproxy.cri import api_pb2, fate, translate
from runtimeproxy.hookpoints import Operation
from runtimeproxy.model import ContainerInfo, ContainerRecord, PodInfo, PodRecord, Resources, Subject
from runtimeproxy.store import Store

POD = PodInfo(name="web", uid="u-1", namespace="shop", attempt=1, labels={"app": "web"})
CONTAINER = ContainerInfo(pod_id="p1", name="main", attempt=2, envs={"A": "1"})

CREATED, RUNNING, EXITED, UNKNOWN = (
    api_pb2.CONTAINER_CREATED,
    api_pb2.CONTAINER_RUNNING,
    api_pb2.CONTAINER_EXITED,
    api_pb2.CONTAINER_UNKNOWN,
)
START, STOP, REMOVE = Operation.START_CONTAINER, Operation.STOP_CONTAINER, Operation.REMOVE_CONTAINER


@pytest.mark.parametrize(
    ("operation", "state", "expected"),
    [
        (Operation.STOP_POD_SANDBOX, api_pb2.SANDBOX_READY, UNANSWERED),
        (Operation.STOP_POD_SANDBOX, api_pb2.SANDBOX_NOTREADY, DONE),
        (Operation.STOP_POD_SANDBOX, None, GONE),
        (Operation.REMOVE_POD_SANDBOX, api_pb2.SANDBOX_READY, UNANSWERED),
        (Operation.REMOVE_POD_SANDBOX, api_pb2.SANDBOX_NOTREADY, UNANSWERED),
        (Operation.REMOVE_POD_SANDBOX, None, GONE),
    ],
)
def test_a_pods_state_tells(operation: Operation, state: api_pb2.PodSandboxState | None, expected: Reply) -> None:
    assert fate.of_pod(operation, state) == expected


@pytest.mark.parametrize(
    ("operation", "done", "if_gone"),
    [(START, {RUNNING, EXITED}, NOT_DONE), (STOP, {EXITED}, GONE), (REMOVE, set(), GONE)],
)
def test_a_containers_state_tells(operation: Operation, done: set[api_pb2.ContainerState], if_gone: Reply) -> None:
    for state in (CREATED, RUNNING, EXITED, UNKNOWN):
        assert fate.of_container(operation, state) == (DONE if state in done else UNANSWERED)
    assert fate.of_container(operation, None) == if_gone


def made(reply: Reply) -> str:
    """Return the id in the answer that the runtime would have given."""
    assert reply.agreed
    return translate.read_id(reply.message)


def test_a_pod_is_found_among_all() -> None:
    others = [replace(POD, id=f"other {n}", **{field: "x"}) for n, field in enumerate(("name", "uid", "namespace"))]
    others.append(replace(POD, id="earlier", attempt=0))
    assert fate.of_run_pod(POD, others, Store()) == UNANSWERED
    assert fate.of_run_pod(POD, [], Store()) == UNANSWERED
    assert made(fate.of_run_pod(POD, [*others, replace(POD, id="p1", labels={})], Store())) == "p1"


def test_a_container_is_found_among_its_pods() -> None:
    others = [
        replace(CONTAINER, id="sidecar", name="side"),
        replace(CONTAINER, id="earlier", attempt=1),
        replace(CONTAINER, id="another's", pod_id="p2"),
    ]
    assert fate.of_create(CONTAINER, others, Store()) == UNANSWERED
    assert made(fate.of_create(CONTAINER, [*others, replace(CONTAINER, id="c1", envs={})], Store())) == "c1"


def test_what_was_read_of_the_runtime_meanwhile_is_known_better_by_the_call() -> None:
    store = Store()
    pod, container = replace(POD, id="p1"), replace(CONTAINER, id="c1")
    store.commit(Subject(PodRecord(pod, pod), ContainerRecord(container, container)))
    assert made(fate.of_run_pod(POD, [pod], store)) == "p1"
    assert made(fate.of_create(CONTAINER, [container], store)) == "c1"


def test_what_an_earlier_call_made_with_hooks_is_not_this_calls() -> None:
    """Then the runtime refused this one: it has no two of a name."""
    store = Store()
    pod, container = replace(POD, id="p1"), replace(CONTAINER, id="c1")
    hooked = ContainerRecord(container, replace(container, envs={"A": "2"}))
    store.commit(Subject(PodRecord(pod, replace(pod, cgroup_parent="/hooked"))))
    store.commit(Subject(PodRecord(pod, pod), hooked))
    assert fate.of_run_pod(POD, [pod], store) == NOT_DONE
    assert fate.of_create(CONTAINER, [container], store) == NOT_DONE


def test_an_update_is_done_once_the_container_has_what_it_asked_for() -> None:
    running = replace(CONTAINER, resources=Resources(cpu_shares=512, cpuset_cpus="0-3"))
    assert fate.of_update(running, {"cpu_shares": 512}) == DONE
    assert fate.of_update(running, {"cpu_shares": 512, "cpuset_cpus": "0"}) == UNANSWERED
    assert fate.of_update(CONTAINER, {"cpu_shares": 512}) == UNANSWERED
    assert fate.of_update(None, {"cpu_shares": 512}) == NOT_DONE


@pytest.mark.parametrize(
    ("overhead", "resources", "expected"),
    [
        (None, None, DONE),
        (Resources(cpu_shares=1), None, DONE),
        (Resources(cpu_shares=1), Resources(cpu_shares=2), DONE),
        (None, Resources(cpu_shares=3), UNANSWERED),
        (Resources(cpu_shares=3), Resources(cpu_shares=2), UNANSWERED),
    ],
)
def test_a_pods_update_is_done_once_the_pod_has_what_it_asked_for(
    overhead: Resources | None, resources: Resources | None, expected: Reply
) -> None:
    pod = replace(POD, overhead=Resources(cpu_shares=1), resources=Resources(cpu_shares=2))
    assert fate.of_pod_update(pod, overhead, resources) == expected
    assert fate.of_pod_update(None, overhead, resources) == NOT_DONE
