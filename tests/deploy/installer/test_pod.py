"""The installer's pod: its result on the node, its leases on a real HTTP server, and its process."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import runtimeproxy_installer
from runtimeproxy_installer import __main__ as program
from runtimeproxy_installer import places
from runtimeproxy_installer.__main__ import PREFIX, Installer
from runtimeproxy_installer.api import Api, ApiError
from runtimeproxy_installer.desired import DesiredState
from runtimeproxy_installer.errors import Failed, Refused, RolledBack, Stopped
from runtimeproxy_installer.kubelet import Kubelet
from runtimeproxy_installer.places import Places
from tests.deploy.installer.fakes import NAMESPACE, POOL, SOCKET, Bench, Cluster, desired_state, node_object

Place = Callable[[], None]


class Pods:
    """Pods of a cluster's nodes. Their work acquires a place, unless it is refused, and ends with the given result."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.worked: list[str] = []
        self.asleep: Callable[[], None] = lambda: None

    def run(self, name: str, end: Any, **changed: Any) -> bool:
        def work(desired: DesiredState, reported: Kubelet, place: Place, ready: Callable[[], bool]) -> Any:
            self.worked.append(name)
            ended = Mock(side_effect=[end])  # an exception is raised
            placed = ended if isinstance(end, Refused) else lambda: place() or ended()
            return Mock(install=placed, uninstall=placed)

        state = desired_state(**changed)
        return Installer(self._api, name, NAMESPACE, state, work, lambda seconds: self.asleep()).run()


@pytest.fixture
def pods(api: Api) -> Pods:
    return Pods(api)


def holder(cluster: Cluster, number: int = 0) -> str:
    return str(cluster.leases[f"{POOL}-{number}"]["spec"].get("holderIdentity", ""))


@pytest.mark.parametrize(
    ("end", "state", "reason", "held_by"),
    [
        ("0.2.0", "Installed", None, ""),
        (Refused("no"), "Refused", "no", ""),
        (Failed("broken"), "Failed", "broken", "n1"),
        (OSError(28, "No space left on device", "/opt/a"), "Failed", "/opt/a: No space left on device", "n1"),
        (RolledBack("it was\nbad"), "RolledBack", "it was bad", "n1"),
        (Stopped("by SIGTERM"), "Interrupted", "by SIGTERM", ""),
    ],
)
def test_result_of_work_is_reported_on_node(
    end: Any, state: str, reason: str | None, held_by: str, pods: Pods, cluster: Cluster
) -> None:
    with pytest.raises(Stopped) if state == "Interrupted" else nullcontext():
        assert pods.run("n1", end) is (state == "Installed")
    reported = cluster.annotations("n1")
    assert (reported["state"], reported.get("reason"), holder(cluster)) == (state, reason, held_by)
    assert reported.get("version") == ("0.2.0" if state == "Installed" else None)
    assert cluster.annotations("n2") == {}
    assert pods.run("n1", "0.2.0") is (state != "RolledBack")
    assert pods.run("n1", None, action="uninstall")
    assert cluster.annotations("n1") == {"state": "Removed", "wanted": cluster.annotations("n1")["wanted"]}


def test_failed_node_stops_its_pool_until_values_change(pods: Pods, cluster: Cluster) -> None:
    pods.run("n1", RolledBack("bad"))
    polls = iter(range(3))

    def on_sleep() -> None:
        if next(polls, None) is None:
            pods.run("n1", "0.3.0", sha256="1" * 64)

    pods.asleep = on_sleep
    assert pods.run("n2", "0.3.0", sha256="1" * 64)
    assert pods.worked == ["n1", "n2", "n1"]
    assert (cluster.annotations("n1")["state"], cluster.annotations("n2")["state"]) == ("Installed", "Installed")


