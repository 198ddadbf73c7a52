"""The JSON editor against a simple model on the stdlib's parser: any document, any edits, any damage."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire.json import Edit, Elements, Members, Object, Put, fold, parse, rewrite
from tests.amounts import examples
from tests.wire.test_json import KELVIN, LONG_S, plain

pytestmark = pytest.mark.slow

SPACE = st.text(" \t\n\r", max_size=2)
KEYS = st.sampled_from(["a", "A", "b", "k", "K", KELVIN, "s", LONG_S, "ab", "é", "", '"', "\\", "\n"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["}", "]", ",", '":', "\u2028"])
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@st.composite
def spelt_texts(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> str:
    """Spell a text in one of the ways in which JSON can."""
    text = draw(texts)
    return json.dumps(text, ensure_ascii=draw(st.booleans()))


@st.composite
def spelt_objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    count = draw(st.integers(0, 5))
    parts = [
        f"{draw(SPACE)}{draw(spelt_texts(KEYS))}{draw(SPACE)}:{draw(SPACE)}{draw(values)}{draw(SPACE)}"
        for _ in range(count)
    ]
    return "{" + (",".join(parts) or draw(SPACE)) + "}"


@st.composite
def spelt_lists(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    parts = [f"{draw(SPACE)}{value}{draw(SPACE)}" for value in draw(st.lists(values, max_size=3))]
    return "[" + (",".join(parts) or draw(SPACE)) + "]"


SCALARS = NUMBERS | spelt_texts() | st.sampled_from(["null", "true", "false"])
VALUES = st.recursive(SCALARS, lambda inner: spelt_objects(inner) | spelt_lists(inner), max_leaves=8)

PUTS = st.builds(Put, st.integers(-(2**63), 2**63) | TEXTS | st.booleans() | st.lists(TEXTS, max_size=2))
ELEMENTS = st.builds(
    Elements, st.dictionaries(st.integers(0, 2), TEXTS, max_size=2), st.lists(TEXTS, max_size=2).map(tuple)
)


def members_edits(inner: st.SearchStrategy[Edit]) -> st.SearchStrategy[Members]:
    names = st.dictionaries(KEYS, inner, max_size=3).filter(
        lambda edits: len({fold(key) for key in edits}) == len(edits)
    )
    return st.builds(Members, names, st.booleans())


EDITS: st.SearchStrategy[Edit] = st.recursive(PUTS | ELEMENTS, members_edits, max_leaves=5)


ABSENT = object()


@dataclass
class Model:
    """An object in the simple model; its repr tells it from a list, as repr tells 1, 1.0 and True apart."""

    members: list[tuple[str, Any]]


def model(text: str) -> Any:
    return json.loads(text, object_pairs_hook=Model)


def after(value: Any, edit: Edit) -> Any:
    """Return what an edit makes of a value of the model. Raises WireError."""
    match edit:
        case Put():
            return edit.value
        case Elements():
            return list_after(value, edit)
        case Members():
            return members_after(value, edit)
    raise AssertionError(edit)


def list_after(value: Any, edit: Elements) -> Any:
    elements = [] if value is ABSENT or value is None else value
    if not isinstance(elements, list) or any(index >= len(elements) for index in edit.changed):
        raise WireError("not for this edit")
    if value is not elements and not edit.added:
        return value
    return [edit.changed.get(index, element) for index, element in enumerate(elements)] + list(edit.added)


def members_after(value: Any, edit: Members) -> Any:
    members = [] if value is ABSENT or value is None else value.members if isinstance(value, Model) else None
    if members is None:
        raise WireError("not for this edit")
    edits = {name if edit.exact else fold(name): (name, inner) for name, inner in edit.edits.items()}
    result: list[tuple[str, Any]] = []
    for key, member in members:
        name = key if edit.exact else fold(key)
        if name in edits:
            member = after(member, edits.pop(name)[1])
        elif any(name == (other if edit.exact else fold(other)) for other in edit.edits):
            raise WireError("twice")
        result.append((key, member))
    result += [(name, made) for name, inner in edits.values() if (made := after(ABSENT, inner)) is not ABSENT]
    return value if not result and not isinstance(value, Model) else Model(result)


def expected(text: str, edit: Edit) -> str | None:
    """Return the repr of what an edit makes of a text, None if it does not fit."""
    try:
        return repr(after(model(text), edit))
    except WireError:
        return None


@settings(deadline=None, max_examples=examples(500))
@given(VALUES, EDITS)
@example('{"a":1,"k":2,"K":3}', Members({"k": Put(1)}))
def test_any_document_and_edit(text: str, edit: Edit) -> None:
    wanted = expected(text, edit)
    encoded = text.encode()
    if wanted is None:
        with pytest.raises(WireError):
            rewrite(encoded, edit)
        return
    result = rewrite(encoded, edit)
    assert repr(model(result.decode())) == wanted
    assert (result is encoded) == (repr(model(text)) == wanted)
    assert plain(parse(result)) == plain(json.loads(result, object_pairs_hook=Object))


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.booleans())
def test_every_byte_outside_a_changed_value_stays(data: st.DataObject, exact: bool) -> None:
    names = data.draw(st.lists(KEYS, max_size=4, unique_by=fold))
    puts = {
        name: data.draw(st.integers(-9, 9) | TEXTS)
        for name in data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    }
    before, wanted = "", ""
    for index, name in enumerate(names):
        head = data.draw(SPACE) + data.draw(spelt_texts(st.just(name))) + data.draw(SPACE) + ":" + data.draw(SPACE)
        head, value, tail = ("," if index else "") + head, data.draw(VALUES), data.draw(SPACE)
        changed = name in puts and repr(model(value)) != repr(puts[name])
        before += head + value + tail
        wanted += head + (json.dumps(puts[name], ensure_ascii=False) if changed else value) + tail
    around = [
        data.draw(SPACE) + '{"twice":1,"x":[]' + data.draw(SPACE) + ',"Twice":{"o":1},"o":',
        ',"y":1.50}' + data.draw(SPACE),
    ]
    edit = Members({"o": Members({name: Put(value) for name, value in puts.items()}, exact)})
    assert rewrite(f"{{{before}}}".join(around).encode(), edit).decode() == f"{{{wanted}}}".join(around)


@settings(deadline=None)
@given(VALUES, SPACE)
def test_any_document_is_read_as_the_stdlib_reads_it(text: str, space: str) -> None:
    value = parse((space + text + space).encode())
    assert plain(value) == plain(json.loads(text, object_pairs_hook=Object))
    if isinstance(value, Object) and len({key for key, _ in value.members}) == len(value.members):
        assert plain(list(value.map().values())) == plain([member for _, member in value.members])


@settings(deadline=None)
@given(VALUES, st.integers(0, 60), st.binary(max_size=2), EDITS)
def test_damaged_texts_raise_nothing_else(text: str, at: int, damage: bytes, edit: Edit) -> None:
    encoded = text.encode()
    damaged = encoded[:at] + damage + encoded[at + 1 :]
    try:
        plain(parse(damaged))
        readable = True
    except WireError:
        readable = False
    try:
        parse(rewrite(damaged, edit))
    except WireError:
        return
    assert readable
