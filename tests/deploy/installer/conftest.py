"""A node to install on, and an API server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy_installer.api import Api
from tests.deploy.installer.fakes import Bench, Cluster, serving
from tests.machines.machine import machine

__all__ = ["machine"]


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the waits for the disk."""
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture
def make_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Bench]:
    return lambda name: Bench(tmp_path / name, monkeypatch)


@pytest.fixture
def bench(make_bench: Callable[[str], Bench]) -> Bench:
    return make_bench("node")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("n1", "n2", "n3")


@pytest.fixture
def api(cluster: Cluster, tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "token").write_text("secret\n")
    with serving(cluster.answer) as port:
        yield Api(f"http://127.0.0.1:{port}", tmp_path / "token", None)
