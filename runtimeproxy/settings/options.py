"""The table of options and the parsers of their values.

Invariant: a parser returns the value or raises ConfigError with one line that starts with ``origin``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from runtimeproxy.errors import ConfigError

ENVIRONMENT_PREFIX = "RUNTIMEPROXY_"
DEFAULT_FILE = "/etc/runtimeproxy/config.yaml"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

FIRST_VERSION = "0.1.0"

SOCKET_FORMS = "/path, unix:/path or unix:///path"
_LONGEST_SOCKET_PATH = 107
"""Longest path in bytes that fits into sun_path together with its closing NUL (unix(7))."""
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "": 1000}
_SIZE = re.compile(r"([0-9]{1,9})(KiB|MiB|)")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_SIZES = range(1 << 10, (64 << 20) + 1)
_SOCKET_MODE = re.compile(r"0?[0-7]{3}")
_NO_TEXT = re.compile("[\0-\x1f\x7f\ud800-\udc7f\udd00-\udfff]")
"""Control characters and lone surrogates, except U+DC80 to U+DCFF: Python's form of bytes that are not UTF-8."""
_HIGHEST_GROUP = 2**32 - 2
"""The next number means "leave the group as it is" (chown(2))."""


class Mode(Enum):
    """The front that serves the kubelet; values are spelt as on the command line."""

    CONTAINERD = "Containerd"
    DOCKER = "Docker"


RUNTIME_ENDPOINTS = {Mode.CONTAINERD: "/var/run/containerd/containerd.sock", Mode.DOCKER: "/var/run/docker.sock"}
CRIO_SOCKET = "crio.sock"
"""The name of CRI-O's socket."""
CRIO_SUFFIX = "run/crio/crio.sock"
"""The end of an endpoint by which the kubelet recognises CRI-O (kubernetes, pkg/kubelet/cadvisor/util.go)."""


def parse_endpoint(text: str, origin: str) -> str:
    """Return the socket path of an endpoint spelt ``/path``, ``unix:/path`` or ``unix:///path``. Raises ConfigError,
    naming ``origin``, for every other spelling and for a path that no socket can have."""
    path = text.removeprefix("unix:")
    if path != text:
        path = path.removeprefix("//")
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ConfigError(f"{origin}: {text!r} is not a unix socket: write {SOCKET_FORMS}")
    if len(path.encode(errors="surrogateescape")) > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"{origin}: {text!r} is too long: a socket's path has at most {_LONGEST_SOCKET_PATH} bytes")
    return path


def _endpoint_or_none(text: str, origin: str) -> str:
    return "" if text.lower() == "none" else parse_endpoint(text, origin)


def parse_duration(text: str, origin: str) -> float:
    """Return the seconds of ``500ms``, ``2s``, ``1m`` or a plain number of seconds. Raises ConfigError, naming
    ``origin``, for anything else and for zero."""
    seconds = parse_pause(text, origin)
    if not seconds:
        raise ConfigError(f"{origin}: {text!r} is not a time limit: write one above zero, like 500ms, 2s or 1m")
    return seconds


def parse_pause(text: str, origin: str) -> float:
    """Return the seconds of a duration that may be zero. Raises ConfigError if it is not a duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{origin}: {text!r} is not a duration: write one like 500ms, 2s, 1m, or a number of seconds")
    return float(match[1]) * _MILLISECONDS[match[2]] / 1000


def parse_size(text: str, origin: str) -> int:
    """Return the bytes of ``4MiB``, ``512KiB`` or a plain number of bytes, from 1 KiB to 64 MiB. Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2]] if match is not None else 0
    if size not in _SIZES:
        raise ConfigError(f"{origin}: {text!r} is not a size from 1KiB to 64MiB: write one like 512KiB, 4MiB, or bytes")
    return size


