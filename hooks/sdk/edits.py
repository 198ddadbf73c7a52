"""Maps and resources that a hook edits, which record the changes.

Invariant: an edit that the protocol cannot express, or that breaks a rule of the proxy, raises NotSayable immediately
and changes nothing. Setting the value that was sent is never refused, even if the kubelet's value is odd.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, Never, TypeGuard, TypeVar

from runtimeproxy.model.fields import (
    MAP_FIELDS,
    NO_RESOURCES,
    NUMBER_FIELDS,
    RESOURCE_FIELDS,
    ROWS,
    TEXT_FIELDS,
    Resources,
    is_echo,
    normal_form,
)
from runtimeproxy.model.merge import env_rule, key_rule

from .errors import NotSayable

V = TypeVar("V", int, str)


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text with a UTF-8 form: a text with lone surrogates would be lost in encoding."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Sealed:
    """Refuses to replace or add attributes: such an edit would have no effect. The ``__init__`` of a subclass ends with
    ``self._sealed = True``; names that begin with "_" can be set."""

    _assignable: ClassVar[frozenset[str]] = frozenset()
    """The attributes that have a setter."""
    _sealed = False

    def __setattr__(self, name: str, value: Never) -> None:  # Never makes type checkers refuse unknown names
        if self._sealed and not name.startswith("_") and name not in self._assignable:
            names = ", ".join(sorted(self._assignable))
            raise NotSayable(f"{name} cannot be assigned; {names} can, and maps entry by entry: env[KEY] = VALUE")
        object.__setattr__(self, name, value)  # faster than super(): every call sets some 25 attributes


# -- maps ------------------------------------------------------------------------------------------------------------


_VALUES: Mapping[type, tuple[Callable[[object], bool], str]] = {
    int: (lambda value: isinstance(value, int) and 0 <= value < 2**64, "a whole number from 0 to 2**64 - 1"),
    str: (is_text, "a text in UTF-8"),
}


class Entries(MutableMapping[str, V], Generic[V]):
    """A map whose keys can be read and set; ``fixed`` is why no key can be set, "" if keys can."""

    def __init__(self, sent: Mapping[str, V], kind: type[V], name: str, fixed: str = "") -> None:
        self._sent: Mapping[str, V] = sent
        self._kind: type[V] = kind
        self._name = name
        self._fixed = fixed
        self.set_entries: dict[str, V] = {}
        """The entries that were set, even to the value that was sent."""

    def __getitem__(self, key: str) -> V:
        return self.set_entries[key] if key in self.set_entries else self._sent[key]

    def __setitem__(self, key: str, value: V) -> None:
        as_sent = isinstance(key, str) and key in self._sent and self._sent[key] == value
        if why := self._fixed or ("" if as_sent else self._refusal(key, value)):
            raise NotSayable(f"{self._name}: {why}")
        self.set_entries[key] = self._sent[key] if as_sent else value

    def _refusal(self, key: object, value: object) -> str:
        """Return why an entry cannot be set; "" if it can."""
        if not is_text(key):
            return "a key must be a text in UTF-8"
        holds, rule = _VALUES[self._kind]
        return key_rule(key) or ("" if holds(value) else f"the value of {key} must be {rule}")

    def __delitem__(self, key: str) -> None:
        raise NotSayable(f"{self._name}: {self._fixed or 'a hook server can set a key, but not delete one'}")

    def __iter__(self) -> Iterator[str]:
        yield from self._sent
        yield from (key for key in self.set_entries if key not in self._sent)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def value(self) -> dict[str, V]:
        """Return all entries, including those that were set; faster than ``dict`` of the map."""
        return {**self._sent, **self.set_entries}

    def __repr__(self) -> str:
        return f"<{self._name}: {len(self)} entries>"  # never the values: they may be secret


class Environment(Entries[str]):
    def _refusal(self, key: object, value: object) -> str:
        return (env_rule(key, value) if isinstance(key, str) else "") or super()._refusal(key, value)


# -- resources -------------------------------------------------------------------------------------------------------


_INT64 = range(-(2**63), 2**63)


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0 and value in _INT64


def _number_refusal(name: str, sent: Resources, value: object) -> str:
    row = ROWS[name]
    if _is_number(value) and (value == getattr(sent, name) or row.is_valid(normal_form(name, value))):
        return ""
    return f"must be a whole number, {row.rule}; 0 and None mean 'not set' and can only be read"


def _cpuset_refusal(name: str, sent: Resources, value: object) -> str:
    if not isinstance(value, str):
        return "must be a text; None means 'not set' and can only be read, \"\" clears it"
    if value == getattr(sent, name):
        return ""
    if value:
        row = ROWS[name]
        return "" if (tidied := normal_form(name, value)) and row.is_valid(tidied) else f"must be {row.rule}"
    # "" clears only in an echo, which the proxy recognises by the numbers that were sent. The answer has all of them,
    # for a number cannot be unset; but if none was sent the cpuset would stay.
    if any(getattr(sent, number) for number in NUMBER_FIELDS):
        return ""
    return "cannot be cleared where the request has no number: \"\" means 'not set' there; name all the CPUs instead"


_REFUSALS: Mapping[str, Callable[[str, Resources, object], str]] = {
    **dict.fromkeys(NUMBER_FIELDS, _number_refusal),
    **dict.fromkeys(TEXT_FIELDS, _cpuset_refusal),
}
"""Functions that return why a field cannot be set to a value; "" if it can."""


def _update_refusal(name: str, sent: Resources, value: int | str, alone: bool) -> str:
    """Return why an update cannot change a field to a value; "" if it can. A cpuset that the kubelet's update sets can
    be cleared in it; an update ``alone``, of the proxy itself, sets none."""
    if value == getattr(sent, name):
        return ""
    if not ROWS[name].in_updates:
        return "no runtime changes it once the container exists: set it at PreCreateContainer"
    if value == "" and alone:
        return "no runtime clears it once the container exists: clear it at PreCreateContainer, or name all the CPUs"
    return ""


class _Field(Generic[V]):
    """A number or a cpuset of EditableResources; None if it is not set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, resources: "EditableResources", owner: object = None) -> V | None:
        return resources.get(self._name)  # type: ignore[return-value]

    def __set__(self, resources: "EditableResources", value: V) -> None:
        resources.set(self._name, value)


