"""One registration file: every key, every fault (hook-api, "Registration files"; fault matrix C2, C4)."""

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.plugins import registration as plugin_files
from runtimeproxy.plugins.registration import ChangeKind, Content, FailurePolicy, Registration, Registry, parse
from tests.amounts import examples

SOCKET = "/run/plugin.sock"
POINT = "PreCreateContainer"


def read(**entry: object) -> Registration:
    """Parse a file that is valid except for what is given (names with - spelt _)."""
    keys = {key.replace("_", "-"): value for key, value in entry.items()}
    return parse("a.json", json.dumps({"remote-endpoint": SOCKET, "runtime-hooks": [POINT], **keys}).encode())


def test_file_of_koordlet_is_read() -> None:
    names = [hook_point.name for hook_point in HOOK_POINTS]
    entry = {"remote-endpoint": SOCKET, "failure-policy": "Ignore", "runtime-hooks": [*names, "PreRemoveRunPodSandbox"]}
    registration = parse("koordlet.json", json.dumps(entry, indent="\t").encode())
    assert registration.points == frozenset(names)
    assert registration.warnings == ("koordlet.json: unknown hook points are ignored: 'PreRemoveRunPodSandbox'",)


@pytest.mark.parametrize(
    ("key", "written", "attribute", "value"),
    [
        ("remote-endpoint", "/run/a.sock", "endpoint", "/run/a.sock"),
        ("remote-endpoint", "unix:///run/a.sock", "endpoint", "/run/a.sock"),
        ("remote-endpoint", "unix:/run/a.sock", "endpoint", "/run/a.sock"),
        *(("failure-policy", written, "policy", FailurePolicy.FAIL) for written in ("Fail", "FAIL", "fail")),
        *(("failure-policy", written, "policy", FailurePolicy.IGNORE) for written in ("Ignore", "iGNORE", "", None)),
        ("timeout", "500ms", "timeout_seconds", 0.5),
        ("timeout", "2s", "timeout_seconds", 2.0),
        ("timeout", None, "timeout_seconds", None),
        ("runtime-hooks", [POINT, POINT], "points", {POINT}),
    ],
)
def test_valid_value_is_read(key: str, written: object, attribute: str, value: object) -> None:
    assert getattr(read(**{key: written}), attribute) == value


VALUES = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)
KEYS = st.sampled_from(["remote-endpoint", "failure-policy", "runtime-hooks", "timeout"]) | st.text()
CONTENTS = st.binary() | st.dictionaries(KEYS, VALUES).map(lambda entry: json.dumps(entry).encode())


@settings(max_examples=examples())
@given(CONTENTS)
def test_any_file_is_read_or_refused(content: bytes) -> None:
    with suppress(ConfigError):
        parse("a.json", content)


@pytest.mark.parametrize("spell", [str.upper, str.title, lambda key: key.replace("k", "\N{KELVIN SIGN}")])
def test_keys_are_accepted_in_any_letter_case(spell: Callable[[str], str]) -> None:
    entry = {"remote-endpoint": SOCKET, "failure-policy": "Fail", "runtime-hooks": [POINT], "timeout": "1s"}
    text = json.dumps({spell(key): value for key, value in entry.items()}).encode()
    assert parse("a.json", text) == Registration("a.json", SOCKET, FailurePolicy.FAIL, frozenset({POINT}), 1.0)


@pytest.mark.parametrize(
    ("members", "attribute", "value"),
    [
        ('"remote-endpoint": "/a", "Remote-Endpoint": "/b"', "endpoint", "/b"),
        ('"Remote-Endpoint": "/b", "remote-endpoint": "/a"', "endpoint", "/a"),
        ('"remote-endpoint": "/a", "remote-endpoint": "/b"', "endpoint", "/b"),
        ('"remote-endpoint": "/a", "remote-endpoint": "/b", "Remote-Endpoint": null', "endpoint", "/b"),
        (f'"runtime-hooks": ["PreStartContainer"], "Runtime-Hooks": ["{POINT}"]', "points", {POINT}),
        (f'"runtime-hooks": ["{POINT}"], "Runtime-Hooks": null', "points", set()),
    ],
)
def test_last_value_of_repeated_key_is_used(members: str, attribute: str, value: object) -> None:
    """As Go's encoding/json does (1.26) with the struct of koord-runtime-proxy, RuntimeHookConfig."""
    key = members.partition(":")[0].strip('"').lower()
    required = f'"runtime-hooks": ["{POINT}"]' if attribute == "endpoint" else '"remote-endpoint": "/a"'
    registration = parse("a.json", f"{{{required}, {members}}}".encode())
    assert getattr(registration, attribute) == value
    words = "keys that occur more than once, of which the last value is used"
    assert registration.warnings[0] == f"a.json: {words}: '{key}'"


