"""YAML written by people: accepted forms, and an error with a remedy for all others."""

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.yamltext import Place, compose, pairs, scalar


def texts(text: str) -> dict[str, str]:
    root = compose(text, "f")
    assert root is not None
    place = Place("f", ("top",))
    return {key: scalar(value, place.inside(key)) for key, value in pairs(root, place)}


def test_scalars_are_read_as_written() -> None:
    written = "a: 0600\nb: yes\nc: 1e3\nd: null\ne: 2026-11-21\nf: ''\ng:\nh: &x ~\ni: *x\n"
    taken = {"a": "0600", "b": "yes", "c": "1e3", "d": "null", "e": "2026-11-21", "f": "", "g": "", "h": "~", "i": "~"}
    assert texts(written) == taken
    assert compose("# nothing\n", "f") is None


DEEP = 10_000
"""Deeper than Python goes, also after Hypothesis has raised its limit in this process. Each bracket has its own line:
within one line the parser looks 1024 characters ahead, at all brackets for each, which takes it a second."""
NO_YAML, NESTED = "f: this is not YAML:", "f: this is nested too deeply: write 'key: value' lines"
NO_CHARACTER = r"f: an escape is no character: \UXXXXXXXX ends at \U0010FFFF"
ERRORS = [
    ("{", f"{NO_YAML} expected the node content, but found '<stream end>' in line 1"),
    ("a: canary\nb: *who", f"{NO_YAML} found undefined alias 'who' in line 2"),
    ("a: 1\n---\nb: 2", f"{NO_YAML} but found another document in line 2"),
    ("a: \x01", f"{NO_YAML} it holds characters that YAML does not allow"),
    ("[\n" * DEEP, NESTED),
    (r'a: "\UFFFFFFFF"', NO_CHARACTER),
    ("\n- canary", "f:2: top: write 'key: value' lines here"),
    ('"canary"', "f:1: top: write 'key: value' lines here"),
    ("a: 1\n? [canary]\n: 1", "f:2: top: a key is one text"),
    ("a: canary\nb: 1\na: 2", "f:3: top.a: is there twice: remove one of them"),
    ("a:\n  [canary]", "f:2: top.a: write one text, in quotes if it is JSON"),
]


@pytest.mark.parametrize(("text", "line"), ERRORS)
def test_yaml_error_has_place_and_remedy_but_no_value(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        texts(text)
    assert str(caught.value) == line
