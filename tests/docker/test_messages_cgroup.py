"""Conversion of a cgroup parent between CRI's form and Docker's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker.messages import Driver, driver, to_cri, to_docker

SLICES = [("", ""), ("-.slice", "/"), ("system.slice", "/system.slice"), ("a.slice.slice", "/a.slice.slice")]
SLICES += [("kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice")]
SLICES += [("my.app-x.y.slice", "/my.app.slice/my.app-x.y.slice")]
"""Docker's form and CRI's, under systemd."""


@pytest.mark.parametrize(("docker", "cri"), SLICES)
def test_slice_of_systemd(docker: str, cri: str) -> None:
    assert to_cri(docker, Driver.SYSTEMD) == cri
    assert to_docker(cri, Driver.SYSTEMD) == docker
    for value in (docker, cri, "/kubepods/besteffort/podu-1"):
        assert to_cri(value, Driver.CGROUPFS) == to_docker(value, Driver.CGROUPFS) == value


NO_SLICES = ["/kubepods.slice/kubepods-besteffort.slice", "/kubepods/besteffort/podu-1", "kubepods/a-b.slice", "/"]
NO_SLICES += ["kubepods", "a-b", ".slice", "a--b.slice", "-a.slice", "a-.slice", "--.slice", "a-b.slice\n", "a-b.Slice"]


@pytest.mark.parametrize("parent", NO_SLICES)
def test_what_is_no_slice_is_not_changed(parent: str) -> None:
    assert to_cri(parent, Driver.SYSTEMD) == parent


PATHS = ["/kubepods.slice/kubepods-pod1.slice/", "kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice"]


@pytest.mark.parametrize("path", [*PATHS, "/elsewhere.slice/kubepods-pod1.slice"])
def test_dockers_form_is_the_last_name(path: str) -> None:
    assert to_docker(path, Driver.SYSTEMD) == "kubepods-pod1.slice"
    assert to_docker("//", Driver.SYSTEMD) == "-.slice"


def test_driver() -> None:
    assert driver("systemd") is Driver.SYSTEMD
    assert {driver(text) for text in ("cgroupfs", "none", "", "Systemd")} == {Driver.CGROUPFS}


@given(st.text(st.sampled_from("ab-_."), max_size=12), st.sampled_from(["", ".slice"]), st.sampled_from(Driver))
def test_dockers_form_survives_the_way_there_and_back(name: str, suffix: str, by: Driver) -> None:
    assert to_docker(str(to_cri(name + suffix, by)), by) == name + suffix


@given(st.lists(st.text(st.sampled_from("ab_."), min_size=1, max_size=4), min_size=1, max_size=4))
def test_nested_slices_survive_the_way_back(parts: list[str]) -> None:
    """A path that systemd makes for a slice's name is the same after conversion to Docker's form and back."""
    path = "".join(f"/{'-'.join(parts[: depth + 1])}.slice" for depth in range(len(parts)))
    assert to_cri(to_docker(path, Driver.SYSTEMD), Driver.SYSTEMD) == path