def test_useless_content_is_warned_about() -> None:
    for points in ([], None, ["precreatecontainer"], ["PreCreateContainer "]):
        registration = read(runtime_hooks=points)
        assert registration.points == frozenset()
        assert registration.warnings[-1] == "a.json: runtime-hooks names no hook point, so this plugin is never called"
    points = ["PreRunPodSandbox", "Unknown", POINT, "Other"]
    registration = read(zeta=1, runtime_hooks=points, alpha={"secret": "canary"})
    assert registration == read(alpha={"secret": "canary"}, runtime_hooks=points[::-1], zeta=1)
    assert "a.json: unknown keys are ignored: 'alpha', 'zeta'" in registration.warnings
    (warning,) = read(**{f"k{n:03}\n\x1b" + "x" * 1000: 1 for n in range(100)}).warnings
    assert len(warning) < 500
    assert warning.isprintable()
    assert warning.endswith("and 95 more")


BROKEN = [
    *((text, "not JSON") for text in (b"", b" \n", b'{"remote-endpoint": "/run/pl', b'{"remote-endpoint": "/a"}}')),
    *((b"\xff\xfe\x00\x01", "not UTF-8"), (bytes(range(128)), "not JSON")),
    *((b"[" * 100_000, "nesting too deep"), (b"9" * 5000, "a number too long")),
    (b" " * (plugin_files.MAX_BYTES + 1), "longer than 1048576 bytes"),
    *((text, "must be one JSON object") for text in (b"[]", b"null", b'"text"')),
    *((b"{}", "remote-endpoint is missing"), (b'{"remote-endpoint": null}', "remote-endpoint is missing")),
    (b'{"remote_endpoint": "/a"}', "remote-endpoint is missing"),
]


@pytest.mark.parametrize(("content", "cause"), BROKEN, ids=lambda value: repr(value)[:30])
def test_broken_file_is_refused(content: bytes, cause: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.json: .*{cause}"):
        parse("a.json", content)


BAD_VALUES: list[tuple[str, object, str]] = [
    *(("remote-endpoint", value, "must be a text") for value in (7, ["/a"])),
    *(("remote-endpoint", value, "is not a unix socket") for value in ("", "relative", "tcp://127.0.0.1:80")),
    ("remote-endpoint", "/" + "a" * 107, "is too long"),
    ("remote-endpoint", "/" + "a" * 100_000, "longer than 256 characters"),
    *(("remote-endpoint", value, "cannot be printed") for value in ("/a\0b", "/a\ud800")),
    *(("failure-policy", "Sometimes", "must be Fail or Ignore"), ("failure-policy", True, "must be a text")),
    *(("runtime-hooks", value, "must be a list") for value in (POINT, {}, {POINT: 1}, [POINT, 7], [None])),
    *(("timeout", 2, "must be a text"), ("timeout", "0s", "is not a time limit")),
    *(("timeout", value, "is not a duration") for value in ("-1s", "soon")),
]


@pytest.mark.parametrize(("key", "value", "cause"), BAD_VALUES)
def test_broken_value_is_refused(key: str, value: object, cause: str) -> None:
    with pytest.raises(ConfigError, match=f"^a.json: {key}.*{cause}") as raised:
        read(**{key: value})
    assert len(str(raised.value)) < 1000


GOOD, OTHER = (
    json.dumps({"remote-endpoint": endpoint, "runtime-hooks": [POINT]}).encode() for endpoint in ("/run/a", "/run/b")
)
RESPELT, HALF, UNREADABLE = GOOD + b"\n", GOOD[:20], plugin_files.UnreadableFile("a.json: permission denied")
ADDED, CHANGED, RESTORED = ChangeKind.ADDED, ChangeKind.CHANGED, ChangeKind.RESTORED
REMOVED, REJECTED = ChangeKind.REMOVED, ChangeKind.REJECTED


UPDATES: list[tuple[list[Content | None], ChangeKind | None, bytes | None]] = [
    *(([GOOD], ADDED, GOOD), ([GOOD, GOOD], None, GOOD), ([GOOD, RESPELT], None, GOOD)),
    *(([GOOD, None], REMOVED, None), ([GOOD, None, None], None, None), ([GOOD, OTHER], CHANGED, OTHER)),
    *(([GOOD, HALF], REJECTED, GOOD), ([GOOD, HALF, HALF], None, GOOD), ([HALF, b""], REJECTED, None)),
    *(([GOOD, HALF, GOOD], RESTORED, GOOD), ([GOOD, HALF, GOOD, RESPELT], None, GOOD), ([HALF, GOOD], ADDED, GOOD)),
    *(([GOOD, HALF, OTHER], CHANGED, OTHER), ([HALF, None], None, None)),
    *(([HALF, None, HALF], REJECTED, None), ([GOOD, UNREADABLE], REJECTED, GOOD)),
    ([GOOD, UNREADABLE, UNREADABLE], None, GOOD),
]


@pytest.mark.parametrize(("contents", "kind", "good"), UPDATES)
def test_update_returns_change(contents: list[Content | None], kind: ChangeKind | None, good: bytes | None) -> None:
    registry = Registry()
    change = [registry.update("a.json", what) for what in contents][-1]
    registration = None if good is None else parse("a.json", good)
    assert (change is None) == (kind is None)
    if change is not None:
        assert (change.kind, change.name, change.registration) == (kind, "a.json", registration)
        assert bool(change.reason) == (kind is REJECTED)
    assert registry.registrations == (() if registration is None else (registration,))
    assert len(registry.rejected) == (contents[-1] in (HALF, b"", UNREADABLE))
