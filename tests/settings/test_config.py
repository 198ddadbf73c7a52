"""The configuration's sources: which one has priority, and which one an error names; YAML written by people.

What an earlier version does not know is fault matrix P10.
"""

import json

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings import config
from runtimeproxy.settings.config import Setting
from runtimeproxy.settings.options import OPTIONS, SETTINGS, Mode, Option
from runtimeproxy.settings.yamltext import Place, compose, pairs, scalar

FILE = "/etc/x.yaml"
IMAGE, IMAGE_VARIABLE = "remote-image-service-endpoint", "RUNTIMEPROXY_REMOTE_IMAGE_SERVICE_ENDPOINT"
TIMEOUT, TIMEOUT_VARIABLE = "hook-timeout", "RUNTIMEPROXY_HOOK_TIMEOUT"
RUNTIME, LISTEN = "remote-runtime-service-endpoint", "koord-runtimeproxy-endpoint"
ADMIN, METRICS = "admin-endpoint", "metrics-endpoint"

DEFAULT_LISTEN = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
CONTAINERD, DOCKER = "/var/run/containerd/containerd.sock", "/var/run/docker.sock"
FAULTS = [
    ("hook-timeout: x", "hook-timeout: 'x' is not a duration"),
    ("hook-timeout:", 'hook-timeout has no value: write one ("" for an empty one), or take it'),
    (r'runtime-hook-server-val: "\ud800"', "runtime-hook-server-val: '\\ud800' has a"),
    ("hook_budget: 1s", "unknown key 'hook_budget'; did you mean hook-budget?"),
    *[("zzz: 1", "unknown key 'zzz'; runtimeproxy config default lists them"), ("config: /a", "unknown key 'config'")],
]
Sources = tuple[dict[str, str], dict[str, str], str | None]
GROUPED = {LISTEN: "/l/p", METRICS: "/l/m", "metrics-group": "g", ADMIN: "/a/a"}
APART_LINE = "--metrics-endpoint is in the directory of {}, where --metrics-group must not come"
ERRORS: list[tuple[Sources, str]] = [
    (({TIMEOUT: "x"}, {}, None), "--hook-timeout: 'x' is not a duration"),
    (({}, {TIMEOUT_VARIABLE: ""}, None), f"{TIMEOUT_VARIABLE}: '' is not a duration"),
    (({}, {IMAGE_VARIABLE: "/a\n"}, None), f"{IMAGE_VARIABLE}: '/a\\n' has a control character"),
    *[(({}, {}, text), f"{FILE}: {fault}") for text, fault in FAULTS],
    ((GROUPED, {}, None), APART_LINE.format(f"--{LISTEN} (/l)")),
    (({}, {}, "hook-budget: 1s\nhook-budget: 2s"), f"{FILE}:2: hook-budget: is there twice: remove one of them"),
    (({}, {}, "[]"), f"{FILE}:1: write 'key: value' lines here"),
]


ENDPOINTS = [
    *[({RUNTIME: "/r"}, "image_endpoint", "/r"), ({LISTEN: "/a/b.sock"}, "admin_endpoint", "/a/admin.sock")],
    *[({LISTEN: "/b.sock"}, "admin_endpoint", "/admin.sock"), ({LISTEN: "/a", ADMIN: "none"}, "admin_endpoint", "")],
]


@pytest.mark.parametrize(("flags", "field", "path"), ENDPOINTS)
def test_default_endpoints_follow_mode_and_runtime(flags: dict[str, str], field: str, path: str) -> None:
    assert getattr(config.load(flags, {}), field) == path


def test_docker_mode_ignores_image_endpoint_with_warning() -> None:
    mode = {"backend-runtime-mode": "Docker"}
    for origin, sources in (
        (f"--{IMAGE}", (mode | {IMAGE: "/i"}, {}, None)),
        (IMAGE_VARIABLE, (mode, {IMAGE_VARIABLE: "?"}, None)),
        (f"{FILE}: {IMAGE}", (mode, {}, f"{IMAGE}: /i")),
    ):
        loaded = config.load(*sources, FILE)
        assert loaded.image_endpoint == loaded.runtime_endpoint == DOCKER
        assert loaded.warnings == (f"{origin} is ignored: Docker mode has no image endpoint",)


