"""The configuration: flags, then environment variables, then one YAML file, then defaults.

Invariant: every error names the source of the value (a flag, a variable, or a file and its key).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import (
    ENVIRONMENT_PREFIX,
    FILE_OPTION,
    FIRST_VERSION,
    MODE_OPTION,
    OPTIONS,
    RUNTIME_ENDPOINTS,
    SETTINGS,
    SOCKETS,
    Mode,
    Option,
    parse_duration,
    parse_endpoint,
)

OWN_SOCKETS = ("listen_endpoint", "admin_endpoint", "metrics_endpoint")
"""The fields of the sockets that the proxy listens on."""
GROUPS = ("socket_group", "metrics_group")
ADMIN_SOCKET = "admin.sock"

_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?![0-9])")
"""A package's suffix, such as -1, does not change the options."""

__all__ = [
    "Config",
    "Findings",
    "Mode",
    "Setting",
    "check",
    "file_named",
    "load",
    "parse_duration",
    "parse_endpoint",
    "unknown_to_version",
]


@dataclass(frozen=True, slots=True)
class Setting:
    """A key, its value as one would write it (None: not set), and its origin: flag, environment, file or default."""

    key: str
    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """The effective configuration: socket paths without a scheme, times in seconds, ``socket_mode`` as a number.

    In Docker mode ``image_endpoint`` is the runtime endpoint. ``originals_dir`` None means the directory of the
    listening socket, "" no file; ``state_dir`` "" no file; an admin or metrics endpoint "" means no such socket.
    ``warnings`` are lines for the log, one per finding. ``settings`` has every key with its origin.
    """

    mode: Mode
    listen_endpoint: str
    runtime_endpoint: str
    image_endpoint: str
    skip_label_key: str
    skip_label_value: str
    hookserver_config_dir: str
    hook_timeout_seconds: float
    hook_budget_seconds: float
    hook_answer_bytes: int
    socket_mode: int
    socket_group: str | None
    drain_timeout_seconds: float
    originals_dir: str | None
    state_dir: str
    admin_endpoint: str
    metrics_endpoint: str
    metrics_group: str | None
    log_level: str
    log_format: str
    warnings: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with a configuration: the proxy starts with warnings, and does not start with an error."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """A text that the user gave, its source for errors, and the kind of that source."""

    text: str
    origin: str
    kind: str


_Source = dict[str, _Given]
"""The texts of one source, by the options' names."""


