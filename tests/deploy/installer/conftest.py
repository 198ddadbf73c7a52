"""A node to install on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy_installer import kubelet
from tests.deploy.installer.fakes import Bench
from tests.machines.conftest import machine

__all__ = ["machine"]


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have written need not be on the disk before a test goes on."""
    monkeypatch.setattr("os.sync", lambda: None)
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture
def fast_bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Bench]:
    """Return a function that makes a node whose /healthz is no server."""

    def made(folder: Path) -> Bench:
        bench = Bench(folder)
        text = "the kubelet's /healthz answers 500"
        monkeypatch.setattr(kubelet, "healthz", lambda port: "" if bench.node.kubelet_well else text)
        return bench

    return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a node with a kubelet that serves /healthz, and an archive for it."""
    made = Bench(tmp_path)
    with made.healthz():
        yield made