def _mode(text: str, origin: str) -> Mode:
    names = {mode.value.lower(): mode for mode in Mode}
    if text.lower() not in names:
        raise ConfigError(f"{origin}: {text!r} is not a backend mode: write Containerd or Docker")
    return names[text.lower()]


def _one_of(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    def parse(text: str, origin: str) -> str:
        if text.lower() not in choices:
            raise ConfigError(f"{origin}: {text!r} is not one of {', '.join(choices)}")
        return text.lower()

    return parse


def _socket_mode(text: str, origin: str) -> int:
    if not _SOCKET_MODE.fullmatch(text):
        raise ConfigError(f"{origin}: {text!r} is not a file mode: write three octal digits, like 0600")
    return int(text, 8)


def _directory(text: str, origin: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ConfigError(f"{origin}: {text!r} is not an absolute path: write one like /etc/runtime/hookserver.d")
    return text


def _directory_or_none(text: str, origin: str) -> str:
    return "" if text.lower() == "none" else _directory(text, origin)


def _name(text: str, origin: str) -> str:
    if not text or text != text.strip():
        raise ConfigError(f"{origin}: {text!r} is not a name: write one without spaces around it, or leave it out")
    return text


def _group(text: str, origin: str) -> str:
    number = text.lstrip("0")
    if text.isascii() and text.isdigit() and (len(number) > 10 or int(number or "0") > _HIGHEST_GROUP):
        raise ConfigError(f"{origin}: {text!r} is not a group's number: the highest is {_HIGHEST_GROUP}")
    return _name(text, origin)


def _text(text: str, origin: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """One row: an option's flag, default, parser and the field of ``Config`` that it sets.

    ``default`` is spelt as the user would write it, None where it cannot be written as a value; ``default_words`` then
    describes it. ``field`` is None for the option that names the file itself, which cannot be set in that file.
    ``since`` is the first version that knows the option, ``none_since`` the first one that accepts ``none`` for it.
    """

    name: str
    field: str | None
    metavar: str
    parse: Callable[[str, str], Any]
    default: str | None
    help: str
    default_words: str = ""
    since: str = FIRST_VERSION
    none_since: str = FIRST_VERSION

    @property
    def flag(self) -> str:
        """Return the option's spelling on the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Return the name of the option's environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def shown_default(self) -> str:
        """Return the description of the default, for --help."""
        return self.default_words if self.default is None else self.default

    def read(self, text: str, origin: str) -> Any:
        """Return the value of a text. Raises ConfigError, naming ``origin``, also for control characters."""
        if _NO_TEXT.search(text):
            raise ConfigError(
                f"{origin}: {text!r} has a control character, such as a line feed, or half a character: take it out"
            )
        return self.parse(text, origin)


OPTIONS: tuple[Option, ...] = (
    Option(
        "backend-runtime-mode",
        "mode",
        "MODE",
        _mode,
        Mode.CONTAINERD.value,
        "The runtime: Containerd or Docker, letter case ignored.",
    ),
    Option(
        "koord-runtimeproxy-endpoint",
        "listen_endpoint",
        "SOCKET",
        parse_endpoint,
        "/var/run/koord-runtimeproxy/runtimeproxy.sock",
        "The socket that the proxy listens on.",
    ),
    Option(
        "remote-runtime-service-endpoint",
        "runtime_endpoint",
        "SOCKET",
        parse_endpoint,
        None,
        "The runtime's socket.",
        f"{RUNTIME_ENDPOINTS[Mode.CONTAINERD]}; in Docker mode {RUNTIME_ENDPOINTS[Mode.DOCKER]}",
    ),
    Option(
        "remote-image-service-endpoint",
        "image_endpoint",
        "SOCKET",
        parse_endpoint,
        None,
        "The socket of the runtime's image service; not used in Docker mode.",
        "the runtime endpoint",
    ),
    Option(
        "runtime-hook-server-key",
        "skip_label_key",
        "KEY",
        _name,
        "runtimeproxy.koordinator.sh/skip-hookserver",
        "The label of pods for which no hook server is called.",
    ),
    Option("runtime-hook-server-val", "skip_label_value", "VALUE", _text, "true", "The value of that label."),
    Option(
        "hookserver-config-dir",
        "hookserver_config_dir",
        "DIR",
        _directory,
        "/etc/runtime/hookserver.d",
        "The directory of the registration files; it may be created later.",
    ),
    Option(
        "hook-timeout", "hook_timeout_seconds", "DURATION", parse_duration, "2s", "The time limit of one hook call."
    ),
    Option(
        "hook-budget",
        "hook_budget_seconds",
        "DURATION",
        parse_duration,
        "10s",
        "The time limit of all hook calls of one intercepted call.",
    ),
    Option(
        "hook-answer-limit",
        "hook_answer_bytes",
        "SIZE",
        parse_size,
        "4MiB",
        "The longest answer of a hook server that is accepted, from 1KiB to 64MiB.",
    ),
    Option(
        "socket-mode",
        "socket_mode",
        "MODE",
        _socket_mode,
        "0600",
        "The file mode of the proxy's socket, in octal digits.",
    ),
    Option(
        "socket-group",
        "socket_group",
        "GROUP",
        _group,
        None,
        "The group of the proxy's socket, by name or number.",
        "none",
    ),
    Option(
        "drain-timeout",
        "drain_timeout_seconds",
        "DURATION",
        parse_pause,
        "10s",
        "How long running calls may take to end when the proxy stops.",
    ),
    Option(
        "originals-dir",
        "originals_dir",
        "DIR",
        _directory_or_none,
        None,
        "The directory, on tmpfs, of the file with original values, which outlives the proxy; none: no file.",
        "the directory of --koord-runtimeproxy-endpoint",
    ),
    Option(
        "state-dir",
        "state_dir",
        "DIR",
        _directory_or_none,
        "/var/lib/runtimeproxy",
        "The directory of the file with the disabled hook servers, created at its first use; none: no file.",
        since="0.2.0",
    ),
    Option(
        "admin-endpoint",
        "admin_endpoint",
        "SOCKET",
        _endpoint_or_none,
        None,
        "The socket of health, metrics and state, for root only; none: no such socket.",
        "admin.sock in the directory of --koord-runtimeproxy-endpoint",
        none_since="0.2.0",
    ),
    Option(
        "metrics-endpoint",
        "metrics_endpoint",
        "SOCKET",
        _endpoint_or_none,
        "none",
        "Another socket, of health and metrics only, in a directory of its own; none: no such socket.",
        since="0.2.0",
    ),
    Option(
        "metrics-group",
        "metrics_group",
        "GROUP",
        _group,
        None,
        "The group that may use the metrics socket, by name or number.",
        "none",
        since="0.2.0",
    ),
    Option(
        "log-level",
        "log_level",
        "LEVEL",
        _one_of(LOG_LEVELS),
        "info",
        "The least serious lines to log: debug, info, warning or error.",
    ),
    Option("log-format", "log_format", "FORMAT", _one_of(LOG_FORMATS), "text", "How lines are logged: text or json."),
    Option(
        "config",
        None,
        "FILE",
        _name,
        None,
        "The YAML file to read; its keys are the flags' names.",
        f"{DEFAULT_FILE} if it is there",
    ),
)

MODE_OPTION = OPTIONS[0]
FILE_OPTION = OPTIONS[-1]
"""The option that names the file; it has no field and is no key of the file."""
SETTINGS: tuple[tuple[str, Option], ...] = tuple((option.field, option) for option in OPTIONS if option.field)
"""The options that set a field of ``Config``, with the field's name."""
SOCKETS: Mapping[str, str] = {field: o.flag for field, o in SETTINGS if o.parse in (parse_endpoint, _endpoint_or_none)}
"""The flags of the options that are sockets, by field."""
