"""The configuration's sources: which one wins, and whom an error blames."""

from dataclasses import FrozenInstanceError, fields

import pytest

from runtimeproxy import config
from runtimeproxy.config import Config, Mode
from runtimeproxy.errors import ConfigError
from runtimeproxy.options import OPTIONS, SETTINGS, Option

FILE = "/etc/x.yaml"

OTHER_VALUES: dict[str, tuple[str, object]] = {
    "backend-runtime-mode": ("docker", Mode.DOCKER),
    "koord-runtimeproxy-endpoint": ("unix:///a", "/a"),
    "remote-runtime-service-endpoint": ("unix:/b", "/b"),
    "remote-image-service-endpoint": ("/c", "/c"),
    "runtime-hook-server-key": ("key", "key"),
    "runtime-hook-server-val": ("yes", "yes"),
    "hookserver-config-dir": ("/d", "/d"),
    "hook-timeout": ("700ms", 0.7),
    "hook-budget": ("1m", 60.0),
    "hook-answer-limit": ("1MiB", 1 << 20),
    "socket-mode": ("0640", 0o640),
    "socket-group": ("kube", "kube"),
    "drain-timeout": ("0", 0.0),
    "originals-dir": ("/o", "/o"),
    "admin-endpoint": ("/e", "/e"),
    "log-level": ("debug", "debug"),
    "log-format": ("json", "json"),
}


def test_nothing_given_is_containerd_on_its_default_socket() -> None:
    assert config.load({}, {}) == Config(
        mode=Mode.CONTAINERD,
        listen_endpoint="/var/run/koord-runtimeproxy/runtimeproxy.sock",
        runtime_endpoint="/var/run/containerd/containerd.sock",
        image_endpoint="/var/run/containerd/containerd.sock",
        skip_label_key="runtimeproxy.koordinator.sh/skip-hookserver",
        skip_label_value="true",
        hookserver_config_dir="/etc/runtime/hookserver.d",
        hook_timeout_seconds=2.0,
        hook_budget_seconds=10.0,
        hook_answer_bytes=4 << 20,
        socket_mode=0o600,
        socket_group=None,
        drain_timeout_seconds=10.0,
        originals_dir=None,
        admin_endpoint="/var/run/koord-runtimeproxy/admin.sock",
        log_level="info",
        log_format="text",
        warnings=(),
    )


def test_a_config_is_frozen_and_has_one_field_for_each_setting() -> None:
    loaded = config.load({}, {})
    with pytest.raises(FrozenInstanceError):
        loaded.socket_mode = 0o666  # type: ignore[misc]
    assert [f.name for f in fields(Config)] == [field for field, _ in SETTINGS] + ["warnings"]


@pytest.mark.parametrize(("field", "option"), SETTINGS, ids=[option.name for _, option in SETTINGS])
def test_each_option_is_read_from_flag_environment_and_file(field: str, option: Option) -> None:
    text, value = OTHER_VALUES[option.name]
    for loaded in (
        config.load({option.name: text}, {}),
        config.load({}, {option.variable: text}),
        config.load({}, {}, f"{option.name}: {text}\n", FILE),
    ):
        assert getattr(loaded, field) == value
        assert loaded.warnings == ()


def test_a_flag_wins_over_the_environment_and_that_over_the_file() -> None:
    name, variable, text = "hook-timeout", "RUNTIMEPROXY_HOOK_TIMEOUT", "hook-timeout: 3s"
    assert config.load({name: "1s"}, {variable: "2s"}, text, FILE).hook_timeout_seconds == 1
    assert config.load({}, {variable: "2s"}, text, FILE).hook_timeout_seconds == 2
    assert config.load({}, {}, text, FILE).hook_timeout_seconds == 3


