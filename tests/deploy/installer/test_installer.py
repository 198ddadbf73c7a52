"""The pod: what is on the node afterwards, who goes first, what is tried again, and its own process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy_installer import __main__ as program
from runtimeproxy_installer import wanted as wanted_file
from runtimeproxy_installer.__main__ import Installer
from runtimeproxy_installer.api import Api, ApiError
from runtimeproxy_installer.errors import Failed, Refused, RolledBack, Stopped
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.wanted import Wanted
from tests.deploy.charts import of_kind
from tests.deploy.installer.fakes import NAMESPACE, POOL, SOCKET, Bench, Cluster, node_object, wanted


class FakeWork:
    """A work that takes a place and ends as it is set."""

    def __init__(self, ends: Any, place: Callable[[], None]) -> None:
        self.install = self.uninstall = lambda: self._ended(ends, place)

    @staticmethod
    def _ended(ends: Any, place: Callable[[], None]) -> Any:
        if not isinstance(ends, Refused):
            place()
        if isinstance(ends, Exception):
            raise ends
        return ends


class Pods:
    """Pods of nodes of a cluster, whose works end as set."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.worked: list[str] = []
        self.asleep: Callable[[], None] = lambda: None

    def once(self, name: str, ends: Any, **changed: Any) -> bool:
        wants = wanted(**{"sha256": "0" * 64} | changed)

        def work(wants: Wanted, reported: Kubelet, place: Callable[[], None], ready: Callable[[], bool]) -> Any:
            self.worked.append(name)
            return FakeWork(ends, place)

        return Installer(self.api, name, NAMESPACE, wants, work, lambda seconds: self.asleep()).once()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("n1", "n2")


@pytest.fixture
def pods(cluster: Cluster, tmp_path: Path) -> Iterator[Pods]:
    (tmp_path / "token").write_text("secret")
    with cluster.served() as url:
        yield Pods(Api(url, tmp_path / "token", None))


def holder(cluster: Cluster) -> str:
    return str(cluster.leases[f"{POOL}-0"]["spec"].get("holderIdentity", ""))


ENDS: dict[str, tuple[Any, str, str, str]] = {
    "installed": ("0.2.0", "Installed", "", ""),
    "refused": (Refused("no"), "Refused", "no", ""),
    "failed": (Failed("broken"), "Failed", "broken", "n1"),
    "a full disk": (
        OSError(28, "No space left on device", "/opt/a"),
        "Failed",
        "/opt/a: No space left on device",
        "n1",
    ),
    "rolled back": (RolledBack("it was\nbad"), "RolledBack", "it was bad", "n1"),
}
"""How a work ends: the state and the reason on the node, and who has the place then."""


@pytest.mark.parametrize("case", ENDS)
def test_a_node_says_how_it_went(case: str, pods: Pods, cluster: Cluster) -> None:
    ends, state, reason, held_by = ENDS[case]
    assert pods.once("n1", ends) is (state == "Installed")
    reported = cluster.annotations("n1")
    assert (reported["state"], reported.get("reason", ""), holder(cluster)) == (state, reason, held_by)
    assert reported.get("version") == ("0.2.0" if state == "Installed" else None)
    assert cluster.annotations("n2") == {}


def test_a_version_is_taken_off_a_node_that_has_none(pods: Pods, cluster: Cluster) -> None:
    pods.once("n1", "0.2.0")
    assert pods.once("n1", None, action="uninstall")
    reported = cluster.annotations("n1")
    assert (reported["state"], "version" in reported, "reason" in reported) == ("Removed", False, False)


def test_a_node_that_failed_stops_its_pool(pods: Pods, cluster: Cluster) -> None:
    """Until it is put right, by other values or by hand."""
    pods.once("n1", RolledBack("bad"))
    looks = iter(range(3))

    def look() -> None:
        if next(looks, None) is None:
            pods.once("n1", "0.3.0", sha256="1" * 64)

    pods.asleep = look
    assert pods.once("n2", "0.3.0", sha256="1" * 64)
    assert pods.worked == ["n1", "n2", "n1"]
    assert (cluster.annotations("n1")["state"], cluster.annotations("n2")["state"]) == ("Installed", "Installed")


