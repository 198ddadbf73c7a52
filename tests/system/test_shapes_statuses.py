"""Whatever a runtime's status says or leaves out, a request that no hook server changes goes out as it came.

A part that is missing, null or of a wrong type is unknown, by itself. The policy is Fail: what could not be read would
be refused. The one thing that must be told is which pod a container is of: without it nobody knows whom to ask about.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import amounts
from tests.fakes import registration
from tests.fakes.shapes import SHAPES
from tests.system.cri_front import CRI, CriRuntime
from tests.system.docker_front import DOCKER, DOCKER_ENGINES, DockerRuntime
from tests.system.fronts import Caller, Failed, Front
from tests.system.shaped import ShapedNode, named

STATUSES = ("PodSandboxStatus", "ContainerStatus")
ABSENT = object()
"""Stands for a part that is taken away."""
WRONG = (ABSENT, None, True, 5, -1, 2**70, 1.5, "text", "", [], [None], ["text"], [{}], {}, {"text": 5}, {"text": "x"})
"""What may stand where something else is expected."""
PLAIN = ("id", "metadata", "labels", "annotations", "runtime_handler", "resources", "state", "image", "log_path")
"""Fields of a status that may be missing."""
SANDBOX_LABEL = "io.kubernetes.sandbox.id"
"""By it alone Docker tells whose a container is."""

EXAMPLES = amounts.examples(40)

Changes = Sequence[tuple[int, Any]]
changes = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(WRONG)), max_size=4)
"""The number of a place in a document, and what stands there."""
POINTS = {"every point": registration.ALL_POINTS, "another point": ["PostStopPodSandbox"]}


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Name every place in a JSON document by its path."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, inner in items:
        yield (*above, key)
        yield from places(inner, (*above, key))


def changed(document: Any, changes: Changes) -> Any:
    """Return a document with other values in some places; a text is no other text, which might be a cgroup parent."""
    known = [path for path in places(document) if path[-1] != SANDBOX_LABEL]
    wanted = {known[number % len(known)]: value for number, value in changes} if known else {}

    def put(inner: Any, path: tuple[Any, ...] = ()) -> Any:
        value = wanted.get(path, inner)
        if value is not inner and not (value == "text" and isinstance(inner, str)):
            return value
        if isinstance(inner, dict):
            filled = {key: put(each, (*path, key)) for key, each in inner.items()}
            return {key: each for key, each in filled.items() if each is not ABSENT}
        if isinstance(inner, list):
            filled_list = [put(each, (*path, place)) for place, each in enumerate(inner)]
            return [each for each in filled_list if each is not ABSENT]
        return inner

    return put(document)


async def goes_out_as_it_came(node: ShapedNode, direct: Caller) -> None:
    """Make calls of a pod and a container that the proxy reads first, and have all forget them."""
    pod_id = await direct.run_pod()
    container_id = await direct.create(pod_id)
    caller = node.caller
    await node.created(pod_id)
    requests = {
        "update": caller.update_request(container_id, {"cpu_shares": 5}, {}),
        **{verb: caller.request(verb, container_id) for verb in ("start", "stop")},
        "stop_pod": caller.request("stop_pod", pod_id),
    }
    for verb, request in requests.items():
        assert (await node.passed(verb, request))[1] == request
    for one in node.inside.store.ids():
        node.inside.store.forget(one)
    assert isinstance(node.runtime, CriRuntime | DockerRuntime)
    node.runtime.received.clear()
    for one in (*node.runtime.container_ids(), *node.runtime.pod_ids()):
        node.runtime.vanish(one)


@contextmanager
def living(front: Front, folder: Path, points: Sequence[str]) -> Iterator[tuple[ShapedNode, Callable[[], None]]]:
    """Return a node in a loop of its own, and what makes calls there, as examples are tried one after another."""
    node = ShapedNode(front, folder, points=points)
    with asyncio.Runner() as runner:
        runner.run(node.__aenter__())
        direct = node.new_caller(node.runtime.socket_path)
        try:
            yield node, lambda: runner.run(goes_out_as_it_came(node, direct))
        finally:
            runner.run(direct.close())
            runner.run(node.__aexit__(None, None, None))


@pytest.mark.parametrize("points", POINTS)
def test_request_stands_whatever_a_cri_status_says(points: str, tmp_path: Path) -> None:
    with living(CRI, tmp_path, POINTS[points]) as (node, make_calls):
        assert isinstance(node.runtime, CriRuntime)
        state = node.runtime.state

        @settings(max_examples=EXAMPLES)
        @given(st.sampled_from(SHAPES), changes, changes, st.sets(st.sampled_from(PLAIN)))
        def holds(shape: Any, of_pod: Changes, of_container: Changes, missing: set[str]) -> None:
            def mangle(method: str, reply: Any) -> Any:
                if method not in STATUSES:
                    return reply
                for name in missing.intersection(reply.status.DESCRIPTOR.fields_by_name):
                    reply.status.ClearField(name)
                if reply.info:
                    document = json.loads(reply.info["info"])
                    document = changed(document, of_pod if method == STATUSES[0] else of_container)
                    reply.info["info"] = json.dumps(document)
                return reply

            state.shape, state.mangle = shape, mangle
            make_calls()

        holds()


@pytest.mark.parametrize("points", POINTS)
@pytest.mark.parametrize("front", DOCKER_ENGINES[::2], ids=named)
def test_request_stands_whatever_dockerds_inspect_says(front: Front, points: str, tmp_path: Path) -> None:
    with living(front, tmp_path, POINTS[points]) as (node, make_calls):
        assert isinstance(node.runtime, DockerRuntime)
        dockerd = node.runtime

        @settings(max_examples=EXAMPLES)
        @given(changes, changes)
        def holds(of_pod: Changes, of_container: Changes) -> None:
            kinds = {"podsandbox": of_pod, "container": of_container}
            dockerd.mangle = lambda shown: changed(shown, kinds[shown["Config"]["Labels"]["io.kubernetes.docker.type"]])
            make_calls()

        holds()


def without_pod(method: str, reply: Any) -> Any:
    """Have neither a CRI runtime's status nor its list tell which pod a container is of."""
    for container in reply.containers if method == "ListContainers" else ():
        container.pod_sandbox_id = ""
    if method == "ContainerStatus" and reply.info:
        told = json.loads(reply.info["info"])
        reply.info["info"] = json.dumps({key: value for key, value in told.items() if key != "sandboxID"})
    return reply


def without_label(shown: Any) -> Any:
    """Have dockerd not tell it."""
    shown["Config"]["Labels"].pop(SANDBOX_LABEL, None)
    return shown


@pytest.mark.parametrize(("front", "mangle"), [(CRI, without_pod), (DOCKER, without_label)], ids=["cri", "docker"])
async def test_container_whose_pod_nobody_names_is_refused(front: Front, mangle: Any, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path) as node:
        container_id = await node.caller.create(await node.caller.run_pod())
        assert isinstance(node.runtime, CriRuntime | DockerRuntime)
        (node.runtime.state if isinstance(node.runtime, CriRuntime) else node.runtime).mangle = mangle
        await node.restart()
        with pytest.raises(Failed, match=r"StartContainer refused: .* unreadable"):
            await node.caller.act("start", container_id)
