"""JSON on the wire: parsed as Go's encoding/json does, and rewritten in place. Callers give the names of members.

Invariant: every byte outside a changed value is unchanged (order, white space, escapes, big numbers, letter case of
keys, duplicates that no edit touches), and without a change the result is the very same object (relay-rules B5).
Ambiguous texts are refused, and no error's text contains a value.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol, cast

from runtimeproxy.errors import WireError

Value = int | str | list[str] | dict[str, str]
"""The values that an edit can set."""

Patch = tuple[int, int, str]
"""Start, end, and the replacement."""

_REPEATED = object()
_DECODER_ERRORS = (ValueError, RecursionError, IndexError)
"""The exceptions of Python's decoder: JSONDecodeError, UnicodeError and a number too long are ValueErrors. IndexError
means that the text ended: the code indexes it without checking the length."""


INT64 = range(-(2**63), 2**63)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def fold(key: str) -> str:
    """Return the form of a key in which Go compares it with a struct's field.

    Letter case is ignored, U+017F counts as s, U+212A as k.

    Exact for the ASCII names that Docker has: a key folds to such a name if and only if Go treats it as that name.
    """
    return key.lower() if key.isascii() else key.replace("\u017f", "s").lower()


class Object(tuple[tuple[str, Any], ...]):
    """A JSON object: its members in order, including repeated keys."""

    _folded: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        """Return True: an object without members is a value, too, unlike a zero value of Go."""
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """Return a member as Go fills a field of a struct; null counts as absent. Raises WireError if the key occurs
        twice after folding: Go merges some of such values and replaces others.
        """
        folded = self._folded
        if folded is None:
            folded = self._folded = {}
            for key, member in self:
                key = fold(key)
                folded[key] = _REPEATED if key in folded else member
        value = folded.get(fold(name))
        if value is _REPEATED:
            raise _repeated_key(name)
        return default if value is None else value

    def map(self) -> dict[str, Any]:
        """Return the members as Go fills a map: keys are exact. Raises WireError if a key occurs twice."""
        members = dict(self)
        if len(members) < len(self):
            raise WireError("JSON object that has a key twice")
        return members


Table = Mapping[str, tuple[str, type[Any]]]
"""The members to read: the name of each value, the member's key, and its type, one of those of ``read_members``."""


def read_members(owner: Object, table: Table) -> dict[str, Any]:
    """Return the values of members by the names in ``table``. A member that is missing or null is its type's empty one.

    The types are int (of 64 bits), str, Object, list (of texts), and dict (an object of texts, whose keys are exact).
    Texts are read as Go does. Raises WireError for a value of another type, and if a key occurs twice.
    """
    values: dict[str, Any] = {}
    for name, (key, kind) in table.items():
        desired: type[Any] = Object if kind is dict else kind
        value = owner.get(key)
        if value is None:
            value = kind()
        elif type(value) is not desired:
            raise _wrong_type(key)
        elif kind is str:
            value = value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        elif kind is int and value not in INT64:
            raise WireError(f"JSON document with a number out of range in {key}")
        elif kind is list:
            value = _texts(value, key)
        elif kind is dict:
            labels = value.map()
            value = dict(zip(_texts(labels, key), _texts(labels.values(), key), strict=True))
        values[name] = value
    return values


def _texts(values: Collection[Any], key: str) -> list[str]:
    """Return texts as Go reads them: null is "", and half a surrogate pair U+FFFD. ASCII texts need no conversion."""
    try:
        if all(map(str.isascii, values)):
            return list(values)
    except TypeError:  # a value is no text
        pass
    texts = []
    for value in values:
        text = "" if value is None else value
        if type(text) is not str:
            raise _wrong_type(key)
        texts.append(text if text.isascii() else _SURROGATE.sub("\ufffd", text))
    return texts


def parse(text: bytes) -> Any:
    """Return the value of a JSON text: objects as Object, arrays as list.

    Raises WireError if it is not JSON; also for a byte order mark, bytes that are not UTF-8, NaN and Infinity, anything
    after the value, and numbers and nesting beyond what Python's parser accepts.
    """
    try:
        return _DECODER.decode(text.decode())
    except _DECODER_ERRORS as error:
        raise _not_json(error) from None


def has_more_tokens(text: bytes, limit: int) -> bool:
    """Return whether a text has more strings, commas and opening brackets than ``limit``, without building objects. A
    JSON text has at most one value more than that.
    """
    if len(text) <= limit or len(text) - len(text.translate(None, _TOKENS)) <= limit:
        return False
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = unescaped.translate(None, _NO_TOKENS)
    tokens = _TOKEN(bare if bare.count(b'"') % 2 == 0 else bare[: bare.rindex(b'"')])
    return next(islice(tokens, limit, None), None) is not None


