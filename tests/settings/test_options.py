"""Values of options: every accepted spelling, and a clear line for every other.

test_docs.py compares names, defaults and help with docs/configuration.rst; test_config.py has what the defaults mean.
"""

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import OPTIONS, Mode, Option

BY_NAME = {option.name: option for option in OPTIONS}
ENDPOINT, TIMEOUT, PAUSE, SIZE = "koord-runtimeproxy-endpoint", "hook-timeout", "drain-timeout", "hook-answer-limit"


TIMES = [("2s", 2), ("500ms", 0.5), ("1m", 60), ("3", 3), ("1.5s", 1.5), (" 2s ", 2), ("0.25m", 15)]
VALUES: list[tuple[str, str, object]] = [
    *[(ENDPOINT, f"{scheme}/run/a.sock", "/run/a.sock") for scheme in ("", "unix:", "unix://")],
    *[(ENDPOINT, path, path) for path in ("/run/unix:/a.sock", "/" + "a" * 106)],
    *[(name, text, seconds) for name in (TIMEOUT, PAUSE) for text, seconds in TIMES],
    *[(PAUSE, "0s", 0), (SIZE, "4MiB", 4 << 20), (SIZE, "1024", 1024), (SIZE, " 64MiB ", 64 << 20)],
    *[("backend-runtime-mode", "Docker", Mode.DOCKER), ("backend-runtime-mode", "containerD", Mode.CONTAINERD)],
    *[("runtime-hook-server-key", "skip", "skip"), ("runtime-hook-server-val", "", "")],
    *[("hookserver-config-dir", "/a/b", "/a/b"), ("originals-dir", "None", ""), ("config", "conf.yaml", "conf.yaml")],
    *[("socket-mode", "0660", 0o660), ("socket-mode", "600", 0o600), ("socket-group", "kube", "kube")],
    *[("socket-group", "4294967294", "4294967294"), ("log-level", "DEBUG", "debug"), ("log-format", "Json", "json")],
    # bytes that are not UTF-8
    *[("config", "/\udc80\udcff", "/\udc80\udcff"), ("admin-endpoint", "unix:/ä\udcff", "/ä\udcff")],
]


@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_value_of_an_option(name: str, text: str, value: object) -> None:
    assert BY_NAME[name].read(text, "--x") == value


NO_ENDPOINTS = [
    *["", "/", "run/a.sock", "unix:", "unix://", "unix:///", "unix:run/a.sock", "unix://run/a.sock", "/run/dir/"],
    *["tcp://127.0.0.1:2375", "//./pipe/docker/", "npipe:////./pipe/docker", "unix:unix:/run/a.sock", "/run/a\0b"],
    *[" /run/a.sock", "UNIX:/run/a.sock"],
]
NO_TIMES = ["", "s", "-1s", "1h", "1 s", "2s2s", "nan", "inf", "1e3", "1.", ".5", "9" * 10, "\uff11s"]
NO_SIZES = ["", "0", "1023", "65MiB", "67108865", "4MB", "4 MiB", "4mib", "-1", "1.5MiB", "\uff1124"]
NO_DURATION = "is not a duration: write one like 500ms, 2s, 1m, or a number of seconds"
NO_NAME = "is not a name: write one without spaces around it, or leave it out"
NO_GROUP = "is not a group's number: the highest is 4294967294"
NO_PATH = "is not an absolute path: write one like /etc/runtime/hookserver.d"
NO_MODE = "is not a file mode: write three octal digits, like 0600"
TOO_LONG = "is too long: a socket's path has at most 107 bytes"
BAD = [
    *[(ENDPOINT, text, "is not a unix socket: write /path, unix:/path or unix:///path") for text in NO_ENDPOINTS],
    *[(ENDPOINT, text, TOO_LONG) for text in ("/" + "a" * 107, "unix:///" + "ä" * 54)],
    *[(name, text, NO_DURATION) for name in (TIMEOUT, PAUSE) for text in NO_TIMES],
    (TIMEOUT, "0s", "is not a time limit: write one above zero, like 500ms, 2s or 1m"),
    *[(SIZE, text, "is not a size from 1KiB to 64MiB: write one like 512KiB, 4MiB, or bytes") for text in NO_SIZES],
    ("backend-runtime-mode", "cri-o", "is not a backend mode: write Containerd or Docker"),
    *[("runtime-hook-server-key", "", NO_NAME), ("socket-group", " kube", NO_NAME)],
    *[("socket-group", "4294967295", NO_GROUP), ("socket-group", "99999999999", NO_GROUP)],
    *[("hookserver-config-dir", path, NO_PATH) for path in ("a/b", "/a\0")],
    *[("originals-dir", "nowhere", NO_PATH), ("socket-mode", "384", NO_MODE), ("socket-mode", "04755", NO_MODE)],
    ("log-level", "loud", "is not one of debug, info, warning, error"),
    ("log-format", "xml", "is not one of text, json"),
]


@pytest.mark.parametrize(("name", "text", "rest"), BAD)
def test_bad_value_is_one_line_that_says_what_to_write(name: str, text: str, rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BY_NAME[name].parse(text, "--some-flag")
    assert str(caught.value) == f"--some-flag: {text!r} {rest}"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_control_characters_are_refused_in_every_option(option: Option) -> None:
    for text in ("/a\n", "/a\0", "\x1b", "\x7f", "/\ud800"):
        with pytest.raises(
            ConfigError, match=r"^--x: '.*' has a control character, .*, or half a character: take it out"
        ):
            option.read(text, "--x")
