"""Each answer of a real koordlet, on each shape of a runtime under policy Fail: nothing is refused, and this is sent.

docs/koordlet.rst has the same rows.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtimeproxy.docker.messages import RESOURCE_TABLE
from tests.docs import KOORDLET, table
from tests.fakes import cri_pb2, hookanswers, registration
from tests.fakes.shapes import CONTAINERD, SHAPES
from tests.system.cri_front import CRI
from tests.system.fronts import CONTAINER, Front
from tests.system.koordlet_cases import CASES, CREATE, POD, UPDATE, Case, goes_out
from tests.system.shaped import EVERY, ShapedNode

PAUSE = {"cpu_shares": 2, "oom_score_adj": -998}
"""What dockershim requests for each pod sandbox."""
LIFTING = {f"cri {shape.name}" for shape in SHAPES if shape.runtime_name == CONTAINERD.runtime_name}
"""The fronts with runtimes that accept -1 in an update."""
POINTS = (POD, CREATE, UPDATE, registration.KOORDLET_EXTRA_POINT)
VERBS = {POD: "run_pod", CREATE: "create", UPDATE: "update"}


async def released(node: ShapedNode, case: Case) -> bytes:
    """Make the case's call; return the request as the runtime got it."""
    node.hooks.answers.clear()
    if case.point != UPDATE:
        node.hooks.on(case.point, case.answer)
    pod_id = await node.caller.run_pod()
    if case.point != POD:
        resources = case.held if case.point == UPDATE else case.queried
        container_id = await node.caller.create(pod_id, replace(CONTAINER, envs=(("A", "1"),), resources=resources))
        await node.caller.act("start", container_id)
        if case.point == UPDATE:
            node.hooks.on(case.point, case.answer)
            await node.caller.update(container_id, case.queried)
    return node.runtime.arrived(VERBS[case.point])[-1]


def in_cri(case: Case, message: bytes) -> dict[str, Any]:
    """Return the resources that a CRI request sets."""
    if case.point == UPDATE:
        resources = cri_pb2.UpdateContainerResourcesRequest.FromString(message).linux
    else:
        kind = cri_pb2.RunPodSandboxRequest if case.point == POD else cri_pb2.CreateContainerRequest
        resources = kind.FromString(message).config.linux.resources
    return {field.name: value for field, value in resources.ListFields()}


def in_docker(case: Case, message: bytes) -> dict[str, Any]:
    """Return the resources that a Docker request sets, but for the swap limit, which equals the memory limit."""
    body = json.loads(message.partition(b"\r\n\r\n")[2])
    host = body if case.point == UPDATE else body["HostConfig"]
    assert host["MemorySwap"] == host["Memory"], case.name
    found = {name: host[key] for name, key in RESOURCE_TABLE.items() if host.get(key) and key != "MemorySwap"}
    usual = PAUSE if case.point == POD else {}
    return {name: value for name, value in found.items() if usual.get(name) != value}


@EVERY
async def test_released_resources_for_each_answer(front: Front, tmp_path: Path) -> None:
    async with ShapedNode(front, tmp_path, hookanswers.echo(), points=POINTS) as node:
        await node.known()
        for case in CASES:
            message = await released(node, case)
            found = in_cri(case, message) if front.caller is CRI.caller else in_docker(case, message)
            assert found == goes_out(case, lifts=front.name in LIFTING), case.name
            if case.point == CREATE:
                assert dict(node.runtime.envs()) == {"A": "1", **case.envs}, case.name
        assert not node.inside.metrics.total("hook_failures")
        assert not node.inside.metrics.total("calls", outcome="refused")


def test_document_has_the_same_rows_and_variables() -> None:
    rows = [
        (row[0], {*re.findall(r"``([A-Z][A-Z_]+)``", row[2])}) for row in table(KOORDLET, "What is sent to the runtime")
    ]
    assert rows == [(case.name, {*case.envs}) for case in CASES]