_TOKENS = b'",[{'
_NO_TOKENS = bytes(set(range(256)) - set(_TOKENS))
_TOKEN = re.compile(rb'[,\[{]|"[^"]*+"').finditer
"""Matches the tokens of a text from which everything else, all escapes, and an unfinished last string were removed."""


class Edit(Protocol):
    """Interface of a change of one value."""

    def apply(self, text: str, at: int, patches: list[Patch]) -> int:
        """Called with the value's index: append its patches, in the order of the text; return the index of its end."""

    def new_text(self) -> str:
        """Called where there is no value: return the text of a new one, "" for none."""


def rewrite(text: bytes, edit: Edit) -> bytes:
    """Return the JSON text with its value edited; the same object if nothing changes. Raises WireError where ``parse``
    does, if a value is not of the kind that the edit is for, and if the key of a member to edit occurs twice.
    """
    patches: list[Patch] = []
    try:
        source = text.decode()
        end = edit.apply(source, _space(source, 0).end(), patches)
        if end < len(source) and (end := _space(source, end).end()) < len(source):
            raise json.JSONDecodeError("Extra data", "", end)
        if not patches:
            return text
        # The bytes are copied once, however long the text is.
        view, is_ascii = memoryview(text), source.isascii()
        parts: list[bytes | memoryview] = []
        at = first = 0
        for start, end, replacement in patches:
            retained = first + (start - at if is_ascii else len(source[at:start].encode()))
            parts += view[first:retained], replacement.encode()
            first = retained + (end - start if is_ascii else len(source[start:end].encode()))
            at = end
        parts.append(view[first:])
        return b"".join(parts)
    except _DECODER_ERRORS as error:
        raise _not_json(error) from None


@dataclass(frozen=True, slots=True)
class Put:
    """Replace a value, or add it; an equal one keeps its spelling."""

    value: Value

    def apply(self, text: str, at: int, patches: list[Patch]) -> int:
        """Replace the value unless it is equal."""
        current, end = _scan(text, at)
        if not _equal(current, self.value):
            patches.append((at, end, _text(self.value)))
        return end

    def new_text(self) -> str:
        return _text(self.value)


@dataclass(frozen=True, slots=True)
class Members:
    """Edit members of an object, named as the fields of a Go struct, or, if ``exact``, as the keys of a map. A missing
    member is added after the last one, under the exact name given here; a missing object, or null, is created.
    """

    edits: Mapping[str, Edit]
    exact: bool = False

    def apply(self, text: str, at: int, patches: list[Patch]) -> int:
        """Edit the members that exist, and add the others."""
        if text[at] != "{":
            return _replace_null(self, text, at, patches)
        exact = self.exact
        names = {name if exact else fold(name): name for name in self.edits}
        missing = dict(self.edits)
        last = at + 1
        if text[first := _space(text, last).end()] == "}":
            at = first
        skip_members = None if exact else _member_skipper(frozenset(names))
        while text[at] != "}":  # at the opening bracket or a comma
            if skip_members and (skipped := skip_members(text, at + 1)):
                at = skipped.end() - 1
            key, value = _key(text, at + 1)
            name = names.get(key if exact else fold(key))
            if name is None:
                last = _scan(text, value)[1]
            elif name in missing:
                last = missing.pop(name).apply(text, value, patches)
            else:
                raise _repeated_key(name)
            at = last if text[last] in ",}" else _delimiter(text, last, "}")
        _add(text, last, _member_texts(missing), patches)
        return at + 1

    def new_text(self) -> str:
        """Return an object of the members that can be created."""
        members = _member_texts(self.edits)
        return "{" + ",".join(members) + "}" if members else ""


@dataclass(frozen=True, slots=True)
class Elements:
    """Edit a list of texts: ``changed`` by index, ``added`` after the last one; a missing list, or null, is created.
    An index that the list does not have raises WireError.
    """

    changed: Mapping[int, str]
    added: Sequence[str] = ()

    def apply(self, text: str, at: int, patches: list[Patch]) -> int:
        """Edit the elements that exist, and add the new ones."""
        if text[at] != "[":
            return _replace_null(self, text, at, patches)
        added = [_text(element) for element in self.added]
        if not self.changed:  # in one step, however many there are
            end = _scan(text, at)[1]
            _add(text, len(text[at : end - 1].rstrip(_SPACES)) + at, added, patches)
            return end
        missing = dict(self.changed)
        last, index = at + 1, 0
        if text[first := _space(text, last).end()] == "]":
            at = first
        while text[at] != "]":  # at the opening bracket or a comma
            value = _space(text, at + 1).end()
            changed = missing.pop(index, None)
            last = _scan(text, value)[1] if changed is None else Put(changed).apply(text, value, patches)
            at = _delimiter(text, last, "]")
            index += 1
        if missing:
            raise WireError("JSON list without the element to change")
        _add(text, last, added, patches)
        return at + 1

    def new_text(self) -> str:
        if self.changed:
            raise WireError("JSON list without the element to change")
        return _text(list(self.added)) if self.added else ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Edit a value in a way that depends on it: ``choose`` gets the value, None for null or if there is none."""

    choose: Callable[[Any], Edit]

    def apply(self, text: str, at: int, patches: list[Patch]) -> int:
        """Edit the value by the edit that is chosen for it."""
        return self.choose(_scan(text, at)[0]).apply(text, at, patches)

    def new_text(self) -> str:
        """Return the new text by the edit that is chosen for no value."""
        return self.choose(None).new_text()


# -- changes ---------------------------------------------------------------------------------------------------------


def _equal(current: Any, desired: Value) -> bool:
    """Return whether two JSON values are equal. 1 is neither 1.0 nor true; the order of members is ignored."""
    if isinstance(current, Object):
        members = dict(current)
        return members == desired and len(members) == len(current)
    return type(current) is type(desired) and bool(current == desired)


def _text(value: Value) -> str:
    """Return a value's text in compact form, with the escapes that JSON requires and no others."""
    return str(value) if type(value) is int else _ENCODER.encode(value)


