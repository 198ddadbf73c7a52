"""Read Koordinator's labels and annotations.

Invariant: any text is parsed in bounded time to a value or to Malformed, and no error contains the text.
"""

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Any, NoReturn

from runtimeproxy.model.fields import LEAST_QUOTA

from ..sdk import Malformed
from ..sdk.edits import is_text

QOS_CLASS = "koordinator.sh/qosClass"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"
RESCTRL = "node.koordinator.sh/resctrl"
OOM_SCORE_ADJ = "koordinator.sh/oom-score-adj"
OOM_SCORE_ADJ_SPEC = "koordinator.sh/oom-score-adj-spec"
CPU_QOS = "koordinator.sh/cpuQOS"
CORE_SCHED_GROUP = "koordinator.sh/core-sched-group-id"
CORE_SCHED_POLICY = "koordinator.sh/core-sched-policy"
GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"

BATCH_CPU = "kubernetes.io/batch-cpu"
"""A resource in milli cores: 500 is half a core."""
BATCH_MEMORY = "kubernetes.io/batch-memory"
GPU_CORE = "koordinator.sh/gpu-core"
GPU_MEMORY = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO = "koordinator.sh/gpu-memory-ratio"

MAX_INT64 = 2**63 - 1
UNLIMITED = -1
"""The quota or memory limit that means no limit."""
MIN_SHARES, MAX_SHARES = 2, 262144
PERIOD = 100_000
"""The period in microseconds to which quotas refer."""


class Qos(StrEnum):
    """Koordinator's QoS classes; NONE is a pod without one."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"
    NONE = ""


class KubeQos(StrEnum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_QOS_CLASSES = {qos_class.value: qos_class for qos_class in Qos}
CLASSES: Mapping[str, str] = {
    Qos.LSE: "LSR",
    Qos.LSR: "LSR",
    Qos.LS: "LS",
    Qos.BE: "BE",
    KubeQos.GUARANTEED: "LSR",
    KubeQos.BURSTABLE: "LS",
    KubeQos.BEST_EFFORT: "BE",
}
"""The class in the node's settings for a pod, by its QoS class or else by its Kubernetes QoS class."""
_IN_CGROUP_PATHS = (("besteffort", KubeQos.BEST_EFFORT), ("burstable", KubeQos.BURSTABLE))


def qos(labels: Mapping[str, str]) -> Qos:
    """Return a pod's QoS class; NONE without the label and for any other value of it."""
    return _QOS_CLASSES.get(labels.get(QOS_CLASS, ""), Qos.NONE)


def kube_qos(cgroup_parent: str) -> KubeQos:
    """Return the Kubernetes QoS class in a pod's cgroup path, of either cgroup driver; without one, Guaranteed."""
    return next((kube_class for part, kube_class in _IN_CGROUP_PATHS if part in cgroup_parent), KubeQos.GUARANTEED)


class _Object(dict[str, Any]):
    """A JSON object with the name of its annotation, for errors."""

    __slots__ = ("source",)
    source: str


class _Number(float):
    """A JSON number with a point or an exponent that keeps its text, because a quantity must be exact."""

    def __new__(cls, text: str) -> "_Number":
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError("beyond every number")
        number._text = text
        return number

    def __repr__(self) -> str:
        return self._text

    _text: str


class Objects(list[Any]):
    """The ``kind`` of a list that contains only JSON objects and null."""


_KINDS: Mapping[type, str] = {
    dict: "a JSON object",
    list: "a list",
    Objects: "a list of JSON objects",
    str: "a text",
    int: "a whole number of 64 bits",
    float: "a number",
    bool: "true or false",
}
_Kinds = type | tuple[type, ...]
_READ_TEXTS = 64
_READ_CHARACTERS = 4096
"""Number and length of cached parsed texts: a pod and its containers have the same annotations."""


def read_json(annotations: Mapping[str, str], key: str, kind: _Kinds = tuple(_KINDS)) -> Any:
    """Return the value of an annotation's JSON; None if there is no annotation, or if it is "" or null.

    The value must not be changed: other callers get the same object. Raises Malformed if it is not JSON, or not of a
    ``kind`` (see ``member``). NaN and Infinity are not JSON.
    """
    text = annotations.get(key)
    if not text:
        return None
    what = f"annotation {key}"
    value = (_read if len(text) <= _READ_CHARACTERS else _decoded)(what, text)
    return value if value is None else _checked(value, kind, what, "the value")


def _decoded(source: str, text: str) -> Any:
    try:
        return _decoder(source).decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(source, f"not JSON, from character {error.pos} on") from None
    except (ValueError, RecursionError):
        raise Malformed(source, "not JSON that can be read: NaN, a number too great, or nesting too deep") from None


_read = lru_cache(_READ_TEXTS)(_decoded)


@cache
def _decoder(source: str) -> json.JSONDecoder:
    """Return the JSON decoder for one annotation, cached: creating it takes longer than parsing most texts."""
    return json.JSONDecoder(
        object_pairs_hook=partial(_object, source), parse_float=_Number, parse_constant=_not_a_number
    )