def test_a_node_that_waits_says_for_whom(pods: Pods, cluster: Cluster) -> None:
    pods.once("n1", Failed("broken"))
    seen: list[str] = []

    def look() -> None:
        seen.append(f"{cluster.annotations('n2')['state']}: {cluster.annotations('n2')['reason']}")
        cluster.make_leases()

    pods.asleep = look
    pods.once("n2", "0.2.0")
    assert seen == ["Waiting: n1 changes first"]


def test_a_node_that_waits_long_writes_seldom(pods: Pods, cluster: Cluster) -> None:
    """The holder is another one at each look."""
    pods.once("n1", Failed("broken"))
    looks: list[str] = []

    def look() -> None:
        looks.append(cluster.annotations("n2")["reason"])
        cluster.leases[f"{POOL}-0"]["spec"]["holderIdentity"] = f"n{len(looks) + 2}"
        if len(looks) == 2 * program.REPORT_CHECKS:
            cluster.make_leases()

    pods.asleep = look
    assert pods.once("n2", "0.2.0")
    turn = program.REPORT_CHECKS
    assert looks == ["n1 changes first"] * turn + [f"n{turn + 2} changes first"] * turn


def test_what_was_rolled_back_is_not_tried_again_by_itself(pods: Pods, cluster: Cluster) -> None:
    pods.once("n1", RolledBack("bad"))
    assert not pods.once("n1", "0.2.0")
    assert (pods.worked, cluster.annotations("n1")["state"], holder(cluster)) == (["n1"], "RolledBack", "n1")
    del cluster.nodes["n1"]["metadata"]["annotations"]["runtimeproxy.koordinator.sh/installer-state"]
    assert pods.once("n1", "0.2.0")


@pytest.mark.parametrize("ends", [Failed("broken"), Refused("no")], ids=["failed", "refused"])
def test_what_failed_before_is_tried_again_by_the_next_pod(ends: Exception, pods: Pods) -> None:
    pods.once("n1", ends)
    assert pods.once("n1", "0.2.0")


def test_pod_that_is_stopped_releases_its_place(pods: Pods, cluster: Cluster) -> None:
    with pytest.raises(Stopped):
        pods.once("n1", Stopped("the pod was requested to end by SIGTERM"))
    assert (cluster.annotations("n1")["state"], holder(cluster)) == ("Interrupted", "")
    assert pods.once("n1", "0.2.0")


def test_an_api_server_that_is_away_begins_nothing(pods: Pods, cluster: Cluster) -> None:
    cluster.away = True
    with pytest.raises(ApiError):
        pods.once("n1", "0.2.0")
    assert pods.worked == []


