"""The node's settings: one YAML file, read again when it changes.

Invariant: ``Node.settings`` always returns settings that keep every rule: the last good ones if the file is bad.
"""

import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from runtimeproxy.errors import ConfigError
from runtimeproxy.model.fields import LEAST_QUOTA, is_cpuset

DEFAULT_FILE = Path("/etc/runtimeproxy/node.yaml")
MAX_BYTES = 1024 * 1024
"""Largest file that is accepted, in bytes."""

_MAX_NAME = 64
_MAX_DEPTH = 10
_LOG = logging.getLogger(__name__)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml may be missing
    """A YAML loader with strict numbers, which refuses a key that occurs twice in a mapping."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> Any:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        lines: dict[str, int] = {}
        for key in (key for key, _ in pairs if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if first := lines.get(key.value):
                raise ConfigError(f"{key.value[:_MAX_NAME]!r} is in line {first} and in line {line}: remove one")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


_NUMBERS: Mapping[str, re.Pattern[str]] = {
    "tag:yaml.org,2002:int": re.compile(r"-?(0|[1-9][0-9]*)\Z"),
    "tag:yaml.org,2002:float": re.compile(r"-?([0-9]+\.[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?\Z"),
}
"""The texts that are numbers without quotes; 010 (8), 1:30 (90) and 0_1 (1), numbers in YAML 1.1, stay texts."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _NUMBERS]
    for first, rules in _Loader.yaml_implicit_resolvers.items()
}
for _tag, _rule in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _rule, list("-.0123456789"))


@dataclass(frozen=True, slots=True)
class Pool:
    """The CPUs of one NUMA node that containers share."""

    socket: int = 0
    node: int = 0
    cpuset: str = ""


@dataclass(frozen=True, slots=True)
class RdtClass:
    """The limits of a QoS class in percent: ``l3`` is the range of the cache's ways, ``mb`` the memory bandwidth."""

    enable: bool = False
    l3: tuple[int, int] = (0, 100)
    mb: int = 100


_RDT_CLASSES: Mapping[str, Callable[..., RdtClass]] = {
    "LSR": RdtClass,
    "LS": RdtClass,
    "BE": partial(RdtClass, l3=(0, 30)),
}


@dataclass(frozen=True, slots=True)
class GroupIdentities:
    """The values of cpu.bvt_warp_ns by QoS class; all count as 0 unless ``enable``."""

    enable: bool = False
    lsr: int = 2
    ls: int = 2
    be: int = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of the file, each key with "_" for "-"; ``rdt`` always has LSR, LS and BE; "" means not set."""

    cpu_normalization_ratio: float = 1.0
    cpu_suppress_policy: str = ""
    shared_pools: tuple[Pool, ...] = ()
    be_shared_pools: tuple[Pool, ...] = ()
    be_cpu_manager: bool = False
    kubelet_cpu_manager_policy: str = "none"
    system_cpuset: str = ""
    unset_cpu_quota: bool = True
    rdt: Mapping[str, RdtClass] = field(default_factory=lambda: {name: make() for name, make in _RDT_CLASSES.items()})
    group_identity: GroupIdentities = GroupIdentities()

    def normalized(self, quota: int) -> int:
        """Return a CPU quota divided by this node's normalization ratio, if that is above 1, and rounded up. A quota
        that is not positive (-1, unlimited) stays, and no quota gets below the kernel's least."""
        ratio = self.cpu_normalization_ratio
        return max(math.ceil(quota / ratio), min(quota, LEAST_QUOTA)) if ratio > 1 and quota > 0 else quota


_Rule = Callable[[Any, str], Any]
"""Returns the setting for a value and the name of its key. Raises ConfigError with name and rule."""


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false")
    return value


