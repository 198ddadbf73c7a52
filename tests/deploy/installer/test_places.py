"""Places are leases of a real HTTP server: one node of a pool at a time, and a node that failed keeps its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy_installer import places
from runtimeproxy_installer.api import Api, ApiError
from runtimeproxy_installer.places import Places
from tests.deploy.installer.fakes import NAMESPACE, POOL, Cluster


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("n1", "n2", "n3")


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "token").write_text("secret\n")
    with cluster.served() as url:
        yield Api(url, tmp_path / "token", None)


def of(api: Api, holder: str, count: int = 1, clock: Clock | None = None) -> Places:
    return Places(api, NAMESPACE, POOL, count, holder, clock or Clock())


def test_one_node_has_the_place_until_it_leaves(api: Api, cluster: Cluster) -> None:
    first, second = of(api, "n1"), of(api, "n2")
    assert first.take() == ""
    assert second.take() == "n1"
    assert first.renew()
    first.leave()
    assert (first.renew(), second.take(), second.held) == (False, "", f"{POOL}-0")
    assert cluster.leases[f"{POOL}-0"]["spec"]["holderIdentity"] == "n2"


def test_several_places_are_for_several_nodes(api: Api) -> None:
    assert [of(api, name, 2).take() for name in ("n1", "n2", "n3")] == ["", "", "n1, n2"]


def test_restarted_node_takes_its_own_place(api: Api) -> None:
    assert [of(api, name, 2).take() for name in ("n1", "n2")] == ["", ""]
    again = of(api, "n2", 2)
    assert (again.take(), again.held) == ("", f"{POOL}-1")


def test_a_node_looks_at_few_places_and_all_nodes_at_all(api: Api, cluster: Cluster) -> None:
    """However many places a pool has, and again at its own ones when it begins again."""
    names = [f"node-{number}" for number in range(200)]
    for name in names:
        of(api, name, 100).take()
    held = cluster.holders()
    assert len(held) > 90
    for name, place in list(held.items())[:20]:
        again = of(api, name, 100)
        assert (again.take(), again.held) == ("", place)
    [waits, *_] = [name for name in names if name not in held]
    waiting, cluster.queried = of(api, waits, 100), []
    for _ in range(10):
        assert len(waiting.take().split(", ")) == places.FEW
    assert {method for method, _ in cluster.queried} == {"GET"}
    assert len(cluster.queried) == 10 * places.FEW
    assert len({path for _, path in cluster.queried}) == places.FEW


def test_the_place_of_a_node_that_is_gone_is_free_after_a_time(api: Api) -> None:
    clock = Clock()
    gone, waiting = of(api, "n1"), of(api, "n2", clock=clock)
    gone.take()
    for clock.now in (0.0, places.SECONDS - 1.0):
        assert waiting.take() == "n1"
    gone.renew()  # a sign of life
    for clock.now in (places.SECONDS + 1.0, 2 * places.SECONDS):
        assert waiting.take() == "n1"
    clock.now = 3 * places.SECONDS
    assert waiting.take() == ""
    assert not gone.renew()


def test_of_two_that_take_it_at_once_one_has_it(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = of(api, "n1"), of(api, "n2")
    first.take()
    first.leave()
    read = api.lease

    def read_late(namespace: str, name: str) -> dict[str, object]:
        found = read(namespace, name)
        monkeypatch.setattr(api, "lease", read)
        assert first.take() == ""  # between the other's look and its write
        return found

    monkeypatch.setattr(api, "lease", read_late)
    assert second.take() == "another node"
    assert second.held is None
    assert cluster.leases[f"{POOL}-0"]["spec"]["holderIdentity"] == "n1"


def test_missing_lease_is_an_error_and_is_not_created(api: Api, cluster: Cluster) -> None:
    places = of(api, "n1")
    places.take()
    cluster.leases.clear()
    words = f"there is no lease {POOL}-0 in {NAMESPACE}, .*: .* install the chart again"
    for query in (of(api, "n2").take, places.renew, places.leave):
        with pytest.raises(ApiError, match=words):
            query()
    assert cluster.leases == {}


def test_what_the_chart_gave_a_lease_stays(api: Api, cluster: Cluster) -> None:
    cluster.leases[f"{POOL}-0"]["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    before = cluster.leases[f"{POOL}-0"]["metadata"] | {"resourceVersion": ""}
    of(api, "n1").take()
    assert cluster.leases[f"{POOL}-0"]["metadata"] | {"resourceVersion": ""} == before


def test_refusal_of_the_api_server_is_reported_with_its_text(api: Api, cluster: Cluster) -> None:
    cluster.away = True
    for query in (lambda: api.node("n1"), lambda: api.lease(NAMESPACE, f"{POOL}-0"), lambda: of(api, "n1").take()):
        with pytest.raises(ApiError, match="the API server answers 503: not now"):
            query()


def test_no_token_is_in_an_error(api: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("an-old-secret")
    with pytest.raises(ApiError, match="401: who are you") as caught:
        api.node("n1")
    assert "an-old-secret" not in str(caught.value)


def test_unavailable_api_server_is_reported(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    with Cluster().served() as url:
        pass
    with pytest.raises(ApiError, match="the API server cannot be reached: Connection refused"):
        Api(url, tmp_path / "token", None).node("n1")