class EditableResources(Sealed):
    """LinuxContainerResources; ``fixed`` is why no field can be set, "" if fields can.

    ``update``: the runtime gets them in an update, which can express less than a create. ``alone``: that update has no
    values of the kubelet. In the kubelet's own update, a repeated value withdraws this server's earlier change of it,
    so that answer contains only fields that were set.
    """

    _assignable = frozenset(_REFUSALS)

    def __init__(self, sent: Resources | None, fixed: str = "", *, update: bool = False, alone: bool = False) -> None:
        self.sent = sent
        self._fixed = fixed
        self._update = update
        self._alone = alone
        self._repeating_counts = update and not alone
        self._before = sent or NO_RESOURCES
        self._set: dict[str, int | str] = {}
        self._sealed = True

    # Created at the first access, which is rare, while every call has two of these objects.

    @cached_property
    def hugepage_limits(self) -> MutableMapping[str, int]:
        """Bytes by page size ("2MB")."""
        return Entries(self._before.hugepage_limits, int, "hugepage_limits", self._fixed)

    @cached_property
    def unified(self) -> MutableMapping[str, str]:
        """Values of cgroup v2 files by name."""
        return Entries(self._before.unified, str, "unified", self._fixed)

    cpu_period = _Field[int]()
    """Microseconds."""
    cpu_quota = _Field[int]()
    """Microseconds per period, -1 for unlimited."""
    cpu_shares = _Field[int]()
    """Relative weight."""
    memory_limit_in_bytes = _Field[int]()
    """Bytes, -1 for unlimited."""
    memory_swap_limit_in_bytes = _Field[int]()
    """Bytes of memory and swap together, -1 for unlimited."""
    oom_score_adj = _Field[int]()
    """-1000 to 1000."""
    cpuset_cpus = _Field[str]()
    """CPUs ("0-3,8"); "" clears it."""
    cpuset_mems = _Field[str]()
    """Memory nodes ("0-1"); "" clears it."""

    def get(self, name: str) -> int | str | None:
        """Return a number or a cpuset by its name; None if it is not set."""
        return (self._set[name] if name in self._set else getattr(self._before, name)) or None

    def set(self, name: str, value: int | str) -> None:
        """Set a number or a cpuset by its name. Raises NotSayable if that cannot be expressed or would be refused."""
        if name not in _REFUSALS:
            raise NotSayable(f"{name}: no such field; there are {', '.join(_REFUSALS)}")
        why = self._fixed or _REFUSALS[name](name, self._before, value)
        if not why and self._update:
            why = _update_refusal(name, self._before, value, self._alone)
        if why:
            raise NotSayable(f"{name}: {why}")
        if value or getattr(self._before, name):
            self._set[name] = value if value == getattr(self._before, name) else normal_form(name, value)
        else:  # it clears a cpuset that a hook of this server has set
            self._set.pop(name, None)

    @property
    def value(self) -> Resources:
        """Return all fields, including those that were set."""
        maps = {name: map_.value for name, map_ in vars(self).items() if name in MAP_FIELDS}
        if not self._set and not maps:
            return self._before
        sent = {name: getattr(self._before, name) for name in RESOURCE_FIELDS}
        return Resources(**sent | self._set | maps)

    @property
    def answer(self) -> Resources | None:
        """Return the message for the answer: None if no field was set, else an echo; in an update only fields that were
        set. Only an echo clears a cpuset, in an update too."""
        set_entries = self._set | {
            name: map_.set_entries for name, map_ in vars(self).items() if name in MAP_FIELDS and map_.set_entries
        }
        if not set_entries:
            return None
        if not self._repeating_counts or "" in self._set.values():
            return self.value
        answer = Resources(**set_entries)
        if is_echo(self._before, answer):  # all numbers are set, so it is an echo: keep the cpusets
            return replace(answer, **{name: set_entries.get(name, getattr(self._before, name)) for name in TEXT_FIELDS})
        return answer

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name in _REFUSALS if (value := self.get(name)) is not None)
        return f"<resources: {fields or 'nothing set'}>"
