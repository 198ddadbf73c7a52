"""Values of options: every spelling that is taken, and a clear line for every other."""

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.options import (
    OPTIONS,
    SETTINGS,
    Mode,
    Option,
    parse_duration,
    parse_endpoint,
    parse_pause,
    parse_size,
)

BY_NAME = {option.name: option for option in OPTIONS}

MISSION = {
    "backend-runtime-mode": "Containerd",
    "koord-runtimeproxy-endpoint": "/var/run/koord-runtimeproxy/runtimeproxy.sock",
    "remote-runtime-service-endpoint": "/var/run/containerd/containerd.sock; in Docker mode /var/run/docker.sock",
    "remote-image-service-endpoint": "the runtime endpoint",
    "runtime-hook-server-key": "runtimeproxy.koordinator.sh/skip-hookserver",
    "runtime-hook-server-val": "true",
    "hookserver-config-dir": "/etc/runtime/hookserver.d",
    "hook-timeout": "2s",
    "hook-budget": "10s",
    "hook-answer-limit": "4MiB",
    "socket-mode": "0600",
    "socket-group": "none",
    "drain-timeout": "10s",
    "originals-dir": "the directory of --koord-runtimeproxy-endpoint",
    "admin-endpoint": "/var/run/koord-runtimeproxy/admin.sock",
    "log-level": "info",
    "log-format": "text",
    "config": "/etc/runtimeproxy/config.yaml if it is there",
}


def test_the_options_and_their_defaults_are_the_documented_ones() -> None:
    assert {option.name: option.shown_default for option in OPTIONS} == MISSION


def test_every_option_but_the_file_sets_a_field_of_its_own() -> None:
    fields = [field for field, _ in SETTINGS]
    assert len(set(fields)) == len(fields) == len(OPTIONS) - 1
    assert BY_NAME["config"].field is None


def test_spellings_of_an_option() -> None:
    option = BY_NAME["koord-runtimeproxy-endpoint"]
    assert option.flag == "--koord-runtimeproxy-endpoint"
    assert option.variable == "RUNTIMEPROXY_KOORD_RUNTIMEPROXY_ENDPOINT"


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.default is not None], ids=lambda o: o.name)
def test_every_default_is_a_value_that_its_own_parser_takes(option: Option) -> None:
    assert option.default is not None
    assert option.parse(option.default, option.flag) is not None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/run/a.sock", "/run/a.sock"),
        ("unix:/run/a.sock", "/run/a.sock"),
        ("unix:///run/a.sock", "/run/a.sock"),
        ("/run/unix:/a.sock", "/run/unix:/a.sock"),
        ("/" + "a" * 106, "/" + "a" * 106),
    ],
)
def test_endpoints(text: str, path: str) -> None:
    assert parse_endpoint(text, "--x") == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "run/a.sock",
        "unix:",
        "unix://",
        "unix:///",
        "unix:run/a.sock",
        "unix://run/a.sock",
        "tcp://127.0.0.1:2375",
        "//./pipe/docker/",
        "npipe:////./pipe/docker",
        "unix:unix:/run/a.sock",
        "/run/a\0b",
        "/run/dir/",
        " /run/a.sock",
        "UNIX:/run/a.sock",
    ],
)
def test_what_is_no_endpoint_names_its_origin_and_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, "--some-flag")
    assert str(caught.value) == f"--some-flag: {text!r} is no unix socket: write /path, unix:/path or unix:///path"


@pytest.mark.parametrize("text", ["/" + "a" * 107, "unix:///" + "ä" * 54])
def test_a_path_that_no_socket_can_have(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--x: .* is too long: a socket's path has at most 107 bytes$"):
        parse_endpoint(text, "--x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("500ms", 0.5), ("1m", 60.0), ("3", 3.0), ("0.5", 0.5), ("1.5s", 1.5), (" 2s ", 2.0), ("0.25m", 15)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--x") == pytest.approx(seconds)
    assert parse_pause(text, "--x") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1h", "1 s", "2s2s", "nan", "inf", "1e3", "1.", ".5", "9" * 10, "\uff11s"]
)
def test_what_is_no_duration(text: str) -> None:
    for parse in (parse_duration, parse_pause):
        with pytest.raises(ConfigError, match=r"^--x: .* is no duration: write one like 500ms, 2s, 1m, or a number"):
            parse(text, "--x")


