"""scripts.checks.errors: each error text of the code has an entry in docs/errors.rst, and each entry its text."""

import itertools
from pathlib import Path

import pytest

from scripts.checks import errors
from tests.docs import DOCS, ROOT

HEAD = """\
import logging
from elsewhere import forms

class ConfigError(Exception):
    pass

log = logging.getLogger(__name__)
"""
SAID = [
    ('raise ConfigError(f"{origin}: {text!r} is not a number")', ["{}: {} is not a number"]),
    ('raise ConfigError("one text " f"in {n} parts")', ["one text in {} parts"]),
    ('raise ConfigError("there is " + ("no" if n else "one") + " file")', ["there is no file", "there is one file"]),
    ('wrong = f"{text} is gone"; raise ConfigError(f"{wrong}: make it")', ["{} is gone: make it"]),
    ("raise ConfigError(FORMS)", ["write it as /path"]),
    ('raise ConfigError(f"{text}: {_fault(text)}")', ["it is a link", "it is {} bytes"]),
    ("raise _made(text)", []),
    ('log.warning("%s was seen %d times", text, n)', ["{} was seen {} times"]),
    ('log.error("%s: try again", "it cannot be read" if n else text)', ["{}: try again", "it cannot be read"]),
    ("log.info('%s was seen at %d', text, n)", []),
    ('_hand_on("this is handed on")', ["this is handed on"]),
    ("raise ConfigError(str(text))", []),
]
LIBRARY = """
FORMS = "write it as /path"

def _fault(text) -> str:
    if text:
        return "it is a link"
    return f"it is {len(text)} bytes"

def _made(text) -> ConfigError:
    return ConfigError(text)

def _hand_on(text) -> None:
    log.error("%s", text)

def first(origin, text, n):
    """


@pytest.mark.parametrize(("line", "said"), SAID)
def test_texts_are_read_from_the_code(line: str, said: list[str]) -> None:
    found = errors.texts_of({Path("code.py"): HEAD + LIBRARY + line})
    assert set(found) == set(said)
    assert all(said.startswith("code.py:") for said in found.values())


def test_what_a_script_tells_is_one_text() -> None:
    script = 'if x; then\n    tell "$found" "no @VERSION@" \\\n        "  Do it."\nfi\n'
    assert errors.texts_told({Path("a.sh"): script}) == {"{} no {} Do it.": "a.sh:2 says: {} no {}   Do it."}


def test_text_without_an_entry_and_entry_without_a_text_are_found() -> None:
    page = "Errors\n======\n\n| ``{path} is gone``\n| ``nobody says\n  this {thing} now``\n\n    Make it.\n"
    found = {"{} is gone": "a.py:1 says: ...", "{} is new": "b.py:2 says: {what} is new"}
    assert errors.findings(found, page) == [
        "docs/errors.rst lacks what b.py:2 says: {what} is new",
        "docs/errors.rst: no code says: nobody says this {} now",
    ]


def test_page_has_each_error_text_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = errors.texts_here()
    assert len(found) > 400
    assert errors.findings(found, DOCS["errors"]) == []


def test_each_entry_says_what_to_do() -> None:
    blocks = DOCS["errors"].split("\n\n")
    entries = [(block, after) for block, after in itertools.pairwise(blocks) if block.startswith("| ``")]
    assert len(entries) > 100
    assert [block for block, after in entries if not after.startswith("    ")] == []
