"""The pins of a release satisfy what setup.cfg requires, so the archive has what the wheel would be installed with."""

import re
from configparser import ConfigParser

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs import ROOT

LOCK = (ROOT / "deploy/requirements.lock").read_text()
PINS = {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.MULTILINE)}


def required() -> list[str]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [*setup["options"]["install_requires"].split(), *setup["options.extras_require"]["hooks"].split()]
    return [line for line in lines if line[0].isalpha()]


@pytest.mark.parametrize("line", required())
def test_pin_satisfies_the_requirement(line: str) -> None:
    requirement = Requirement(line)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_every_pin_has_hashes_and_no_address(name: str) -> None:
    pins = re.split(r"^(?=\w)", (ROOT / "deploy" / name).read_text(), flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", pin)] == []
