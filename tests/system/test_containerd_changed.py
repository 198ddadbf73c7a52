"""On real containerd what hook servers change is true inside the container, from its first instruction on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cgroups, cri, streaming
from tests.engines.containerd import Containerd
from tests.engines.test_containerd_direct import upper_case_server
from tests.fakes import hookanswers
from tests.fakes.cri_pb2 import CONTAINER_EXITED
from tests.system import told
from tests.system.keeping import on_tmpfs
from tests.system.node import (
    MIB,
    Node,
    end,
    plain_pod,
    register,
    rich_container,
    rich_pod,
    running,
    told_by_first_act,
)
from tests.system.scene import (
    AT_START,
    AT_UPDATE,
    KUBELETS_UPDATE,
    STARTED,
    UPDATED,
    ContainerAnswer,
    PodAnswer,
    Scene,
    act,
    assert_first_act,
    assert_in_force,
    cri_resources,
    of_update,
    resources_answer,
)

pytestmark = pytest.mark.engine

ENVIRONMENT = {"LEVEL": "debug", "DEVICES": "0,1", "SENTENCE": "two words = three", "EMPTY": "", "PATH": "/bin"}


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[Node]:
    with running(containerd, tmp_path) as made:
        yield made


@pytest.fixture(params=cri.VERSIONS)
def client(node: Node, request: pytest.FixtureRequest) -> Iterator[cri.CriClient]:
    with node.client(request.param) as made:
        yield made


@pytest.fixture
def scene(node: Node) -> Scene:
    """Let a hook act at every Pre point."""
    pod = rich_pod(node.engine)
    return act(node.hooks, pod, rich_container(), node.engine.cgroup_parent(pod.metadata.uid, "burstable"))


def test_a_pod_that_a_hook_changes(node: Node, client: cri.CriClient, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    assert node.told() == [("PreRunPodSandbox", told.of_pod(scene.pod))]
    status = client.pod_status(pod_id)
    assert status.status.labels == scene.pod_now.labels
    assert status.status.annotations == scene.pod_now.annotations
    linux = json.loads(status.info["info"])["config"]["linux"]
    assert (linux["cgroup_parent"], linux["resources"]["cpu_shares"]) == (scene.parent, 300)
    assert cgroups.processes(scene.parent)
    assert not cgroups.processes(scene.pod.linux.cgroup_parent)
    end(client, pod_id)
    assert node.told() == [("PostStopPodSandbox", told.of_pod(scene.pod_now))]


def test_a_container_that_hooks_change(node: Node, client: cri.CriClient, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    node.told()
    container_id = client.create(pod_id, scene.container, scene.pod)
    assert node.told() == [("PreCreateContainer", told.of_container(scene.pod_now, scene.container))]
    assert client.status(container_id).status.annotations == scene.container_now.annotations

    client.start(container_id)
    after_start = told.updated(scene.container_now, cri_resources(AT_START))
    assert node.told() == [
        ("PreStartContainer", told.of_container(scene.pod_now, scene.container_now, container_id)),
        ("PostStartContainer", told.of_container(scene.pod_now, after_start, container_id)),
    ]
    first = told_by_first_act(scene.pod)
    assert_first_act(first, STARTED)
    assert {name: first.get(name) for name in ENVIRONMENT} == ENVIRONMENT
    seen = client.environment(container_id)
    assert {name: seen[name].decode() for name in ENVIRONMENT} == ENVIRONMENT
    assert_in_force(client, container_id, scene.parent, STARTED)
    end(client, pod_id, container_id)


def test_an_update_that_a_hook_changes(node: Node, client: cri.CriClient, scene: Scene) -> None:
    pod_id = client.run_pod(scene.pod)
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    node.told()

    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    asked = of_update(scene, KUBELETS_UPDATE)
    assert node.told() == [("PreUpdateContainerResources", told.of_container(scene.pod_now, asked, container_id))]
    assert_in_force(client, container_id, scene.parent, UPDATED)

    end(client, pod_id, container_id)
    after_update = told.updated(scene.container_now, cri_resources(UPDATED))
    assert node.told() == [
        ("PostStopContainer", told.of_container(scene.pod_now, after_update, container_id)),
        ("PostStopPodSandbox", told.of_pod(scene.pod_now)),
    ]


def test_a_container_may_get_a_cgroup_parent_of_its_own(node: Node, client: cri.CriClient) -> None:
    pod, container = plain_pod(node.engine), rich_container()
    other = node.engine.cgroup_parent(pod.metadata.uid, "aside")
    node.hooks.on("PreCreateContainer", hookanswers.reply(ContainerAnswer(pod_cgroup_parent=other)))
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    assert_in_force(client, container_id, other, {"cpu_shares": 512, "cpu_quota": 50000})
    assert not list(cgroups.directories(f"{pod.linux.cgroup_parent}/{container_id}"))
    node.told()
    client.stop(container_id)
    moved = told.of_container(pod, container, container_id)
    moved.pod_cgroup_parent = other
    assert node.told() == [("PostStopContainer", moved)]
    end(client, pod_id, container_id)


@pytest.mark.parametrize("version", cri.VERSIONS)
def test_a_pods_new_cgroup_parent_reaches_its_containers_without_a_hook(
    containerd: Containerd, tmp_path: Path, version: str
) -> None:
    pod, container = plain_pod(containerd), rich_container()
    parent = containerd.cgroup_parent(pod.metadata.uid, "burstable")

    def for_pods_only(node: Node) -> None:
        register(node, ["PreRunPodSandbox"])

    with running(containerd, tmp_path, for_pods_only) as node, node.client(version) as client:
        node.hooks.on("PreRunPodSandbox", hookanswers.reply(PodAnswer(cgroup_parent=parent)))
        pod_id = client.run_pod(pod)
        container_id = client.create(pod_id, container, pod)
        client.start(container_id)
        assert_in_force(client, container_id, parent, {"cpu_shares": 512})
        assert [point for point, _ in node.told()] == ["PreRunPodSandbox"]
        end(client, pod_id, container_id)


def test_what_hooks_changed_of_a_pod_outlives_a_restart(node: Node, client: cri.CriClient, scene: Scene) -> None:
    node.proxy.stop()
    with on_tmpfs() as folder:
        node.proxy.command.append(f"--originals-dir={folder}")
        node.proxy.start()
        pod_id = client.run_pod(scene.pod)
        node.proxy.stop()
        node.proxy.start()
        node.told()
        _see_what_hooks_changed(node, client, scene, pod_id)


def _see_what_hooks_changed(node: Node, client: cri.CriClient, scene: Scene, pod_id: str) -> None:
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    assert node.told()[0] == ("PreCreateContainer", told.of_container(scene.pod_now, scene.container))
    assert_in_force(client, container_id, scene.parent, STARTED)
    end(client, pod_id, container_id)


def test_a_pods_new_cgroup_parent_needs_no_plugin_at_the_create(
    node: Node, client: cri.CriClient, scene: Scene
) -> None:
    pod_id = client.run_pod(scene.pod)
    register(node, ("PreRunPodSandbox",))
    node.proxy.stop()
    node.proxy.start()
    node.told()
    container_id = client.create(pod_id, scene.container, scene.pod)
    client.start(container_id)
    assert node.told() == []
    assert cgroups.read(f"{scene.parent}/{container_id}", "cpu_shares") == cgroups.expected(
        "cpu_shares", scene.container.linux.resources.cpu_shares
    )
    end(client, pod_id, container_id)


def test_hooks_change_what_was_made_before_a_restart(node: Node, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), rich_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    node.proxy.stop()
    node.proxy.start()
    node.hooks.on("PreStartContainer", resources_answer(AT_START))
    node.hooks.on("PreUpdateContainerResources", resources_answer(AT_UPDATE))
    client.start(container_id)
    assert_first_act(told_by_first_act(pod), AT_START)
    client.update(container_id, cri_resources(KUBELETS_UPDATE))
    in_force = {**AT_START, **KUBELETS_UPDATE, **AT_UPDATE}
    assert_in_force(client, container_id, pod.linux.cgroup_parent, in_force)
    end(client, pod_id, container_id)


def test_execs_logs_and_exit_codes(node: Node, client: cri.CriClient) -> None:
    pod, container = rich_pod(node.engine), rich_container()
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, container, pod)
    client.start(container_id)
    done = client.exec_sync(container_id, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 7)
    big = client.exec_sync(container_id, "head", "-c", str(3 * MIB), "/dev/zero")
    assert (big.stdout, big.exit_code) == (bytes(3 * MIB), 0)
    told_by_first_act(pod)
    lines = Path(pod.log_directory, "main.log").read_text().splitlines()
    assert [line.split(" ", 3)[1:] for line in lines][-1] == ["stdout", "F", "first=done"]
    client.stop(container_id)
    status = client.status(container_id).status
    assert (status.state, status.exit_code) == (CONTAINER_EXITED, 137)
    end(client, pod_id, container_id)


async def test_the_streaming_urls_work(node: Node, client: cri.CriClient) -> None:
    pod = rich_pod(node.engine)
    pod_id = client.run_pod(pod)
    chatter = ("/bin/sh", "-c", "while true; do echo tick; sleep 0.05; done")
    container_id = client.create(pod_id, cri.container_config("main", command=chatter), pod)
    client.start(container_id)

    executed = await streaming.read_channels(client.exec_url(container_id, "/bin/sh", "-c", "echo out; echo err >&2"))
    assert (executed[streaming.STDOUT], executed[streaming.STDERR]) == (b"out\n", b"err\n")
    attached = await streaming.read_channels(client.attach_url(container_id), until=(streaming.STDOUT, b"tick\n"))
    assert b"tick\n" in attached[streaming.STDOUT]

    server, port = await upper_case_server()
    url = await asyncio.to_thread(client.port_forward_url, pod_id, port)
    forwarded = await streaming.read_channels(url, until=(streaming.DATA, b"HELLO"), send=b"hello")
    assert forwarded[streaming.DATA] == port.to_bytes(2, "little") + b"HELLO"
    server.close()
    end(client, pod_id, container_id)