@pytest.mark.parametrize(
    ("flags", "environ", "text", "line"),
    [
        ({"hook-timeout": "x"}, {}, None, "--hook-timeout: 'x' is no duration"),
        ({}, {"RUNTIMEPROXY_HOOK_TIMEOUT": "x"}, None, "RUNTIMEPROXY_HOOK_TIMEOUT: 'x' is no duration"),
        ({}, {"RUNTIMEPROXY_HOOK_TIMEOUT": ""}, None, "RUNTIMEPROXY_HOOK_TIMEOUT: '' is no duration"),
        ({}, {}, "hook-timeout: x", f"{FILE}: hook-timeout: 'x' is no duration"),
        ({}, {}, "hook-timeout: ''", f"{FILE}: hook-timeout: '' is no duration"),
        ({}, {}, "hook-timeout:", f'{FILE}: hook-timeout has no value: write one ("" for an empty one), or take it'),
        ({}, {}, "runtime-hook-server-val:", f"{FILE}: runtime-hook-server-val has no value: "),
        ({}, {}, r'socket-group: "a\0"', f"{FILE}: socket-group: 'a\\x00' has a control character"),
        ({}, {}, r'runtime-hook-server-val: "\ud800"', f"{FILE}: runtime-hook-server-val: '\\ud800' has a"),
        (
            {},
            {"RUNTIMEPROXY_ADMIN_ENDPOINT": "/a\n"},
            None,
            "RUNTIMEPROXY_ADMIN_ENDPOINT: '/a\\n' has a control character",
        ),
        ({}, {}, "hook-timeouts: 1s", f"{FILE}: unknown key 'hook-timeouts'; did you mean hook-timeout?"),
        ({}, {}, "hook_budget: 1s", f"{FILE}: unknown key 'hook_budget'; did you mean hook-budget?"),
        ({}, {}, "zzz: 1", f"{FILE}: unknown key 'zzz'; --help lists the options"),
        ({}, {}, "config: /a", f"{FILE}: unknown key 'config'"),
        ({}, {}, "hook-budget: 1s\nhook-budget: 2s", f"{FILE}:2: hook-budget: stands there twice: remove one of them"),
        ({}, {}, "[]", f"{FILE}:1: write 'key: value' lines here"),
        ({}, {}, "{", f"{FILE}: this is no YAML: "),
        ({}, {}, "socket-group: [a]", f"{FILE}:1: socket-group: write one text, in quotes if it is JSON"),
    ],
)
def test_an_error_is_one_line_that_names_its_origin(
    flags: dict[str, str], environ: dict[str, str], text: str | None, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(flags, environ, text, FILE)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing here\n", "---\n", "--- {}\n"])
def test_a_file_that_says_nothing_changes_nothing(text: str) -> None:
    assert config.load({}, {}, text, FILE) == config.load({}, {})


def test_values_of_a_file_are_taken_as_they_are_written() -> None:
    text = "socket-mode: 0600\nruntime-hook-server-val: yes\nhook-timeout: 2\nsocket-group: 0998\n"
    loaded = config.load({}, {}, text, FILE)
    assert loaded.socket_mode == 0o600
    assert loaded.skip_label_value == "yes"
    assert loaded.hook_timeout_seconds == 2
    assert loaded.socket_group == "0998"


def test_the_runtime_endpoint_follows_the_mode_and_the_image_endpoint_follows_it() -> None:
    docker = config.load({"backend-runtime-mode": "DOCKER"}, {})
    assert (docker.runtime_endpoint, docker.image_endpoint) == ("/var/run/docker.sock", "/var/run/docker.sock")
    other = config.load({"remote-runtime-service-endpoint": "/r"}, {})
    assert (other.runtime_endpoint, other.image_endpoint) == ("/r", "/r")
    both = config.load({"remote-runtime-service-endpoint": "/r", "remote-image-service-endpoint": "unix:///i"}, {})
    assert (both.runtime_endpoint, both.image_endpoint) == ("/r", "/i")


@pytest.mark.parametrize(
    ("flags", "environ", "text", "origin"),
    [
        ({"remote-image-service-endpoint": "/i"}, {}, None, "--remote-image-service-endpoint"),
        ({}, {"RUNTIMEPROXY_REMOTE_IMAGE_SERVICE_ENDPOINT": "?"}, None, "RUNTIMEPROXY_REMOTE_IMAGE_SERVICE_ENDPOINT"),
        ({}, {}, "remote-image-service-endpoint: /i", f"{FILE}: remote-image-service-endpoint"),
    ],
)
def test_docker_mode_ignores_an_image_endpoint_with_one_warning(
    flags: dict[str, str], environ: dict[str, str], text: str | None, origin: str
) -> None:
    loaded = config.load({"backend-runtime-mode": "Docker", **flags}, environ, text, FILE)
    assert loaded.image_endpoint == loaded.runtime_endpoint == "/var/run/docker.sock"
    assert loaded.warnings == (f"{origin} is ignored: Docker mode has no image endpoint",)


def test_a_misspelt_variable_is_warned_about_without_its_value() -> None:
    environ = {"RUNTIMEPROXY_HOOK_TIMOUT": "secret", "RUNTIMEPROXY_ZZ": "secret", "OTHER": "secret"}
    assert config.load({}, environ).warnings == (
        "RUNTIMEPROXY_HOOK_TIMOUT is ignored: there is no such option; did you mean RUNTIMEPROXY_HOOK_TIMEOUT?",
        "RUNTIMEPROXY_ZZ is ignored: there is no such option; --help lists the options",
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("koord-runtimeproxy-endpoint", "remote-runtime-service-endpoint"),
        ("koord-runtimeproxy-endpoint", "remote-image-service-endpoint"),
        ("koord-runtimeproxy-endpoint", "admin-endpoint"),
        ("admin-endpoint", "remote-runtime-service-endpoint"),
        ("admin-endpoint", "remote-image-service-endpoint"),
    ],
)
def test_a_proxy_that_would_dial_itself_or_listen_twice_is_refused(first: str, second: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load({first: "/a", second: "unix:///a"}, {})
    assert str(caught.value) == f"--{first} and --{second} are the same socket: /a"


def test_a_socket_is_the_same_however_it_is_spelt() -> None:
    flags = {"koord-runtimeproxy-endpoint": "/run//a", "remote-runtime-service-endpoint": "/var/run/a"}
    assert config.load(flags, {}).listen_endpoint == "/run//a"
    with pytest.raises(ConfigError) as caught:
        config.load(flags, {}, real_path=lambda path: "/run/" + path.rpartition("/")[2])
    told = "--koord-runtimeproxy-endpoint and --remote-runtime-service-endpoint are the same socket"
    assert str(caught.value) == f"{told}: /run//a = /var/run/a"


def test_the_file_is_named_by_flag_or_environment() -> None:
    assert config.file_named({}, {}) is None
    assert config.file_named({}, {"RUNTIMEPROXY_CONFIG": "/e"}) == "/e"
    assert config.file_named({"config": "/f"}, {"RUNTIMEPROXY_CONFIG": "/e"}) == "/f"
    with pytest.raises(ConfigError, match=r"^RUNTIMEPROXY_CONFIG: '' is no name"):
        config.file_named({}, {"RUNTIMEPROXY_CONFIG": ""})
    with pytest.raises(ConfigError, match=r"^RUNTIMEPROXY_CONFIG: '/f\\n' has a control character"):
        config.file_named({}, {"RUNTIMEPROXY_CONFIG": "/f\n"})


def test_naming_the_file_is_not_a_setting_of_the_file() -> None:
    assert config.load({"config": "/f"}, {"RUNTIMEPROXY_CONFIG": "/e"}) == config.load({}, {})
    assert OPTIONS[-1].name == "config"
