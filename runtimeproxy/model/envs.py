"""The variables of a container in the form in which they came: hardly anybody looks into them.

Owns how variables are looked up, changed and compared without making texts of all of them.
Must not know: that form; who makes a value says how it is read.
Invariant: a value never changes, and equals a dict of the same variables; its ``repr`` shows none of them.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from types import MappingProxyType
from typing import Final

NO_CHANGES: Mapping[str, str] = MappingProxyType({})


class Envs(Mapping[str, str]):
    """Variables as they came (``raw``), under those that were set since (``changes``).

    ``read`` makes texts of ``raw``, in which each key stands as its UTF-8. Who looks for some keys asks ``found_in``;
    for whoever goes through all of them they are read once.
    """

    __slots__ = ("_texts", "changes", "raw", "read")

    def __init__(self, raw: bytes, read: Callable[[bytes], Mapping[str, str]], changes: Mapping[str, str]) -> None:
        self.raw: Final = raw
        self.read: Final = read
        self.changes: Final = changes
        self._texts: Mapping[str, str] | None = None

    def __deepcopy__(self, memo: object) -> "Envs":
        """Return the same: it does not change."""
        return self

    def with_all_of(self, keys: Iterable[str]) -> Mapping[str, str]:
        """Return variables among which are those with one of the keys; if none can have come with, nothing is read."""
        for key in keys:
            if key.encode(errors="surrogatepass") in self.raw:
                return self._all()
        return self.changes

    def _all(self) -> dict[str, str]:
        return {**self.read(self.raw), **self.changes}

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self.raw or self.changes)

    def __eq__(self, other: object) -> bool:
        """Compare; of variables that came alike only what was set since."""
        if isinstance(other, Envs):
            if self.raw == other.raw:
                keys = self.changes.keys() | other.changes.keys()
                return self.with_all_of(keys) == other.with_all_of(keys)
            other = other._all()
        return self._all() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        """Tell how much there is."""
        return f"Envs({len(self.raw)} bytes, {len(self.changes)} changes)"

    # As any mapping, for who looks at all of them.

    def _read(self) -> Mapping[str, str]:
        if self._texts is None:
            self._texts = MappingProxyType(self._all())
        return self._texts

    def __getitem__(self, key: str) -> str:
        """Return a value."""
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        """Go through the keys."""
        return iter(self._read())

    def __len__(self) -> int:
        """Count them."""
        return len(self._read())

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self._read().keys()

    def values(self) -> ValuesView[str]:
        """Return the values."""
        return self._read().values()

    def items(self) -> ItemsView[str, str]:
        """Return keys with values."""
        return self._read().items()


def found_in(envs: Mapping[str, str], keys: Iterable[str]) -> Mapping[str, str]:
    """Return variables among which are those of ``envs`` with one of the keys."""
    return envs.with_all_of(keys) if type(envs) is Envs else envs


def changed(envs: Mapping[str, str], changes: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables with changes set."""
    if type(envs) is Envs:
        return Envs(envs.raw, envs.read, {**envs.changes, **changes})
    return {**envs, **changes}