def _object(source: str, pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):  # a key that occurs twice counts at its last place, as its value does
        made = _Object((key, made[key]) for key in reversed(dict.fromkeys(key for key, _ in reversed(pairs))))
    made.source = source
    return made


def _not_a_number(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


def member(value: Any, name: str, kind: _Kinds, default: Any = None) -> Any:
    """Return a member of a JSON object as Go reads one of a struct: in any letter case, the last that is not null.

    The default is returned if ``value`` is None, has no such member, or the member is null. ``kind`` is dict, list,
    Objects, str, int, float, bool, or a tuple of them; float accepts whole numbers too. Raises Malformed if the value
    or its member is of another type.
    """
    if value is None:
        return default
    folded, members = name.casefold(), _members(value, name)
    for key in reversed(members):
        if key.casefold() == folded and members[key] is not None:
            return _checked(members[key], kind, value, name)
    return default


def entry(value: Any, key: str, kind: _Kinds, default: Any = None) -> Any:
    """Return a value of a JSON object like ``member``, but by exactly this key, as Go reads one of a map."""
    value_of_key = None if value is None else _members(value, key).get(key)
    return default if value_of_key is None else _checked(value_of_key, kind, value, key)


def _members(value: Any, name: str) -> dict[str, Any]:
    """Return the object that has a member; raise Malformed if ``value`` is not an object."""
    if not isinstance(value, dict):
        raise Malformed(f"what should hold {name}", f"must be {_KINDS[dict]}")
    return value


def _checked(value: Any, kind: _Kinds, holder: Any, name: str) -> Any:
    """Return a value if it is of a kind, else raise Malformed; ``holder`` is its object or the name of its source."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not _has_kind(value, kinds):
        source = holder if isinstance(holder, str) else getattr(holder, "source", "a JSON object")
        raise Malformed(source, f"{name} must be {' or '.join(_KINDS[item] for item in kinds)}")
    return value


def _has_kind(value: Any, kinds: tuple[type, ...]) -> bool:
    kind = type(value)
    if kind is bool:
        return bool in kinds
    if kind is int:
        return float in kinds or (int in kinds and abs(value) <= MAX_INT64)
    if kind is str:
        return str in kinds and is_text(value)  # JSON can contain a lone surrogate ("\\ud800")
    if kind is list and list not in kinds:
        return Objects in kinds and all(item is None or isinstance(item, dict) for item in value)
    return isinstance(value, kinds)


_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
_LONGEST = 64
_FAR = 2 * _LONGEST
"""An exponent beyond which the value of a text of at most _LONGEST characters is certainly out of range."""
_Ratio = tuple[int, int]
"""A number as a fraction: numerator and denominator."""


def _power(base: int, exponent: int) -> _Ratio:
    return (base**exponent, 1) if exponent >= 0 else (1, base**-exponent)


_SUFFIXES: Mapping[str, _Ratio] = {
    **{suffix: _power(1000, power) for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)},
    **{f"{suffix}i": _power(1024, power) for power, suffix in enumerate("KMGTPE", 1)},
}


def quantity(value: Any, what: str) -> int:
    """Return a Kubernetes quantity, a JSON number or text ("500m", "1e3", "16Gi"), rounded up, away from 0. Raises
    Malformed, naming ``what``, if it is not a quantity or beyond 64 bits."""
    return _rounded_up(_ratio(value, what), 1, what)


def milli(value: Any, what: str) -> int:
    """Return a Kubernetes quantity in thousandths; otherwise like ``quantity``."""
    return _rounded_up(_ratio(value, what), 1000, what)


def _ratio(value: Any, what: str) -> _Ratio:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    matched = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if matched is None:
        raise Malformed(what, f'not a quantity ("500m", "2", "16Gi") of at most {_LONGEST} characters')
    number, exponent, suffix = matched.groups()
    integer, _, decimals = number.partition(".")
    times, parts = _power(10, min(max(int(exponent), -_FAR), _FAR)) if exponent else _SUFFIXES[suffix or ""]
    return int(integer + decimals) * times, 10 ** len(decimals) * parts


def _rounded_up(ratio: _Ratio, times: int, what: str) -> int:
    amount, parts = ratio
    size = -(-abs(amount) * times // parts)
    if size > MAX_INT64:
        raise Malformed(what, "beyond 64 bits: at most 2^63-1")
    return size if amount > 0 else -size


def cpu_shares(milli: int) -> int:
    """Return the CPU shares of a request in milli cores, by the kubelet's formula: 1024 per core, 2 to 262144."""
    return min(max(milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def cpu_quota(milli: int) -> int:
    """Return the CPU quota of a limit in milli cores, in microseconds per PERIOD: at least 1000; -1 for no limit."""
    return min(max(milli * PERIOD // 1000, LEAST_QUOTA), MAX_INT64) if milli > 0 else UNLIMITED
