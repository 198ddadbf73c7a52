"""One registration file: every key, every fault (hook-api, "Registration files"; fault matrix C4)."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.hookpoints import HOOK_POINTS
from runtimeproxy.plugins.registration import MAX_BYTES, FailurePolicy, Registration, parse, plugin_name

SOCKET = "/run/plugin.sock"
POINT = "PreCreateContainer"


def read(**entry: object) -> Registration:
    """Parse a file that is valid except for what is given (names with - spelt _)."""
    keys = {key.replace("_", "-"): value for key, value in entry.items()}
    return parse("a.json", json.dumps({"remote-endpoint": SOCKET, "runtime-hooks": [POINT], **keys}).encode())


def test_documented_file_is_read() -> None:
    text = b"""{"remote-endpoint": "/var/run/koordlet/koordlet.sock", "failure-policy": "Ignore",
               "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer"]}"""
    assert parse("koordlet.json", text) == Registration(
        "koordlet.json",
        "/var/run/koordlet/koordlet.sock",
        FailurePolicy.IGNORE,
        frozenset({"PreRunPodSandbox", "PreCreateContainer"}),
    )


def test_file_as_koordlet_writes_it_is_read() -> None:
    names = [point.name for point in HOOK_POINTS]
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
def test_value_is_read(key: str, written: object, attribute: str, value: object) -> None:
    assert getattr(read(**{key: written}), attribute) == value


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
def test_last_value_of_a_repeated_key_is_used(members: str, attribute: str, value: object) -> None:
    """As Go's encoding/json does (1.26) with the struct of koord-runtime-proxy, RuntimeHookConfig."""
    key = members.partition(":")[0].strip('"').lower()
    other = f'"runtime-hooks": ["{POINT}"]' if attribute == "endpoint" else '"remote-endpoint": "/a"'
    registration = parse("a.json", f"{{{other}, {members}}}".encode())
    assert getattr(registration, attribute) == value
    words = "keys that occur more than once, of which the last value is used"
    assert registration.warnings[0] == f"a.json: {words}: '{key}'"


@pytest.mark.parametrize("hooks", [[], None, ["precreatecontainer"], ["PreCreateContainer "]])
def test_file_without_a_known_point_is_warned_about(hooks: list[str] | None) -> None:
    registration = read(runtime_hooks=hooks)
    assert registration.points == frozenset()
    assert registration.warnings[-1] == "a.json: runtime-hooks names no hook point, so this plugin is never called"


def test_warning_stays_short_and_printable() -> None:
    (warning,) = read(**{f"k{n:03}\n\x1b" + "x" * 1000: 1 for n in range(100)}).warnings
    assert len(warning) < 500
    assert warning.isprintable()
    assert warning.endswith("and 95 more")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        *((text, "not JSON") for text in (b"", b" \n", b'{"remote-endpoint": "/run/pl', b'{"remote-endpoint": "/a"}}')),
        *((b"\xff\xfe\x00\x01", "not UTF-8"), (bytes(range(128)), "not JSON")),
        *((b"[" * 100_000, "nesting too deep"), (b"9" * 5000, "a number too long")),
        (b" " * (MAX_BYTES + 1), "longer than 1048576 bytes"),
        *((text, "must be one JSON object") for text in (b"[]", b"null", b'"text"')),
        *((b"{}", "remote-endpoint is missing"), (b'{"remote-endpoint": null}', "remote-endpoint is missing")),
        (b'{"remote_endpoint": "/a"}', "remote-endpoint is missing"),
    ],
)
def test_broken_files(content: bytes, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse("a.json", content)
    assert str(raised.value).startswith("a.json: ")
    assert cause in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        *(("remote-endpoint", value, "must be a text") for value in (7, ["/a"])),
        *(("remote-endpoint", value, "is not a unix socket") for value in ("", "relative", "tcp://127.0.0.1:80")),
        ("remote-endpoint", "/" + "a" * 107, "is too long"),
        ("remote-endpoint", "/" + "a" * 100_000, "longer than 256 characters"),
        *(("remote-endpoint", value, "cannot be printed") for value in ("/a\0b", "/a\ud800")),
        *(("failure-policy", "Sometimes", "must be Fail or Ignore"), ("failure-policy", True, "must be a text")),
        *(("runtime-hooks", value, "must be a list") for value in (POINT, {}, {POINT: 1}, [POINT, 7], [None])),
        *(("timeout", 2, "must be a text"), ("timeout", "0s", "is not a time limit")),
        *(("timeout", value, "is not a duration") for value in ("-1s", "soon")),
    ],
)
def test_broken_values(key: str, value: object, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**{key: value})
    assert str(raised.value).startswith(f"a.json: {key}")
    assert cause in str(raised.value)
    assert len(str(raised.value)) < 1000


_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
_KEYS = ("remote-endpoint", "failure-policy", "timeout", "runtime-hooks")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(_KEYS, _VALUES)))
def test_any_values_are_read_or_rejected(entry: dict[str, object]) -> None:
    try:
        outcome = parse("a.json", json.dumps({"remote-endpoint": SOCKET, **entry}).encode()).endpoint
    except ConfigError as error:
        outcome = str(error)
    assert outcome.startswith(("/", "a.json: "))


def test_unknown_keys_are_warned_about_once_and_order_means_nothing() -> None:
    hooks = ["PreRunPodSandbox", "Unknown", POINT, "Other"]
    registration = read(zeta=1, runtime_hooks=hooks, alpha={"secret": "canary"})
    assert registration == read(alpha={"secret": "canary"}, runtime_hooks=hooks[::-1], zeta=1)
    assert "a.json: unknown keys are ignored: 'alpha', 'zeta'" in registration.warnings


@pytest.mark.parametrize(("file", "name"), [("koordlet.json", "koordlet"), ("a.json.json", "a.json")])
def test_hook_server_has_the_name_of_its_file(file: str, name: str) -> None:
    assert plugin_name(file) == name
