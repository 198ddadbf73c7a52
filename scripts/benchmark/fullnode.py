"""A fake runtime with many running pods: what a proxy finds when it starts on a full node.

A CRI runtime's answers are prepared in advance, because a runtime in Python takes several times as long to make one as
the proxy to read it. Run: ``python -m scripts.benchmark.fullnode cri|docker PODS CONTAINERS_OF_EACH SOCKET``.
"""

import asyncio
import json
import signal
import sys

import uvloop

from scripts.benchmark import node, peers
from scripts.benchmark.cases import CRI
from tests.engines.images import BUSYBOX_IMAGE
from tests.fakes import cri_pb2
from tests.fakes.dockerd import FakeDockerd
from tests.fakes.runtime_state import RuntimeState


def cri_answers(pods: int, containers: int) -> dict[tuple[str, bytes], bytes]:
    """Return the answers of the tests' fake runtime about so many pods, by method and request."""
    state = RuntimeState()

    def call(method: str, request: cri_pb2.RunPodSandboxRequest | cri_pb2.CreateContainerRequest) -> str:
        made = state.answer("v1", method, request.SerializeToString())
        return str(cri_pb2.StartContainerRequest.FromString(made).container_id)  # the first field of either answer

    for number in range(pods):
        pod = node.pod_config(number)
        pod_id = call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=pod))
        for each in range(containers):
            config = node.container_config(number, f"main-{each}")
            create = cri_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
            started = cri_pb2.StartContainerRequest(container_id=call("CreateContainer", create))
            state.answer("v1", "StartContainer", started.SerializeToString())
    requests = [("Version", b""), ("ListPodSandbox", b""), ("ListContainers", b"")]
    for one in state.pods:
        asked = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=one, verbose=True)
        requests.append(("PodSandboxStatus", asked.SerializeToString()))
    for one in state.containers:
        of = cri_pb2.ContainerStatusRequest(container_id=one, verbose=True)
        requests.append(("ContainerStatus", of.SerializeToString()))
    return {(method, request): state.answer("v1", method, request) for method, request in requests}


def fill(dockerd: FakeDockerd, pods: int, containers: int) -> None:
    """Create so many pods as dockershim does."""

    def create(name: str, kind: str, pod_id: str, number: int) -> str:
        body = node.docker_body(name, kind, pod_id, number) | {"Image": BUSYBOX_IMAGE}
        return dockerd.state.create(f"k8s_{name}_web_default_u{number}_0", json.dumps(body).encode(), body).id

    for number in range(pods):
        pod_id = create("POD", "podsandbox", "", number)
        for each in range(containers):
            create(f"main-{each}", "container", pod_id, number)


async def main(mode: str, pods: str, containers: str, path: str) -> None:
    if mode == CRI:
        answers = cri_answers(int(pods), int(containers))
        await peers.serve(path, lambda sock, _: peers.GrpcConnection(sock, lambda *asked: answers.get(asked), None))
        return
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    dockerd = FakeDockerd(path, keep_received=0)
    fill(dockerd, int(pods), int(containers))
    async with dockerd:
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