def test_an_api_server_that_goes_away_is_waited_for(pods: Pods, cluster: Cluster) -> None:
    answer, queried = cluster.answer, iter(range(100))

    def flaky(method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        cluster.away = "leases" in path and next(queried) < 2
        return answer(method, path, body, authorization)

    cluster.answer = flaky  # type: ignore[method-assign]
    assert pods.once("n1", "0.2.0")


def test_a_lease_that_is_not_there_yet_is_waited_for(pods: Pods, cluster: Cluster) -> None:
    """The chart's leases may come after its pods."""
    cluster.leases.clear()
    seen: list[str] = []

    def look() -> None:
        seen.append(f"{cluster.annotations('n1')['state']}: {cluster.annotations('n1')['reason']}")
        if len(seen) == 3:
            cluster.make_leases()

    pods.asleep = look
    assert pods.once("n1", "0.2.0")
    assert len(seen) == 3
    assert all(f"Waiting: nobody knows who (there is no lease {POOL}-0 in {NAMESPACE}" in words for words in seen)


def test_a_node_that_was_rolled_back_waits_for_its_lease(pods: Pods, cluster: Cluster) -> None:
    """It is tried again until it has its place, or the next node would fail in the same way."""
    pods.once("n1", RolledBack("bad"))
    cluster.leases.clear()
    with pytest.raises(ApiError, match="there is no lease"):
        pods.once("n1", "0.2.0")
    cluster.make_leases()
    assert not pods.once("n1", "0.2.0")
    assert (pods.worked, holder(cluster)) == (["n1"], "n1")


def test_a_node_with_another_runtime_is_refused(pods: Pods, cluster: Cluster) -> None:
    cluster.nodes["n1"] = node_object("n1", "rkt://1")
    assert not pods.once("n1", "0.2.0")
    found = cluster.annotations("n1")
    assert found["state"] == "Refused"
    assert found["reason"].startswith("the kubelet uses rkt://1, and the proxy is for containerd, CRI-O and Docker")
    assert pods.worked == []


def test_the_whole_way_on_a_node(bench: Bench, pods: Pods, cluster: Cluster) -> None:
    """The real work on a directory, with what the chart's values say, and a node that goes not ready."""
    for value, states in (("False", ("RolledBack", "/usr/bin/kubelet")), ("True", ("Installed", SOCKET))):
        wants = wanted(bench.sha256, configure_kubelet=True, healthz_port=bench._port, parallel=2)

        def work(wants: Wanted, reported: Kubelet, place: Callable[[], None], ready: Callable[[], bool]) -> Any:
            def placed() -> None:
                place()
                cluster.nodes["n1"]["status"]["conditions"] = [{"type": "Ready", "status": value}]  # noqa: B023

            made = bench.work(configure_kubelet=True, parallel=2)
            made._place, made._ready, made._reported = placed, ready, reported
            return made

        cluster.nodes["n1"] = node_object("n1")
        Installer(pods.api, "n1", NAMESPACE, wants, work, bench.node.sleep).once()
        assert cluster.annotations("n1")["state"] == states[0]
        assert states[1] in bench.node.kubelet


@pytest.mark.tool("helm")
def test_the_charts_file_is_what_is_read(tmp_path: Path) -> None:
    [config] = of_kind("ConfigMap", "kubelet").values()
    (tmp_path / "wanted.json").write_text(config["data"]["wanted.json"])
    wants = wanted_file.read(tmp_path / "wanted.json")
    assert (wants.action, wants.pool, wants.parallel) == ("install", "runtimeproxy-installer", 3)
    assert (wants.configure_kubelet, wants.allow_downgrade, wants.healthz_port) == (True, False, 10248)
    assert wants.config["backend-runtime-mode"] == "Docker"
    assert wants.metrics_group_id == 965


@pytest.mark.parametrize("content", ["{", "[]", '{"action": "install"}', None])
def test_another_file_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "wanted.json").write_text(content)
    with pytest.raises(Refused, match="is not what the chart writes"):
        wanted_file.read(tmp_path / "wanted.json")


def test_other_values_are_another_work_and_more_places_are_not() -> None:
    same = wanted("0" * 64)
    assert wanted("0" * 64, parallel=7, pool="other").fingerprint == same.fingerprint
    for changed in ({"sha256": "1" * 64}, {"configure_kubelet": True}, {"config": {"log-level": "debug"}}):
        assert wanted(**{"sha256": "0" * 64} | changed).fingerprint != same.fingerprint


@pytest.mark.slow  # it starts the program
def test_the_program_says_in_a_line_why_it_cannot_work() -> None:
    environment = {"PATH": os.environ["PATH"], "NODE_NAME": "n1", "POD_NAMESPACE": NAMESPACE}
    done = subprocess.run(
        [sys.executable, "-m", "runtimeproxy_installer"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    assert "this pod cannot work: /etc/runtimeproxy-installer/wanted.json is not what the chart writes" in line