def test_misspelt_variable_is_warned_about_without_value() -> None:
    environ = {"RUNTIMEPROXY_HOOK_TIMOUT": "secret", "RUNTIMEPROXY_ZZ": "secret", "OTHER": "secret"}
    assert config.load({}, environ).warnings == (
        "RUNTIMEPROXY_HOOK_TIMOUT is ignored: there is no such option; did you mean RUNTIMEPROXY_HOOK_TIMEOUT?",
        "RUNTIMEPROXY_ZZ is ignored: there is no such option; runtimeproxy config default lists them",
    )


SAME = [(LISTEN, RUNTIME), (LISTEN, IMAGE), (LISTEN, ADMIN), (ADMIN, RUNTIME), (ADMIN, IMAGE)]
SAME += [(LISTEN, METRICS), (ADMIN, METRICS), (METRICS, RUNTIME)]


def test_same_socket_for_two_options_is_refused() -> None:
    for first, second in SAME:
        with pytest.raises(ConfigError, match=f"^--{first} and --{second} are the same socket: /a$"):
            config.load({first: "/a", second: "unix:///a"}, {})
    with pytest.raises(ConfigError, match=f"--{LISTEN} and --{ADMIN} are the same socket: /a/admin.sock"):
        config.load({LISTEN: "/a/admin.sock"}, {})
    flags = {LISTEN: "/run//a", RUNTIME: "/var/run/a"}
    assert config.load(flags, {}).listen_endpoint == "/run//a"
    with pytest.raises(ConfigError, match=f"^--{LISTEN} and --{RUNTIME} are the same socket: /run//a = /var/run/a$"):
        config.load(flags, {}, real_path=lambda path: "/run/" + path.rpartition("/")[2])


APART = [
    *[({METRICS: "/a/m.sock"}, ""), ({METRICS: "/b/m.sock", "metrics-group": "g"}, "")],
    ({METRICS: "/link/m.sock", "metrics-group": "g"}, f"--{LISTEN} (/a)"),
    ({METRICS: "/c/m.sock", "metrics-group": "g", ADMIN: "/c/admin.sock"}, f"--{ADMIN} (/c)"),
    *[({METRICS: "/b/m.sock", "metrics-group": "g", ADMIN: "none"}, ""), ({METRICS: "none", "metrics-group": "g"}, "")],
]


@pytest.mark.parametrize(("flags", "socket"), APART)
def test_metrics_group_cannot_reach_other_socket(flags: dict[str, str], socket: str) -> None:
    given: Sources = ({LISTEN: "/a/b.sock", **flags}, {}, None)
    if not socket:
        assert config.load(*given).metrics_endpoint == flags[METRICS].replace("none", "")
        return
    with pytest.raises(ConfigError) as caught:
        config.load(*given, real_path=lambda path: path.replace("/link", "/a"))
    assert str(caught.value) == APART_LINE.format(socket) + ": give it a directory of its own"


def test_flag_or_environment_names_file() -> None:
    assert config.file_named({}, {}) is None
    assert config.file_named({}, {"RUNTIMEPROXY_CONFIG": "/e"}) == "/e"
    assert config.file_named({"config": "/f"}, {"RUNTIMEPROXY_CONFIG": "/e"}) == "/f"
    for text, fault in (("", "'' is not a name"), ("/f\n", r"'/f\\n' has a control character")):
        with pytest.raises(ConfigError, match=f"^RUNTIMEPROXY_CONFIG: {fault}"):
            config.file_named({}, {"RUNTIMEPROXY_CONFIG": text})


SHOWN: list[tuple[Sources, Setting]] = [
    (({TIMEOUT: "1000ms"}, {TIMEOUT_VARIABLE: "2s"}, f"{TIMEOUT}: 3s"), Setting(TIMEOUT, "1000ms", "flag")),
    (({}, {TIMEOUT_VARIABLE: "2s"}, f"{TIMEOUT}: 3s"), Setting(TIMEOUT, "2s", "environment")),
    (({}, {}, "runtime-hook-server-val: ''"), Setting("runtime-hook-server-val", "", "file")),
    (({"backend-runtime-mode": "docker", IMAGE: "/i"}, {}, None), Setting(IMAGE, DOCKER, "default")),
    (({LISTEN: "/a"}, {}, None), Setting("originals-dir", "/", "default")),
    *[
        (({}, {}, ""), Setting("config", FILE, "default")),
        (({"config": FILE}, {}, ""), Setting("config", FILE, "flag")),
    ],
]


