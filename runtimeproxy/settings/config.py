"""The configuration: flags, then environment variables, then one YAML file, then defaults.

Owns the frozen ``Config`` and the order of its sources; the options themselves are the table in ``options``.
Must not know: files, the process's environment, sockets; it takes texts and returns values.
Invariant: every error names the source of the value (a flag, a variable, or a file and its key).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.options import (
    ENVIRONMENT_PREFIX,
    FILE_OPTION,
    MODE_OPTION,
    OPTIONS,
    RUNTIME_ENDPOINTS,
    SETTINGS,
    Mode,
    Option,
    parse_duration,
    parse_endpoint,
)

__all__ = ["Config", "Mode", "file_named", "load", "parse_duration", "parse_endpoint"]


@dataclass(frozen=True, slots=True)
class Config:
    """The effective configuration: socket paths without a scheme, times in seconds, ``socket_mode`` as a number.

    In Docker mode ``image_endpoint`` is the runtime endpoint. ``originals_dir`` None means the directory of the
    listening socket, "" no file. ``warnings`` are lines for the log, one per finding.
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
    admin_endpoint: str
    log_level: str
    log_format: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """A text that the user gave, and its source."""

    text: str
    origin: str


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
    sources = (_from_flags(flags), _from_environment(environ), _from_file(file_text, file_origin))
    given = {field: _first(sources, option.name) for field, option in SETTINGS}
    warnings = list(_unknown_variables(environ))
    mode = _value(MODE_OPTION, given["mode"])
    image = given["image_endpoint"]
    if image is not None and mode is Mode.DOCKER:
        warnings.append(f"{image.origin} is ignored: Docker mode has no image endpoint")
        given["image_endpoint"] = None
    values = {field: _value(option, given[field]) for field, option in SETTINGS}
    values["runtime_endpoint"] = values["runtime_endpoint"] or RUNTIME_ENDPOINTS[mode]
    values["image_endpoint"] = values["image_endpoint"] or values["runtime_endpoint"]
    _check_sockets_differ(values, real_path)
    return Config(**values, warnings=tuple(warnings))


def _value(option: Option, given: _Given | None) -> Any:
    if given is not None:
        return option.read(given.text, given.origin)
    return None if option.default is None else option.parse(option.default, option.flag)


def _first(sources: tuple[Mapping[str, _Given], ...], name: str) -> _Given | None:
    return next((source[name] for source in sources if name in source), None)


def _from_flags(flags: Mapping[str, str]) -> dict[str, _Given]:
    return {name: _Given(text, f"--{name}") for name, text in flags.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    return {o.name: _Given(environ[o.variable], o.variable) for o in OPTIONS if o.variable in environ}


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = {option.variable.removeprefix(ENVIRONMENT_PREFIX) for option in OPTIONS}
    for name in sorted(environ):
        rest = name.removeprefix(ENVIRONMENT_PREFIX)
        if rest != name and rest not in known:
            yield f"{name} is ignored: there is no such option{_nearest(rest, known, ENVIRONMENT_PREFIX)}"


def _from_file(text: str | None, origin: str) -> dict[str, _Given]:
    """Return the texts of a file as they are written: 0600 stays octal, true stays the text of a label value."""
    if text is None:
        return {}
    from runtimeproxy.settings import yamltext  # imported only if there is a file

    root = yamltext.compose(text, origin)
    known = {option.name for _, option in SETTINGS}
    found: dict[str, _Given] = {}
    place = yamltext.Place(origin)
    for key, value in () if root is None else yamltext.pairs(root, place):
        if key not in known:
            raise ConfigError(f"{origin}: unknown key {key!r}{_nearest(key, known)}")
        if yamltext.is_nothing(value):
            raise ConfigError(f'{origin}: {key} has no value: write one ("" for an empty one), or take it out')
        found[key] = _Given(yamltext.scalar(value, place.inside(key)), f"{origin}: {key}")
    return found


def _nearest(name: str, known: set[str], prefix: str = "") -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else "; --help lists the options"


def _check_sockets_differ(values: Mapping[str, Any], real_path: Callable[[str], str]) -> None:
    """Raise ConfigError if the proxy would dial itself or listen twice on one path."""
    flags = {field: option.flag for field, option in SETTINGS if option.parse is parse_endpoint}
    for ours in ("listen_endpoint", "admin_endpoint"):
        for other in flags:
            if other != ours and real_path(values[other]) == real_path(values[ours]):
                spelt = " = ".join(dict.fromkeys((values[ours], values[other])))
                raise ConfigError(f"{flags[ours]} and {flags[other]} are the same socket: {spelt}")
