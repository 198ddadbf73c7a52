"""The hook server of ten lines in docs/hooks.rst, run as it stands there, before real containerd and dockerd."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs import CODE
from tests.hooks.sdk import processes
from tests.system.node import end
from tests.system.real import CONTAINERD, DOCKERD, Kind, RealNode, on, running

pytestmark = [pytest.mark.engine, on(CONTAINERD, DOCKERD)]

GREETING = {"example.com/greeting": "good day"}


def test_ten_lines_greet_each_container(kind: Kind, engine: Any, tmp_path: Path) -> None:
    hello = tmp_path / "hello.py"
    hello.write_text(CODE)
    with running(kind, engine, tmp_path, lambda node: None) as node, node.client() as client:
        flags = (f"--register-dir={node.proxy.registrations}",)
        with processes.running(tmp_path, *flags, program=(str(hello),), file="hello.json") as program:
            node.proxy.wait_for_registration("hello.json")
            pod = node.plain_pod()
            pod.annotations.update(GREETING)
            assert greeted(node, client, pod) == {"POD_UID": pod.metadata.uid, "GREETING": "good day"}
            assert program.end(15) == 0
            assert greeted(node, client, node.plain_pod()) == {}


def greeted(node: RealNode, client: Any, pod: Any) -> dict[str, str]:
    """Run a pod with a container; return what its first process has of the two variables."""
    pod_id = client.run_pod(pod)
    container_id = client.create(pod_id, node.rich_container(), pod)
    client.start(container_id)
    environ = bytes(client.exec_sync(container_id, "cat", "/proc/1/environ").stdout).decode()
    end(client, pod_id, container_id)
    entries = dict(entry.partition("=")[::2] for entry in environ.split("\0"))
    return {name: entries[name] for name in ("POD_UID", "GREETING") if name in entries}
