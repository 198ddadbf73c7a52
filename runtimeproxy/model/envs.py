"""The environment variables of a container, kept in the encoding in which they came: few hook servers look into them.

Owns how variables are looked up, changed and compared without decoding all of them.
Must not know: that encoding; the maker of a value supplies the decoder.
Invariant: a value never changes, and equals a dict of the same variables; its ``repr`` shows none of them.
"""

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from types import MappingProxyType
from typing import Final

NO_CHANGES: Mapping[str, str] = MappingProxyType({})


class Envs(Mapping[str, str]):
    """Encoded variables (``raw``), overridden by those that were set since (``changes``).

    ``read`` decodes ``raw``, in which each key stands as its UTF-8. ``found_in`` looks up some keys without decoding;
    iteration decodes all variables once.
    """

    __slots__ = ("_texts", "changes", "raw", "read")

    def __init__(self, raw: bytes, read: Callable[[bytes], Mapping[str, str]], changes: Mapping[str, str]) -> None:
        self.raw: Final = raw
        self.read: Final = read
        self.changes: Final = changes
        self._texts: Mapping[str, str] | None = None

    def __deepcopy__(self, memo: object) -> "Envs":
        """Return the same object: it does not change."""
        return self

    def with_all_of(self, keys: Iterable[str]) -> Mapping[str, str]:
        """Return variables among which are those with one of the keys; decodes nothing if ``raw`` has none of them."""
        for key in keys:
            if key.encode(errors="surrogatepass") in self.raw:
                return self.decoded()
        return self.changes

    def decoded(self) -> dict[str, str]:
        """Return all variables, decoded anew and not kept: for readers of many values, once each."""
        return {**self.read(self.raw), **self.changes}

    def __bool__(self) -> bool:
        return bool(self.raw or self.changes)

    def __eq__(self, other: object) -> bool:
        """Compare with another mapping; if ``raw`` is equal, only the variables set since are compared."""
        if isinstance(other, Envs):
            if self.raw == other.raw:
                keys = self.changes.keys() | other.changes.keys()
                return self.with_all_of(keys) == other.with_all_of(keys)
            other = other.decoded()
        return self.decoded() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        """Return the number of bytes and changes; no variable is shown."""
        return f"Envs({len(self.raw)} bytes, {len(self.changes)} changes)"

    # Methods of a mapping, which decode all variables.

    def _read(self) -> Mapping[str, str]:
        if self._texts is None:
            self._texts = MappingProxyType(self.decoded())
        return self._texts

    def __getitem__(self, key: str) -> str:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def keys(self) -> KeysView[str]:
        return self._read().keys()

    def values(self) -> ValuesView[str]:
        return self._read().values()

    def items(self) -> ItemsView[str, str]:
        return self._read().items()


def found_in(envs: Mapping[str, str], keys: Iterable[str]) -> Mapping[str, str]:
    """Return variables among which are those of ``envs`` with one of the keys."""
    return envs.with_all_of(keys) if type(envs) is Envs else envs


def changed(envs: Mapping[str, str], changes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with ``changes`` set."""
    if type(envs) is Envs:
        return Envs(envs.raw, envs.read, {**envs.changes, **changes})
    return {**envs, **changes}