def test_waiting_node_reports_holder_and_writes_rarely(pods: Pods, cluster: Cluster) -> None:
    """The holder changes at each check."""
    pods.run("n1", Failed("broken"))
    reasons: list[str] = []

    def on_sleep() -> None:
        reasons.append(cluster.annotations("n2")["reason"])
        cluster.leases[f"{POOL}-0"]["spec"]["holderIdentity"] = f"n{len(reasons) + 2}"
        if len(reasons) == 2 * program.REPORT_CHECKS:
            cluster.make_leases()

    pods.asleep = on_sleep
    assert pods.run("n2", "0.2.0")
    reports = program.REPORT_CHECKS
    assert reasons == ["n1 changes first"] * reports + [f"n{reports + 2} changes first"] * reports


def test_rolled_back_work_is_not_repeated_and_holds_place(pods: Pods, cluster: Cluster) -> None:
    """Until its annotation is removed. A missing lease is retried, since the next node would fail in the same way."""
    pods.run("n1", RolledBack("bad"))
    cluster.leases.clear()
    with pytest.raises(ApiError, match="there is no lease"):
        pods.run("n1", "0.2.0")
    cluster.make_leases()
    assert not pods.run("n1", "0.2.0")
    assert (pods.worked, cluster.annotations("n1")["state"], holder(cluster)) == (["n1"], "RolledBack", "n1")
    del cluster.nodes["n1"]["metadata"]["annotations"][f"{PREFIX}state"]
    assert pods.run("n1", "0.2.0")


def test_work_begins_only_with_api_server_and_lease(pods: Pods, cluster: Cluster) -> None:
    """The chart's leases may be created after its pods."""
    cluster.is_unavailable = True
    with pytest.raises(ApiError, match="the API server answers 503: not now"):
        pods.run("n1", "0.2.0")
    assert pods.worked == []
    cluster.is_unavailable = False
    cluster.leases.clear()
    reported: list[str] = []

    def on_sleep() -> None:
        reported.append(f"{cluster.annotations('n1')['state']}: {cluster.annotations('n1')['reason']}")
        if len(reported) == 3:
            cluster.make_leases()

    pods.asleep = on_sleep
    assert pods.run("n1", "0.2.0")
    assert len(reported) == 3
    assert all(f"Waiting: an unknown node (there is no lease {POOL}-0 in {NAMESPACE}" in words for words in reported)


def test_node_with_another_runtime_is_refused(pods: Pods, cluster: Cluster) -> None:
    cluster.nodes["n1"] = node_object("n1", "rkt://1")
    assert not pods.run("n1", "0.2.0")
    annotations = cluster.annotations("n1")
    assert (annotations["state"], annotations["reason"].partition(",")[0]) == ("Refused", "the kubelet uses rkt://1")
    assert pods.worked == []


ENDS = [("False", "RolledBack", "kubelet"), ("True", "Installed", SOCKET)]


@pytest.mark.parametrize(("ready", "state", "kubelet"), ENDS)
def test_pod_does_real_work(ready: str, state: str, kubelet: str, bench: Bench, api: Api, cluster: Cluster) -> None:
    def work(desired: DesiredState, reported: Kubelet, place: Place, is_ready: Callable[[], bool]) -> Any:
        def placed() -> None:
            place()
            cluster.nodes["n1"] = node_object("n1", ready=ready)

        bench.place, bench.ready, bench.reported = placed, is_ready, reported
        return bench.work(configure_kubelet=True)

    desired = desired_state(bench.sha256, configure_kubelet=True)
    assert Installer(api, "n1", NAMESPACE, desired, work, bench.sleep).run() is (state == "Installed")
    assert cluster.annotations("n1")["state"] == state
    assert bench.kubelet.endswith(kubelet)


# ---- places


def places_of(api: Api, name: str, count: int = 1, clock: Callable[[], float] = lambda: 0.0) -> Places:
    return Places(api, NAMESPACE, POOL, count, name, clock)