@pytest.mark.parametrize("text", ["0", "0s", "0.0ms"])
def test_a_time_limit_is_above_zero_while_a_pause_may_be_none(text: str) -> None:
    assert parse_pause(text, "--x") == 0
    with pytest.raises(ConfigError, match=r"^--x: .* is no time limit: write one above zero"):
        parse_duration(text, "--x")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4MiB", 4 << 20), ("512KiB", 512 << 10), ("1024", 1024), (" 64MiB ", 64 << 20), ("67108864", 64 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--x") == size


@pytest.mark.parametrize(
    "text", ["", "0", "1023", "65MiB", "67108865", "4MB", "4 MiB", "4mib", "-1", "1.5MiB", "\uff1124"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--x: .* is no size from 1KiB to 64MiB: write one like 512KiB, 4MiB, or b"):
        parse_size(text, "--x")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("backend-runtime-mode", "Docker", Mode.DOCKER),
        ("backend-runtime-mode", "containerD", Mode.CONTAINERD),
        ("runtime-hook-server-key", "skip", "skip"),
        ("runtime-hook-server-val", "", ""),
        ("hookserver-config-dir", "/a/b", "/a/b"),
        ("socket-mode", "0660", 0o660),
        ("socket-mode", "600", 0o600),
        ("socket-group", "kube", "kube"),
        ("socket-group", "0", "0"),
        ("socket-group", "4294967294", "4294967294"),
        ("log-level", "DEBUG", "debug"),
        ("log-format", "Json", "json"),
        ("config", "conf.yaml", "conf.yaml"),
    ],
)
def test_values(name: str, text: str, value: object) -> None:
    assert BY_NAME[name].parse(text, "--x") == value


@pytest.mark.parametrize(
    ("name", "text", "rest"),
    [
        ("backend-runtime-mode", "cri-o", "is no backend mode: write Containerd or Docker"),
        ("runtime-hook-server-key", "", "is no name: write one without spaces around it, or leave it out"),
        ("socket-group", " kube", "is no name: write one without spaces around it, or leave it out"),
        ("socket-group", "4294967295", "is no group's number: the highest is 4294967294"),
        ("socket-group", "99999999999", "is no group's number: the highest is 4294967294"),
        ("hookserver-config-dir", "a/b", "is no absolute path: write one like /etc/runtime/hookserver.d"),
        ("originals-dir", "nowhere", "is no absolute path: write one like /etc/runtime/hookserver.d"),
        ("hookserver-config-dir", "/a\0", "is no absolute path: write one like /etc/runtime/hookserver.d"),
        ("socket-mode", "384", "is no file mode: write three octal digits, like 0600"),
        ("socket-mode", "04755", "is no file mode: write three octal digits, like 0600"),
        ("log-level", "loud", "is not one of debug, info, warning, error"),
        ("log-format", "xml", "is not one of text, json"),
    ],
)
def test_a_bad_value_is_one_line_that_says_what_to_write(name: str, text: str, rest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BY_NAME[name].parse(text, "--x")
    assert str(caught.value) == f"--x: {text!r} {rest}"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("text", ["/a\n", "/a\0", "\x1b", "\x7f", "/\ud800"], ids=ascii)
def test_what_nobody_means_to_write_is_refused_in_every_option(option: Option, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        option.read(text, "--x")
    told = "has a control character, such as a line feed, or half a character: take it out"
    assert str(caught.value) == f"--x: {text!r} {told}"


def test_a_path_may_have_bytes_that_are_no_utf_8() -> None:
    assert BY_NAME["config"].read("/\udc80\udcff", "--x") == "/\udc80\udcff"
    assert BY_NAME["admin-endpoint"].read("unix:/ä\udcff", "--x") == "/ä\udcff"