@pytest.mark.parametrize(("sources", "setting"), SHOWN)
def test_setting_has_value_and_origin(sources: Sources, setting: Setting) -> None:
    assert setting in config.load(*sources, FILE).settings


SEVERAL = "hook-timeout: x\nhook_budget: 1s\nlog-level:\nsocket-mode: 9\nhook-timeout: 2s\nsocket-group: [a]\n[b]: c\n"
SEVERAL_LINES = [
    *[f"{FILE}: unknown key 'hook_budget'", f"{FILE}: log-level has no value", f"{FILE}:5: hook-timeout: is there"],
    *[f"{FILE}:6: socket-group: write one text", f"{FILE}:7: a key is one text", f"{IMAGE_VARIABLE}: '?' is not a"],
    *[f"{TIMEOUT_VARIABLE}: 'y' is not a duration", f"{FILE}: hook-timeout: 'x' is not a duration"],
    f"{FILE}: socket-mode: '9' is not a file mode",
]
SAME_LINES = [f"--{LISTEN} and --{name} are the same" for name in (RUNTIME, IMAGE)]
CHECKED: list[tuple[Sources, list[str]]] = [
    *[(sources, [line]) for sources, line in ERRORS],
    (({}, {TIMEOUT_VARIABLE: "y", IMAGE_VARIABLE: "?"}, SEVERAL), SEVERAL_LINES),
    (({}, {TIMEOUT_VARIABLE: "1s"}, f"{TIMEOUT}: x"), [f"{FILE}: hook-timeout: 'x'"]),
    (({}, {}, "{"), [f"{FILE}: this is not YAML"]),
    (({}, {}, f"{LISTEN}: /a\n{RUNTIME}: /a\nhook-timeout: x"), [f"{FILE}: hook-timeout", *SAME_LINES]),
    # the default of a socket that is misspelt is not compared
    (({}, {}, f"{LISTEN}: a\n{RUNTIME}: {DEFAULT_LISTEN}"), [f"{FILE}: {LISTEN}: 'a' is not a unix socket"]),
    (({}, {}, "socket-group: none-such\nmetrics-group: x"), ["--socket-group: no", "--metrics-group: no"]),
    (({}, {}, "socket-group: kube\nhook-timeout: 3s"), []),
    (({TIMEOUT: "y"}, {}, f"{TIMEOUT}: x"), [f"--{TIMEOUT}: 'y'", f"{FILE}: hook-timeout: 'x'"]),
]


def find_group(group: str, flag: str) -> None:
    if group not in ("kube", "g"):
        raise ConfigError(f"{flag}: no group {group!r}")


@pytest.mark.parametrize(("sources", "lines"), CHECKED)
def test_check_reports_all_errors(sources: Sources, lines: list[str]) -> None:
    flags, *more = sources
    errors = config.check(*more, FILE, find_group=find_group, flags=flags).errors
    assert len(errors) == len(lines)
    assert all(error.startswith(line) for error, line in zip(errors, lines, strict=True))
    if lines and (sources, lines[0]) in ERRORS:
        with pytest.raises(ConfigError) as caught:
            config.load(*sources, FILE)
        assert str(caught.value) == errors[0]


NEW = "state-dir: /s\nhook-timeout: 3s"
UNKNOWN: list[tuple[str, Sources, list[str], list[str]]] = [
    ("0.1.0", ({}, {}, NEW), [f"{FILE}: state-dir is unknown to version 0.1.0, which would not start: take"], []),
    ("0.1.0", ({"metrics-group": "x"}, {}, None), ["--metrics-group is unknown to version 0.1.0, which would not"], []),
    ("0.1.0", ({}, {"RUNTIMEPROXY_STATE_DIR": "/s"}, None), [], ["RUNTIMEPROXY_STATE_DIR is unknown to version 0.1.0"]),
    ("0.1.0", ({}, {}, "admin-endpoint: None"), [f"{FILE}: admin-endpoint: 'none' is unknown to version 0.1.0"], []),
    ("0.1.0", ({}, {}, "admin-endpoint: /a\nno-such: 1"), [], []),  # check reports an unknown key
    ("v0.1.99-1", ({}, {}, NEW), [f"{FILE}: state-dir is unknown to version v0.1.99-1"], []),
    ("0.10.0", ({"metrics-group": "x"}, {}, NEW), [], []),
]