def _member_texts(edits: Mapping[str, Edit]) -> list[str]:
    return [f"{_text(name)}:{value}" for name, edit in edits.items() if (value := edit.new_text())]


def _add(text: str, last: int, items: list[str], patches: list[Patch]) -> None:
    """Add new items after the last one, which ends at ``last``, or after the bracket of an empty object or list."""
    if items:
        first = text[last - 1] in "{["  # no value ends with such a character
        patches.append((last, last, ("" if first else ",") + ",".join(items)))


def _replace_null(edit: Edit, text: str, at: int, patches: list[Patch]) -> int:
    """Replace null by a new object or list; raise WireError for any other value."""
    current, end = _scan(text, at)
    if current is not None:
        raise WireError("JSON value of another kind than Docker's API has there")
    if new_text := edit.new_text():
        patches.append((at, end, new_text))
    return end


# -- positions -------------------------------------------------------------------------------------------------------


_MAX_SKIPPED = 256
"""Most members that one match skips: the regular expression stores a position to backtrack to for each."""


@lru_cache(maxsize=64)
def _member_skipper(names: frozenset[str]) -> Callable[[str, int], re.Match[str] | None]:
    """Return a match function for runs of members with simple keys and values whose names are not in ``names``.

    It skips most of an object in one step. Each member is matched with its comma, so the last member is not skipped.
    The names are those of Docker's API, hence few. Python before 3.11.5 mismatches possessive groups (gh-106052), so
    only single characters are repeated possessively.
    """
    space, text = r"[ \t\n\r]*+", r'[ !#-\[\]-~]*+"'
    value = rf'(?:"{text}|-?(?:0|[1-9][0-9]{{0,18}})|true|false|null)'
    desired = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf'(?:{space}"(?!(?i:{desired})"){text}{space}:{space}{value}{space},){{1,{_MAX_SKIPPED}}}').match


_SPACES = " \t\n\r"
_space = cast(Callable[[str, int], re.Match[str]], re.compile(rf"[{_SPACES}]*").match)
"""Match the white space at an index, which may be none."""


def _key(text: str, at: int) -> tuple[str, int]:
    """Return the key of a member, and the index of its value."""
    at = _space(text, at).end()
    if text[at] != '"':
        raise json.JSONDecodeError("Expecting property name enclosed in double quotes", "", at)
    key, at = _scan(text, at)
    if text[at] != ":":
        at = _space(text, at).end()
    if text[at] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", "", at)
    at += 1
    return key, at if text[at] > " " else _space(text, at).end()


def _delimiter(text: str, at: int, close: str) -> int:
    """Return the index of the comma or closing bracket after an item that ends at ``at``."""
    at = _space(text, at).end()
    if text[at] not in (",", close):
        raise json.JSONDecodeError("Expecting ',' delimiter", "", at)
    return at


# -- Python's decoder and its errors ---------------------------------------------------------------------------------


def _refuse_constant(name: str) -> None:
    raise json.JSONDecodeError("Expecting value", "", 0)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=Object, parse_constant=_refuse_constant)
_scan = _DECODER.raw_decode
"""Return the value at an index and the index of its end."""


def _not_json(error: Exception) -> WireError:
    """Return an error with the problem, without quoting a value."""
    match error:
        case json.JSONDecodeError():
            problem = f"{error.msg} at character {error.pos}"
        case UnicodeError():
            problem = "text that is not Unicode"
        case IndexError():
            problem = "cut short"
        case RecursionError():
            problem = "nested too deeply"
        case _:
            problem = "number of too many digits"
    return WireError(f"body that is not JSON: {problem}")


def _wrong_type(key: str) -> WireError:
    return WireError(f"JSON document with a value of the wrong type in {key}")


def _repeated_key(name: str) -> WireError:
    return WireError(f"JSON object that has the key {name} twice")
