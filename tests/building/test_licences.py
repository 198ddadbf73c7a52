"""No part is shipped whose licence nobody has allowed; the page has each part's."""

from email.message import Message
from pathlib import Path

import pytest

from scripts.building import debian, image, licences
from scripts.building.errors import BuildError
from scripts.checks import licences as page
from tests.docs import DOCS, ROOT


def metadata(**headers: str) -> Message:
    made = Message()
    made["Name"] = "part"
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    return made


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"License_Expression": "Apache-2.0 AND MIT"}, "Apache-2.0 AND MIT"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "words", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "3-Clause BSD License", "Classifier": "Typing :: Typed"}, "BSD-3-Clause"),
    ],
)
def test_wheels_licence_is_an_spdx_expression(headers: dict[str, str], expected: str) -> None:
    assert licences.of_wheel(metadata(**headers)) == expected


@pytest.mark.parametrize(
    ("headers", "unknown"),
    [
        ({"License_Expression": "MIT AND AGPL-3.0-only"}, "AGPL-3.0-only"),
        ({"License_Expression": "(MIT OR SSPL-1.0) AND MIT"}, "SSPL-1.0"),
        ({"License": "do what you want"}, "do what you want"),
        ({}, "none"),
    ],
)
def test_licence_that_is_not_allowed_is_an_error(headers: dict[str, str], unknown: str) -> None:
    with pytest.raises(BuildError, match=f"^the licence of part is .*, and {unknown} is not allowed: "):
        licences.of_wheel(metadata(**headers))


def test_debian_package_that_nobody_read_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"^the licence of libother1 is 'none', and none is not allowed: "):
        licences.of_package("libother1")


def test_every_package_that_is_taken_was_read_and_no_other() -> None:
    taken = {*debian.PYTHON, *debian.LIBRARIES, debian.COMMON_LICENCES[0], *image.TAKEN}
    assert licences.DEBIAN.keys() == taken
    assert licences.not_allowed(licences.DEBIAN.values()) == set()


def test_page_has_the_licence_of_each_part(tmp_path: Path) -> None:
    assert page.page((ROOT / page.LOCK).read_text()) == DOCS["licences"]