def test_places_are_held_by_nodes_until_they_leave(api: Api, cluster: Cluster) -> None:
    first, second = places_of(api, "n1"), places_of(api, "n2")
    assert (first.acquire(), second.acquire(), first.renew()) == ("", "n1", True)
    first.release()
    assert (first.renew(), second.acquire(), second.held, holder(cluster)) == (False, "", f"{POOL}-0", "n2")
    assert "labels" in cluster.leases[f"{POOL}-0"]["metadata"]  # of the chart
    cluster.make_leases()
    assert [places_of(api, name, 2).acquire() for name in ("n1", "n2", "n3")] == ["", "", "n1, n2"]
    restarted = places_of(api, "n2", 2)
    assert (restarted.acquire(), restarted.held) == ("", f"{POOL}-1")


def test_node_reads_few_places_and_all_nodes_read_all(api: Api, cluster: Cluster) -> None:
    names = [f"node-{number}" for number in range(200)]
    for name in names:
        places_of(api, name, 100).acquire()
    held = {holder(cluster, number) for number in range(100)} - {""}
    assert len(held) > 90
    waiting, cluster.queried = places_of(api, next(name for name in names if name not in held), 100), []
    for _ in range(10):
        assert len(waiting.acquire().split(", ")) == places.CANDIDATES
    assert {method for method, _ in cluster.queried} == {"GET"}
    assert (len(cluster.queried), len(set(cluster.queried))) == (10 * places.CANDIDATES, places.CANDIDATES)


def test_place_of_lost_node_becomes_free(api: Api) -> None:
    now = 0.0
    lost, waiting = places_of(api, "n1"), places_of(api, "n2", clock=lambda: now)
    lost.acquire()
    for now in (0.0, places.LEASE_SECONDS - 1.0):  # noqa: B007
        assert waiting.acquire() == "n1"
    lost.renew()
    for now in (places.LEASE_SECONDS + 1.0, 2 * places.LEASE_SECONDS):  # noqa: B007
        assert waiting.acquire() == "n1"
    now = 3 * places.LEASE_SECONDS
    assert waiting.acquire() == ""
    assert not lost.renew()


def test_one_of_two_racing_nodes_gets_place(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, read = places_of(api, "n1"), places_of(api, "n2"), api.lease

    def read_late(namespace: str, name: str) -> dict[str, Any]:
        lease = read(namespace, name)
        monkeypatch.setattr(api, "lease", read)
        assert first.acquire() == ""  # between the read and the write of the second
        return lease

    monkeypatch.setattr(api, "lease", read_late)
    assert (second.acquire(), second.held, holder(cluster)) == ("another node", None, "n1")


def test_missing_lease_is_reported_and_not_created(api: Api, cluster: Cluster) -> None:
    held = places_of(api, "n1")
    held.acquire()
    cluster.leases.clear()
    for query in (places_of(api, "n2").acquire, held.renew, held.release):
        with pytest.raises(ApiError, match=f"no lease {POOL}-0 in {NAMESPACE}, .*: .* install the chart again"):
            query()
    assert cluster.leases == {}


def test_api_error_has_text_and_no_token(api: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("an-old-secret")
    with pytest.raises(ApiError, match="401: who are you") as caught:
        api.node("n1")
    assert "an-old-secret" not in str(caught.value)
    with pytest.raises(ApiError, match="the API server cannot be reached: Connection refused"):
        Api("http://127.0.0.1:1", tmp_path / "token", None).node("n1")


# ---- the desired state, and the process


def test_fingerprint_changes_with_values_but_not_with_places() -> None:
    same = desired_state()
    assert desired_state(parallel=7, pool="other").fingerprint == same.fingerprint
    for changed in ({"sha256": "1" * 64}, {"configure_kubelet": True}, {"config": {"log-level": "debug"}}):
        assert desired_state(**changed).fingerprint != same.fingerprint


@pytest.mark.slow  # it starts the program
def test_program_requires_only_python_and_reports_lost_file(tmp_path: Path) -> None:
    (tmp_path / "runtimeproxy_installer").symlink_to(Path(runtimeproxy_installer.__file__).parent)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "NODE_NAME": "n1"}
    command = [sys.executable, "-S", "-m", "runtimeproxy_installer"]  # without installed packages
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    [line] = done.stdout.splitlines()
    assert "this pod cannot work: /etc/runtimeproxy-installer/wanted.json is not what the chart writes" in line
