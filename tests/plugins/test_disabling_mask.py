"""The content of the mask, and the bounds of what is in it (fault matrix H13)."""

import json
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.files import StateFile
from runtimeproxy.plugins.disabling import Disabled, MaskError, check_name, check_seconds, mask_file, read, written

HOURS = Disabled("hangs since the update", "uid 0, pid 7", 1_000_000_000.25, 1_000_003_600.25)
FOR_GOOD = Disabled("gone", "root", 1_000_000_000.0)
BOTH = {"gpu": HOURS, "koordlet": FOR_GOOD}
SHOWN = {
    "reason": "hangs since the update",
    "by": "uid 0, pid 7",
    "since": "2001-09-09T01:46:40.250Z",
    "until": "2001-09-09T02:46:40.250Z",
}


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    tmp_path.chmod(0o700)
    return mask_file(str(tmp_path), "/run/a.sock")


def test_what_was_written_is_read(file: StateFile, tmp_path: Path) -> None:
    assert file.path == str(tmp_path / "run-a.sock.disabled.json")
    assert read(file) == {}
    for content in (BOTH, {"koordlet": FOR_GOOD}, {}):
        file.write(written(content))
        assert read(file) == content
    assert json.loads(written(BOTH)) == {"schemaVersion": 1, "disabled": {"gpu": SHOWN, "koordlet": FOR_GOOD.shown()}}
    assert FOR_GOOD.shown()["until"] is None


def entry(**changes: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "disabled": {"a": {**SHOWN, **changes}}}).encode()


def of(disabled: object, version: object = 1) -> bytes:
    return json.dumps({"schemaVersion": version, "disabled": disabled}).encode()


NO_JSON, NO_VERSION = "is not JSON", "does not have schemaVersion 1"
NO_FORM = "does not have the form that the proxy writes"
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", NO_JSON),
    "half": (written(BOTH)[:50], NO_JSON),
    "binary": (b"\xff\x00", NO_JSON),
    "too deep": (b"[" * 100_000, NO_JSON),
    "a list": (b"[]", NO_FORM),
    "a number": (b"7", NO_FORM),
    "no version": (b'{"disabled": {}}', NO_FORM),
    "a later version": (of({}, 2), NO_VERSION),
    "nothing disabled": (b'{"schemaVersion": 1}', NO_FORM),
    "a list of names": (of(["a"]), NO_FORM),
    "a reason alone": (of({"a": "reason"}), NO_FORM),
    "no reason": (of({"a": {key: SHOWN[key] for key in ("by", "since")}}), NO_FORM),
    "a line feed in the name": (of({"a\nb": SHOWN}), NO_FORM),
    "a line feed in the reason": (entry(reason="a\nERROR b"), NO_FORM),
    "an endless reason": (entry(reason="a" * 201), NO_FORM),
    "a number for a user": (entry(by=0), NO_FORM),
    "a time without a zone": (entry(since="2001-09-09T01:46:40"), NO_FORM),
    "no time": (entry(until="tomorrow"), NO_FORM),
    "seconds for a time": (entry(until=7), NO_FORM),
}


@pytest.mark.parametrize(("content", "why"), BAD.values(), ids=BAD)
def test_content_that_the_proxy_does_not_write_is_refused(file: StateFile, content: bytes, why: str) -> None:
    file.write(content)
    with pytest.raises(MaskError) as raised:
        read(file)
    assert str(raised.value) == f"{file.path} {why}"


@pytest.mark.parametrize("text", ["", " ", "a" * 201, "two\nlines", "\x1b[31m", "\ud800"])
def test_reason_that_cannot_be_logged_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="reason: write 1 to 200 printable characters"):
        Disabled(text, "root", 0.0)


def test_name_and_time_have_bounds() -> None:
    for name in ("a", "ä b", "a" * 250, "ä" * 125, "a.json", "a..b"):
        check_name(name)
    for name in ("", " ", "a" * 251, "ä" * 126, "a\0", "\udc80", "../x", "/x", "x/", ".", "..", ".x"):
        with pytest.raises(ConfigError, match=r"no hook server can have this name: .* runtimeproxy hook ls shows"):
            check_name(name)
    for seconds in (1, 365 * 86400):
        check_seconds(seconds)
    for seconds in (0.9, -1, 365 * 86400 + 1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"for: .* is not a time from 1 s to 365 days"):
            check_seconds(seconds)