def _ratio(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise ConfigError(f"{name} must be a number above 0")
    return float(value)


def _is_integer(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _integer(least: int, most: int) -> _Rule:
    def rule(value: Any, name: str) -> int:
        if not _is_integer(value, least, most):
            raise ConfigError(f"{name} must be a whole number from {least} to {most}")
        return int(value)

    return rule


def _one_of(*words: str) -> _Rule:
    def rule(value: Any, name: str) -> str:
        if value not in words:
            raise ConfigError(f"{name} must be {' or '.join(words)}; without the key the default holds")
        return str(value)

    return rule


def _cpus(value: Any, name: str) -> str:
    text = str(value) if _is_integer(value, 0, sys.maxsize) else value  # in YAML a single CPU is a number
    if not isinstance(text, str) or not is_cpuset(text):
        raise ConfigError(f'{name} must be a list of CPUs, n and n-m with n <= m, like "0-3,8"')
    return text


def _percents(value: Any, name: str) -> tuple[int, int]:
    is_pair = isinstance(value, list) and len(value) == 2 and all(_is_integer(item, 0, 100) for item in value)
    if not is_pair or value[0] >= value[1]:
        raise ConfigError(f"{name} must be [start, end] in whole percent, 0 <= start < end <= 100")
    return value[0], value[1]


def _pools(value: Any, name: str) -> tuple[Pool, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{name} must be a list of {', '.join(_POOL)}")
    return tuple(Pool(**_record(_POOL, item, f"{name}[{index}]")) for index, item in enumerate(value))


def _rdt(value: Any, name: str) -> dict[str, RdtClass]:
    given = _record({key: partial(_record, _RDT) for key in _RDT_CLASSES}, value, name, str)
    return {key: make(**given.get(key, {})) for key, make in _RDT_CLASSES.items()}


def _group_identity(value: Any, name: str) -> GroupIdentities:
    return GroupIdentities(**_record(_GROUP_IDENTITY, value, name))


_ID = _integer(0, 2**31 - 1)
_BVT = _integer(-1, 2)
_POOL: Mapping[str, _Rule] = {"socket": _ID, "node": _ID, "cpuset": _cpus}
_RDT: Mapping[str, _Rule] = {"enable": _flag, "l3": _percents, "mb": _integer(1, 100)}
_GROUP_IDENTITY: Mapping[str, _Rule] = {"enable": _flag, "LSR": _BVT, "LS": _BVT, "BE": _BVT}
_SETTINGS: Mapping[str, _Rule] = {
    "cpu-normalization-ratio": _ratio,
    "cpu-suppress-policy": _one_of("cfsQuota", "cpuset"),
    "shared-pools": _pools,
    "be-shared-pools": _pools,
    "be-cpu-manager": _flag,
    "kubelet-cpu-manager-policy": _one_of("none", "static"),
    "system-cpuset": _cpus,
    "unset-cpu-quota": _flag,
    "rdt": _rdt,
    "group-identity": _group_identity,
}


def _attribute(key: str) -> str:
    return key.replace("-", "_").lower()


def _record(
    rules: Mapping[str, _Rule], value: Any, name: str, renamed: Callable[[str], str] = _attribute
) -> dict[str, Any]:
    """Return a mapping's values by attribute, checked by their rules; a key without a value counts as absent."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name or 'the file'} must be a mapping with some of the keys {', '.join(rules)}")
    for key in value:
        if key not in rules:
            raise ConfigError(f"unknown key {_below(name, str(key)[:_MAX_NAME])!r}; {_nearest(str(key), rules)}")
    return {renamed(key): rules[key](item, _below(name, key)) for key, item in value.items() if item is not None}


def _below(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _nearest(key: str, rules: Mapping[str, _Rule]) -> str:
    spelt = {rule.lower(): rule for rule in rules}
    near = get_close_matches(key[:_MAX_NAME].lower(), spelt, n=1)
    return f"did you mean {spelt[near[0]]}?" if near else f"there are {', '.join(rules)}"


def parse(content: bytes, origin: str) -> Settings:
    """Return the settings in a file's content; ``origin`` is the file's name in errors. Raises ConfigError with the
    file, the key and the rule."""
    try:
        return Settings(**_record(_SETTINGS, _loaded(content), ""))
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _loaded(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise ConfigError(f"longer than {MAX_BYTES} bytes; the settings are a few lines")
    try:
        _check_depth(content)
        value = yaml.load(content, Loader=_Loader)
    except ConfigError:
        raise
    except Exception as error:  # for unusual tags PyYAML's constructors raise nearly anything
        raise ConfigError(f"this is not YAML: {' '.join(str(error).split())}") from None
    return {} if value is None else value


def _check_depth(content: bytes) -> None:
    """Raise ConfigError for nesting so deep that libyaml's recursive loader would crash the process."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ConfigError(f"more than {_MAX_DEPTH} levels deep; the settings have three")


_State = tuple[int, ...] | str | None
"""The version of a file, to detect changes; None if it does not exist, the error's text if stat failed."""
_NOT_CHECKED = ""
_DEFAULTS_HOLD = "the default settings hold"


class Node:
    """The settings in a file, or the defaults if there is none; may be used in several threads."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._settings = Settings()
        self._in_effect = _DEFAULTS_HOLD
        self._last_state: _State = _NOT_CHECKED
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        """Return the file's current settings. If the file is invalid, that is logged once and the last valid settings
        stay. They also stay while the file is empty, because a process is writing it then."""
        self.inspect()
        return self._settings

    def inspect(self) -> None:
        """Read the file if it has changed, and log which settings are in effect then."""
        if self.path is not None and _state(self.path) != self._last_state:
            with self._lock:
                self._follow(self.path)

    def _follow(self, path: Path) -> None:
        state = _state(path)
        if state == self._last_state:
            return  # another thread was faster
        try:
            if state is None:
                self._settings, self._in_effect = Settings(), _DEFAULTS_HOLD
                usual = path == DEFAULT_FILE and self._last_state == _NOT_CHECKED  # most nodes need no file
                _LOG.log(logging.INFO if usual else logging.WARNING, "%s is not there: %s", path, _DEFAULTS_HOLD)
            elif content := _content(path):
                self._settings, self._in_effect = parse(content, str(path)), "the last good settings hold"
                _LOG.info("%s: node settings applied", path)
            else:  # a writer has truncated it
                _LOG.info("%s is empty: %s", path, self._in_effect)
        except (OSError, ConfigError) as error:
            _LOG.error("%s; %s", error, self._in_effect)
        self._last_state = state


def _state(path: Path) -> _State:
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _content(path: Path) -> bytes:
    if not path.is_file():  # opening a pipe would wait for a writer
        raise ConfigError(f"{path}: not a regular file; write the settings into one")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
