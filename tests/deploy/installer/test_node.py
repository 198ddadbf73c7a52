"""Paths of a node whose directories are links: each leads below the node's root, as it does on the node."""

import errno
from pathlib import Path

import pytest

from runtimeproxy_installer.node import Node
from tests.deploy.installer.fakes import SERVICE, Bench

LINKS: dict[str, tuple[dict[str, str], str, str]] = {
    "none": ({}, "/opt/a", "opt/a"),
    "absolute": ({"opt": "/data/opt"}, "/opt/a", "data/opt/a"),
    "relative": ({"var/run": "../run"}, "/var/run/a", "run/a"),
    "through others": ({"opt": "/srv/opt", "srv": "data", "data/opt": "/x"}, "/opt/a", "x/a"),
    "above the root": ({"opt": "../../../etc"}, "/opt/a", "etc/a"),
    "above it by the path": ({}, "/../../opt/a", "opt/a"),
    "of the file itself": ({"opt/a": "/etc/b"}, "/opt/a", "etc/b"),
    "to the root": ({"host": "/"}, "/host/opt/a", "opt/a"),
}
"""The links of a node, a path, and where it leads below the node's root."""


def linked(root: Path, links: dict[str, str]) -> Node:
    for place, target in links.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(target)
    return Node(root)


@pytest.mark.parametrize("case", LINKS)
def test_a_path_stays_below_the_root(case: str, tmp_path: Path) -> None:
    links, place, found = LINKS[case]
    assert linked(tmp_path, links).path(place) == tmp_path / found


def test_links_that_lead_nowhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Too many levels") as caught:
        linked(tmp_path, {"opt": "/a", "a": "opt"}).text("/opt/a")
    assert caught.value.errno == errno.ELOOP


def test_a_link_is_replaced_and_removed_itself(tmp_path: Path) -> None:
    node = linked(tmp_path, {"etc/a": "/etc/b", "etc/c": "/etc/b"})
    node.write("/etc/b", "b", 0o640)
    node.write("/etc/a", "a")
    node.remove("/etc/c")
    assert sorted(path.name for path in (tmp_path / "etc").iterdir()) == ["a", "b"]
    assert (node.text("/etc/a"), node.text("/etc/b")) == ("a", "b")
    assert (tmp_path / "etc/a").stat().st_mode & 0o777 == 0o640


def test_a_node_whose_opt_is_elsewhere_is_installed_and_undone(bench: Bench, tmp_path: Path) -> None:
    """Nothing is put where the link leads here."""
    here = tmp_path / "elsewhere"
    (bench.node.root / "opt").symlink_to(here)
    bench.install(configure_kubelet=True)
    [tree] = (bench.node.root / str(here).lstrip("/") / "runtimeproxy").iterdir()
    assert (tree / "bin/runtimeproxy").exists()
    assert f"/opt/runtimeproxy/{tree.name}/bin/" in (bench.node.text(f"/etc/systemd/system/{SERVICE}") or "")
    bench.uninstall()
    assert (tree.parent.parent.exists(), tree.parent.exists(), here.exists()) == (True, False, False)