def file_named(flags: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the path of the file that a flag or the environment names; None if neither does. Raises ConfigError if it
    is not a valid path."""
    given = _first((_from_flags(flags), _from_environment(environ)), FILE_OPTION.name)
    return None if given is None else str(FILE_OPTION.read(given.text, given.origin))


def load(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file_text: str | None = None,
    file_origin: str = "",
    real_path: Callable[[str], str] = str,
) -> Config:
    """Return the configuration from flags (by option name) > environment > file > defaults.

    ``file_origin`` is the file's name in errors: its path. ``real_path`` resolves paths, to find two that lead to one
    socket. Raises ConfigError with one line that names the flag, the variable, or the file and its key.
    """
    sources = _sources(flags, environ, file_text, file_origin)
    warnings = (*_unknown_variables(environ), *_drop_image_endpoint(sources))
    values = _values(sources)
    for line in (*_same_sockets(values, real_path), *_sockets_open_to_metrics_group(values, real_path)):
        raise ConfigError(line)
    return Config(
        **values, warnings=warnings, settings=_settings(sources, values, None if file_text is None else file_origin)
    )


def _settings(sources: tuple[_Source, ...], values: Mapping[str, Any], file: str | None) -> tuple[Setting, ...]:
    """Return the settings in the order of the table, each with its value and origin."""
    derived = {
        "runtime_endpoint": values["runtime_endpoint"],
        "image_endpoint": values["image_endpoint"],
        "originals_dir": _folder(values["listen_endpoint"]) or "/",
        "admin_endpoint": values["admin_endpoint"],
        FILE_OPTION.field: file,
    }
    return tuple(
        Setting(option.name, option.default or derived.get(option.field), "default")
        if (given := _first(sources, option.name)) is None
        else Setting(option.name, given.text, given.kind)
        for option in OPTIONS
    )


def check(
    environ: Mapping[str, str],
    file_text: str | None = None,
    file_origin: str = "",
    real_path: Callable[[str], str] = str,
    find_group: Callable[[str, str], object] = lambda group, flag: None,
    flags: Mapping[str, str] = MappingProxyType({}),
) -> Findings:
    """Return everything that is wrong with flags, the environment and a file, also with values that others override.
    ``find_group`` raises ConfigError for a group that does not exist, naming its flag."""
    faults: list[ConfigError] = []
    sources = (_from_flags(flags), _from_environment(environ), _from_file(file_text, file_origin, faults))
    invalid = _drop_invalid_values(sources, (MODE_OPTION,), faults)
    warnings = (*_unknown_variables(environ), *_drop_image_endpoint(sources))
    invalid |= _drop_invalid_values(sources, OPTIONS, faults)
    values = _values(sources)
    for name, option in SETTINGS:
        if name in GROUPS and values[name] is not None:
            with _added_to(faults):
                find_group(values[name], option.flag)
    errors = [str(fault) for fault in faults]
    if not invalid & {MODE_OPTION, *_SOCKETS.values()}:  # else their defaults would be compared
        errors += [*_same_sockets(values, real_path), *_sockets_open_to_metrics_group(values, real_path)]
    return Findings(tuple(errors), warnings)


def unknown_to_version(
    version: str,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file_text: str | None = None,
    file_origin: str = "",
) -> Findings:
    """Return what an earlier version does not know of a configuration: it would not start with an error. Raises
    ConfigError for an invalid version."""
    numbers = _numbers(version)
    faults: list[ConfigError] = []  # of the file, which ``check`` reports
    lines: dict[bool, list[str]] = {True: [], False: []}
    for source in (_from_flags(flags), _from_environment(environ), _from_file(file_text, file_origin, faults)):
        for option in (option for option in OPTIONS if option.name in source):
            given = source[option.name]
            is_variable = given.kind == "environment"
            if _numbers(option.since) > numbers:
                then = "would ignore it" if is_variable else "would not start: take it out"
                lines[not is_variable].append(f"{given.origin} is unknown to version {version}, which {then}")
            elif given.text.lower() == "none" and _numbers(option.none_since) > numbers:
                lines[True].append(
                    f"{given.origin}: 'none' is unknown to version {version}, which would not start: take it out"
                )
    return Findings(tuple(lines[True]), tuple(lines[False]))


def _numbers(version: str) -> tuple[int, ...]:
    match = _VERSION.match(version)
    if match is None:
        raise ConfigError(f"{version!r} is not a version: write one like {FIRST_VERSION}")
    return tuple(int(number) for number in match.groups())


def _sources(
    flags: Mapping[str, str], environ: Mapping[str, str], file_text: str | None, file_origin: str
) -> tuple[_Source, ...]:
    """Return the sources, the first with priority. Raises the file's first fault."""
    faults: list[ConfigError] = []
    sources = (_from_flags(flags), _from_environment(environ), _from_file(file_text, file_origin, faults))
    for fault in faults:
        raise fault
    return sources


def _drop_invalid_values(
    sources: tuple[_Source, ...], options: tuple[Option, ...], faults: list[ConfigError]
) -> set[Option]:
    """Drop the values that cannot be parsed, add their faults, and return their options."""
    invalid = set()
    for source in sources:
        for option in options:
            try:
                _value(option, source.get(option.name))
            except ConfigError as fault:
                faults.append(fault)
                invalid.add(option)
                del source[option.name]
    return invalid


def _drop_image_endpoint(sources: tuple[_Source, ...]) -> tuple[str, ...]:
    """Drop the image endpoint in Docker mode, and return a warning if there was one."""
    name = _SOCKETS["image_endpoint"].name
    given = _first(sources, name)
    if given is None or _value(MODE_OPTION, _first(sources, MODE_OPTION.name)) is not Mode.DOCKER:
        return ()
    for source in sources:
        source.pop(name, None)
    return (f"{given.origin} is ignored: Docker mode has no image endpoint",)


def _values(sources: tuple[_Source, ...]) -> dict[str, Any]:
    values = {field: _value(option, _first(sources, option.name)) for field, option in SETTINGS}
    values["runtime_endpoint"] = values["runtime_endpoint"] or RUNTIME_ENDPOINTS[values["mode"]]
    values["image_endpoint"] = values["image_endpoint"] or values["runtime_endpoint"]
    if values["admin_endpoint"] is None:
        values["admin_endpoint"] = f"{_folder(values['listen_endpoint'])}/{ADMIN_SOCKET}"
    return values


def _value(option: Option, given: _Given | None) -> Any:
    if given is not None:
        return option.read(given.text, given.origin)
    return None if option.default is None else option.parse(option.default, option.flag)


def _first(sources: tuple[_Source, ...], name: str) -> _Given | None:
    return next((source[name] for source in sources if name in source), None)


def _from_flags(flags: Mapping[str, str]) -> _Source:
    return {name: _Given(text, f"--{name}", "flag") for name, text in flags.items()}


def _from_environment(environ: Mapping[str, str]) -> _Source:
    return {o.name: _Given(environ[o.variable], o.variable, "environment") for o in OPTIONS if o.variable in environ}


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    suffixes = {option.variable.removeprefix(ENVIRONMENT_PREFIX) for option in OPTIONS}
    for name in sorted(environ):
        suffix = name.removeprefix(ENVIRONMENT_PREFIX)
        if suffix != name and suffix not in suffixes:
            yield f"{name} is ignored: there is no such option{_nearest(suffix, suffixes, ENVIRONMENT_PREFIX)}"


def _from_file(text: str | None, origin: str, faults: list[ConfigError]) -> _Source:
    """Return the texts of a file as they are written: 0600 stays octal, true stays the text of a label value."""
    if text is None:
        return {}
    from runtimeproxy.settings import yamltext  # imported only if there is a file

    keys = {option.name for _, option in SETTINGS}
    source: _Source = {}
    place = yamltext.Place(origin)
    root = None
    with _added_to(faults):
        root = yamltext.compose(text, origin)
    for key, value in () if root is None else yamltext.pairs(root, place, faults):
        with _added_to(faults):
            if key not in keys:
                raise ConfigError(f"{origin}: unknown key {key!r}{_nearest(key, keys)}")
            if yamltext.is_nothing(value):
                raise ConfigError(f'{origin}: {key} has no value: write one ("" for an empty one), or take it out')
            source[key] = _Given(yamltext.scalar(value, place.inside(key)), f"{origin}: {key}", "file")
    return source


@contextmanager
def _added_to(faults: list[ConfigError]) -> Iterator[None]:
    try:
        yield
    except ConfigError as fault:
        faults.append(fault)


def _nearest(name: str, candidates: set[str], prefix: str = "") -> str:
    near = get_close_matches(name, sorted(candidates), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else "; runtimeproxy config default lists them"


_SOCKETS = {field: option for field, option in SETTINGS if field in SOCKETS}


def _same_sockets(values: Mapping[str, Any], real_path: Callable[[str], str]) -> Iterator[str]:
    """Yield a line for each path on which the proxy would dial itself or listen twice."""
    later = [name for name in SOCKETS if values[name]]
    for own_socket in [name for name in OWN_SOCKETS if values[name]]:
        later.remove(own_socket)
        for socket in later:
            if real_path(values[socket]) == real_path(values[own_socket]):
                spelt = " = ".join(dict.fromkeys((values[own_socket], values[socket])))
                yield f"{SOCKETS[own_socket]} and {SOCKETS[socket]} are the same socket: {spelt}"


def _sockets_open_to_metrics_group(values: Mapping[str, Any], real_path: Callable[[str], str]) -> Iterator[str]:
    """Yield a line for each other socket in the directory that the metrics socket's group may enter."""
    if not values["metrics_endpoint"] or values["metrics_group"] is None:
        return
    folder = real_path(_folder(values["metrics_endpoint"]))
    for socket in OWN_SOCKETS:
        if socket != "metrics_endpoint" and values[socket] and real_path(_folder(values[socket])) == folder:
            wrong = f"{SOCKETS['metrics_endpoint']} is in the directory of {SOCKETS[socket]} ({folder})"
            yield f"{wrong}, where --metrics-group must not come: give it a directory of its own"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