@pytest.mark.parametrize(("version", "sources", "errors", "warnings"), UNKNOWN)
def test_later_options_are_reported(version: str, sources: Sources, errors: list[str], warnings: list[str]) -> None:
    findings = config.unknown_to_version(version, *sources, FILE)
    assert [len(findings.errors), len(findings.warnings)] == [len(errors), len(warnings)]
    lines = zip((*findings.errors, *findings.warnings), (*errors, *warnings), strict=True)
    assert all(line.startswith(beginning) for line, beginning in lines)
    for wrong in ("", "0.1", "0.1.x", "1.2.1234567890", "latest"):
        with pytest.raises(ConfigError, match="is not a version: write one like"):
            config.unknown_to_version(wrong, *sources, FILE)


BY_NAME = {option.name: option for option in OPTIONS}
ENDPOINT, PAUSE, SIZE = "koord-runtimeproxy-endpoint", "drain-timeout", "hook-answer-limit"


TIMES = [("2s", 2), ("500ms", 0.5), ("1m", 60), ("3", 3), ("1.5s", 1.5), (" 2s ", 2), ("0.25m", 15)]
TEXTS: list[tuple[str, str, object]] = [
    *[(ENDPOINT, f"{scheme}/run/a.sock", "/run/a.sock") for scheme in ("", "unix:", "unix://")],
    *[(ENDPOINT, path, path) for path in ("/run/unix:/a.sock", "/" + "a" * 106)],
    *[(name, text, seconds) for name in (TIMEOUT, PAUSE) for text, seconds in TIMES],
    *[(PAUSE, "0s", 0), (SIZE, "4MiB", 4 << 20), (SIZE, "1024", 1024), (SIZE, " 64MiB ", 64 << 20)],
    *[("backend-runtime-mode", "Docker", Mode.DOCKER), ("backend-runtime-mode", "containerD", Mode.CONTAINERD)],
    *[("runtime-hook-server-key", "skip", "skip"), ("runtime-hook-server-val", "", "")],
    *[(name, "unix:/b", "/b") for name in (RUNTIME, IMAGE, METRICS)],
    *[("hook-budget", "1m", 60.0), ("state-dir", "none", ""), ("metrics-group", "prometheus", "prometheus")],
    *[("hookserver-config-dir", "/a/b", "/a/b"), ("originals-dir", "None", ""), ("config", "conf.yaml", "conf.yaml")],
    *[("socket-mode", "0660", 0o660), ("socket-mode", "600", 0o600), ("socket-group", "kube", "kube")],
    *[("socket-group", "4294967294", "4294967294"), ("log-level", "DEBUG", "debug"), ("log-format", "Json", "json")],
    # bytes that are not UTF-8
    *[("config", "/\udc80\udcff", "/\udc80\udcff"), ("admin-endpoint", "unix:/ä\udcff", "/ä\udcff")],
]


@pytest.mark.parametrize(("name", "text", "value"), TEXTS)
def test_option_value_is_read_from_flag_environment_and_file(name: str, text: str, value: object) -> None:
    option, field = BY_NAME[name], {option.name: field for field, option in SETTINGS}.get(name)
    assert option.read(text, "--x") == value
    file = None if "\udcff" in text else f"{name}: {json.dumps(text)}\n"  # YAML has no such characters
    for sources in (({name: text}, {}, None), ({}, {option.variable: text}, None), ({}, {}, file)):
        if field and sources != ({}, {}, None):
            loaded = config.load(*sources, FILE)
            assert (getattr(loaded, field), loaded.warnings) == (value, ())


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


@pytest.mark.parametrize(("name", "text", "remedy"), BAD)
def test_bad_value_error_names_remedy(name: str, text: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BY_NAME[name].parse(text, "--some-flag")
    assert str(caught.value) == f"--some-flag: {text!r} {remedy}"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_every_option_refuses_control_characters(option: Option) -> None:
    for text in ("/a\n", "/a\0", "\x1b", "\x7f", "/\ud800"):
        with pytest.raises(ConfigError, match=r"^--x: '.*' has a control character, .*, or half a character: take it"):
            option.read(text, "--x")
    assert option.name in {name for name, _, _ in TEXTS}


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
YAML_ERRORS = [
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


@pytest.mark.parametrize(("text", "line"), YAML_ERRORS)
def test_yaml_error_has_place_and_remedy_but_no_value(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        texts(text)
    assert str(caught.value) == line
