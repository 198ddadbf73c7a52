"""One registration file: every key, every fault (hook-api, "Registration files"; fault matrix C4)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookpoints import HOOK_POINTS
from runtimeproxy.plugins.registration import MAX_BYTES, FailurePolicy, Registration, parse

SOCKET = "/run/plugin.sock"
POINT = "PreCreateContainer"


def read(**entry: object) -> Registration:
    """Parse a file that is good but for what is given (names with - spelt _)."""
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


@pytest.mark.parametrize("hooks", [[], None, ["precreatecontainer"], ["PreCreateContainer "]])
def test_file_without_a_known_point_is_warned_about(hooks: list[str] | None) -> None:
    registration = read(runtime_hooks=hooks)
    assert registration.points == frozenset()
    assert registration.warnings[-1] == "a.json: runtime-hooks names no hook point, so this plugin is never called"


def test_unknown_keys_are_warned_about_once() -> None:
    assert read(zeta=1, alpha={"secret": "canary"}).warnings == ("a.json: unknown keys are ignored: 'alpha', 'zeta'",)


def test_warning_stays_short_and_printable() -> None:
    (warning,) = read(**{f"k{n:03}\n\x1b" + "x" * 1000: 1 for n in range(100)}).warnings
    assert len(warning) < 500
    assert warning.isprintable()
    assert warning.endswith("and 95 more")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "not JSON"),
        (b" \n", "not JSON"),
        (b'{"remote-endpoint": "/run/pl', "not JSON"),
        (b'{"remote-endpoint": "/a"}}', "not JSON"),
        (b"\xff\xfe\x00\x01", "not UTF-8"),
        (bytes(range(128)), "not JSON"),
        (b"[" * 100_000, "nesting too deep"),
        (b"9" * 5000, "a number too long"),
        (b" " * (MAX_BYTES + 1), "longer than 1048576 bytes"),
        (b"[]", "must be one JSON object"),
        (b"null", "must be one JSON object"),
        (b'"text"', "must be one JSON object"),
        (b"{}", "remote-endpoint is missing"),
        (b'{"remote-endpoint": null}', "remote-endpoint is missing"),
        (b'{"Remote-Endpoint": "/a"}', "remote-endpoint is missing"),
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
        ("remote-endpoint", 7, "must be a text"),
        ("remote-endpoint", ["/a"], "must be a text"),
        ("remote-endpoint", "", "is no unix socket"),
        ("remote-endpoint", "relative", "is no unix socket"),
        ("remote-endpoint", "tcp://127.0.0.1:80", "is no unix socket"),
        ("remote-endpoint", "/" + "a" * 107, "is too long"),
        ("remote-endpoint", "/" + "a" * 100_000, "longer than 256 characters"),
        ("remote-endpoint", "/a\0b", "cannot be printed"),
        ("remote-endpoint", "/a\ud800", "cannot be printed"),
        ("failure-policy", "Sometimes", "must be Fail or Ignore"),
        ("failure-policy", True, "must be a text"),
        ("runtime-hooks", "PreCreateContainer", "must be a list"),
        ("runtime-hooks", {"PreCreateContainer": 1}, "must be a list"),
        ("runtime-hooks", [POINT, 7], "must be a list"),
        ("runtime-hooks", [None], "must be a list"),
        ("timeout", 2, "must be a text"),
        ("timeout", "0s", "is no time limit"),
        ("timeout", "-1s", "is no duration"),
        ("timeout", "soon", "is no duration"),
    ],
)
def test_broken_values(key: str, value: object, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**{key: value})
    assert str(raised.value).startswith(f"a.json: {key}")
    assert cause in str(raised.value)
    assert len(str(raised.value)) < 1000


def read_or_reject(content: bytes) -> str:
    """Return the endpoint of a good file, the error of another one."""
    try:
        return parse("a.json", content).endpoint
    except ConfigError as error:
        return str(error)


_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
_KEYS = ("remote-endpoint", "failure-policy", "timeout", "runtime-hooks")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(_KEYS, _VALUES)))
def test_any_values_are_read_or_rejected(entry: dict[str, object]) -> None:
    content = json.dumps({"remote-endpoint": SOCKET, **entry}).encode()
    assert read_or_reject(content).startswith(("/", "a.json: "))


@given(st.permutations(["PreRunPodSandbox", "PreCreateContainer", "Unknown", "Other"]), st.randoms())
def test_order_means_nothing(hooks: list[str], random: object) -> None:
    entry = {"x": 1, "remote-endpoint": SOCKET, "runtime-hooks": hooks, "a": 2}
    keys = list(entry)
    random.shuffle(keys)  # type: ignore[attr-defined]
    shuffled = parse("a.json", json.dumps({key: entry[key] for key in keys}).encode())
    sorted_hooks = parse("a.json", json.dumps({**entry, "runtime-hooks": sorted(hooks)}).encode())
    assert shuffled == sorted_hooks
