"""The project's own hook servers as programs: each passes ``hook verify``, and their values hold on this kernel.

The demo covers the others on both engines (tests/scripts/test_demo.py); these test the pods' cgroups, and core
scheduling.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_hooks.__main__ import ALL, HOOKS
from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.servers import coresched
from tests.engines import cgroups
from tests.fakes.dockershim_bodies import Values
from tests.hooks.sdk import processes
from tests.system.proxy import ROOT
from tests.system.real import CONTAINERD, DOCKERD, MIB, Kind, assert_in_force, end, on, resources, running

pytestmark = pytest.mark.slow

OWN_PATHS = {"coresched": ["core-sched-state"], "rdt": ["resctrl-root"], ALL: ["core-sched-state", "resctrl-root"]}
"""The flags of a hook's paths, which are the machine's by default."""


@pytest.mark.parametrize("name", [*sorted(HOOKS), ALL])
def test_hook_server_passes_hook_verify(tmp_path: Path, name: str) -> None:
    flags = [f"--{flag}={tmp_path}/{flag}" for flag in OWN_PATHS.get(name, [])]
    with processes.running(tmp_path, *flags, program=("-m", "runtimeproxy_hooks", name)) as program:
        command = [sys.executable, "-m", "runtimeproxy", "hook", "verify", str(program.socket)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        assert program.end(15) == 0
    assert "Traceback" not in program.log


BATCH = {f"kubernetes.io/batch-{name}": value for name, value in {"cpu": 600, "memory": "96Mi"}.items()}
LIMITS: Values = {"cpu_quota": 60000, "memory_limit_in_bytes": 96 * MIB}
OWN: Values = {"cpu_shares": 2, "cpu_quota": 80000, "memory_limit_in_bytes": 200 * MIB}


def make_pod_cgroup(path: str) -> None:
    """Make a pod's cgroup as a kubelet does; it is removed with the engine."""
    if not cgroups.is_v2():
        for controller in ("cpu", "memory"):
            (cgroups.ROOT / controller / path.lstrip("/")).mkdir(parents=True)
        return
    directory = cgroups.ROOT
    for name in path.strip("/").split("/"):
        (directory / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
        directory /= name
        directory.mkdir(exist_ok=True)


def kernel_has_cookies() -> bool:
    try:
        coresched.sched_core(coresched.GET, coresched.ITSELF, coresched.THREAD)
    except OSError as error:
        if error.errno in coresched.NOT_SUPPORTED:
            return False
        raise
    return True


@pytest.mark.engine
@on(CONTAINERD, DOCKERD)
def test_limits_hold_in_cgroups_of_pod_and_container(kind: Kind, engine: Any, tmp_path: Path) -> None:
    """Also after an update. The pod's processes are in a core scheduling group, if the kernel supports it."""
    program = ("-m", "runtimeproxy_hooks", "batchresource", "coresched")
    with running(kind, engine, tmp_path, lambda node: None) as node, node.client() as client:
        folder = node.proxy.path
        state = f"--core-sched-state={folder}/coresched.json"
        with processes.running(folder, state, program=program, file="batchresource-coresched.json") as hooks:
            node.proxy.wait_for_registration(hooks.file.name)
            pod, container = node.plain_pod(), node.rich_container(**OWN)
            spec = json.dumps({"containers": {"main": {"limits": BATCH, "requests": BATCH}}})
            pod.annotations[koordinator.EXTENDED_RESOURCE_SPEC] = spec
            pod.labels.update({"koordinator.sh/qosClass": "BE", koordinator.CORE_SCHED_GROUP: "one"})
            parent = pod.linux.cgroup_parent
            make_pod_cgroup(parent)
            pod_id = client.run_pod(pod)
            container_id = client.create(pod_id, container, pod)
            client.start(container_id)
            for _ in range(2):
                assert_in_force(client, container_id, parent, LIMITS)
                assert {name: cgroups.read(parent, name) for name in LIMITS} == LIMITS
                client.update(container_id, resources(**OWN))
            if kernel_has_cookies():
                pids = cgroups.processes(f"{parent}/{container_id}")
                assert 0 not in {coresched.sched_core(coresched.GET, pid, coresched.THREAD) for pid in pids}
            end(client, pod_id, container_id)
            assert hooks.end(15) == 0
