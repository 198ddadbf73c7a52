"""The JSON editor; the stdlib's parser is the oracle of what a text means."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire.json import (
    Chosen,
    Edit,
    Elements,
    Members,
    Object,
    Put,
    fold,
    has_more_tokens,
    parse,
    read_members,
    rewrite,
)
from tests.amounts import examples

LONG_S, KELVIN = "\u017f", "\u212a"


def plain(value: Any) -> Any:
    """Return a value with its objects as lists of members, which == can compare."""
    if isinstance(value, Object):
        return [(key, plain(member)) for key, member in value]
    return [plain(element) for element in value] if isinstance(value, list) else value


FOLDED = {"CpuShares": "cpushares", f"CpuShare{LONG_S}": "cpushares", f"{KELVIN}ernelMemory": "kernelmemory"}


@pytest.mark.parametrize(("key", "folded"), [*FOLDED.items(), ("MEMORY", "memory"), ("", ""), ("a.B-c", "a.b-c")])
def test_fold(key: str, folded: str) -> None:
    assert fold(key) == folded


def test_only_two_other_characters_fold_to_ascii_letters() -> None:
    others = [chr(code) for code in range(128, 0x110000)]
    folded = fold("\0".join(others)).split("\0")  # each by itself would take a second
    twins = {character for character, to in zip(others, folded, strict=True) if to.isascii()}
    assert twins == {LONG_S, KELVIN}


def test_get_folds_keys_and_map_does_not() -> None:
    value = parse(b'{"a": 1, "B": [true, null, 1.5], "c": null, "k": {"x": "\\u00e9"}}')
    assert [value.get(key) for key in ("A", "b", "c")] == [1, [True, None, 1.5], None]
    assert plain(value.get(KELVIN)) == [("x", "é")]
    assert (value.get("C", 7), value.get("d", "no")) == (7, "no")
    assert parse(b'{"a": 1, "A": null}').map() == {"a": 1, "A": None}
    with pytest.raises(WireError, match="twice"):
        parse(b'{"a": 1, "b": 2, "\\u0061": 1}').map()


@pytest.mark.parametrize("twin", ["Cpus", "cPUS", f"cpu{LONG_S}", "\\u0063pus"])
def test_key_that_is_twice_after_folding_cannot_be_read(twin: str) -> None:
    value = parse(f'{{"Cpus": 1, "other": 2, "{twin}": null}}'.encode())
    assert value.get("other") == 2
    with pytest.raises(WireError, match="the key CPUS twice"):
        value.get("CPUS")


READ: list[tuple[type, str, object]] = [
    *((int, str(number), number) for number in (7, -(2**63), 2**63 - 1)),
    *((str, '"a"', "a"), (str, '"\\ud800\u00e9"', "\ufffd\u00e9"), (str, '""', "")),
    *((list, '["a", "b"]', ["a", "b"]), (list, '[null, "\\udfff"]', ["", "\ufffd"]), (list, "[]", [])),
    *((dict, '{"k": "a", "K": null}', {"k": "a", "K": ""}), (dict, '{"\\ud800": "a"}', {"\ufffd": "a"})),
    *((Object, '{"k": 1}', Object([("k", 1)])), (Object, "{}", Object())),
    *((kind, "null", kind()) for kind in (int, str, list, dict, Object)),
]


@pytest.mark.parametrize(("kind", "text", "expected"), READ)
def test_members_are_read_by_their_types(kind: type, text: str, expected: object) -> None:
    owner = parse(f'{{"other": true, "MEMBER": {text}}}'.encode())
    read = read_members(owner, {"value": ("Member", kind), "missing": ("Missing", kind)})
    assert read == {"value": expected, "missing": kind()}
    assert type(read["value"]) is kind


UNFIT = [
    (int, "true"),
    (int, "1.0"),
    (int, str(2**63)),
    (int, str(-(2**63) - 1)),
    (str, "5"),
    (list, "{}"),
    (list, "[5]"),
]
UNFIT += [(list, "[[]]"), (dict, "[]"), (dict, '{"k": 5}'), (dict, '{"k": "a", "k": "b"}'), (Object, "[]")]


@pytest.mark.parametrize(("kind", "text"), UNFIT)
def test_member_of_another_type_cannot_be_read(kind: type, text: str) -> None:
    with pytest.raises(WireError, match=r"wrong type in Member|out of range in Member|a key twice"):
        read_members(parse(f'{{"Member": {text}}}'.encode()), {"value": ("Member", kind)})


@pytest.mark.parametrize("before", ["{}", '{"l": [ ]}', '{"l": ["a"]}', '{"l": null}'])
def test_element_to_change_must_exist(before: str) -> None:
    assert parse(before.encode()), "an object without members is a value, too"
    with pytest.raises(WireError, match="without the element"):
        rewrite(before.encode(), Members({"l": Elements({1: "b"})}))


BROKEN = [
    *((text, "Expecting value at character 0") for text in (b"", b"\xef\xbb\xbf{}")),
    (b"  ", "Expecting value at character 2"),
    *((text, "not Unicode") for text in (b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16"))),
    *((text, "Expecting value") for text in (b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a":')),
    *((text, "Expecting value") for text in (b'{"a":}', b'{"a":+1}', b'{"a":tru}', b'{"a":\x0b1}')),
    (b'{"a":\xc2\xa01}', "Expecting value"),
    (b'{"a": 1} x', "Extra data at character 9"),
    *((text, "Extra data") for text in (b"{}{}", b"{}\0")),
    *((text, "property name") for text in (b"{", b'{"a":1,', b"{,}", b"{1:2}")),
    (b'{"a":1,}', "(property name|trailing comma)"),  # the second one from Python 3.13 on
    (b'{"a', "Unterminated string"),
    *((text, "Expecting ':' delimiter") for text in (b'{"a"', b'{"a" 1}')),
    *((text, "Expecting ',' delimiter") for text in (b'{"a":1', b'{"a":1]', b'{"a":1 "b":2}', b'{"a":01}')),
    (b'{"a":1.}', "Expecting ',' delimiter"),
    *((text, "control character") for text in (b'{"a":"\n"}', b'{"a\t":1}')),
    *((text, "escape") for text in (b'{"a":"\\x"}', b'{"a":"\\u12"}')),
    (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
    (b'{"a":' + b'{"a":' * 100_000, "too deeply"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_broken_text_is_neither_read_nor_rewritten(text: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=f"not JSON: .*{problem}"):
        parse(text)
    for edits in ({}, {"b": Put(1)}, {"a": Put(1)}):
        for exact in (False, True):
            with pytest.raises(WireError, match="not JSON"):
                rewrite(text, Members(edits, exact))


SECRETS = ['{"Env":["s3cret"],}', '{"Env":["s3cret]}', '{"Env":"s3cret"}', '{"Env":[],"s3cret":\\}', '{"Env":[s3cret]}']


@pytest.mark.parametrize("text", SECRETS)
def test_errors_hold_no_value(text: str) -> None:
    with pytest.raises(WireError) as caught:
        rewrite(text.encode(), Members({"env": Elements({})}))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


TOKENS = [("[" + "[]," * 50 + "0]", 101), ('{"a": [' + '"",' * 50 + "{}]}", 104), ('["' + ",[{" * 50 + '"]', 2)]
TOKENS += [(r'["\",\\", 1, "' + "\n" + r'"    ]', 5), (f'{{"{LONG_S}": "{KELVIN}"}}          ', 3), ("[[[[[", 5)]
TOKENS += [("[" + "1," * 50, 51), ("[" + " " * 50, 1), ('["' + "," * 50, 1), (r'["' + r"\," * 50 + "\\", 1)]


@pytest.mark.parametrize(("text", "tokens"), TOKENS)
def test_tokens_are_counted_outside_of_strings(text: str, tokens: int) -> None:
    assert not has_more_tokens(text.encode(), tokens)
    assert has_more_tokens(text.encode(), tokens - 1)


@pytest.mark.parametrize("edit", [Members({"\ud800": Put(1)}), Members({"a": Put("\udfff")})])
def test_half_a_surrogate_pair_is_never_written(edit: Edit) -> None:
    with pytest.raises(WireError, match="not Unicode"):
        rewrite(b'{"a": "\\ud800"}', edit)


SOME = Members({"Memory": Put(7), "Cpus": Put("0-3")})
EXACT = Members({"K": Put("1")}, exact=True)
DOUBLED = Members({"n": Chosen(lambda found: Put(1 if found is None else 2 * found))})
SPELT, ESCAPED = 'é\u2028\u2029\U0001f600/<>&\x7f"\\\n\t\x01', 'é\u2028\u2029\U0001f600/<>&\x7f\\"\\\\\\n\\t\\u0001'
"""New text is UTF-8, with only the required escapes."""
WHOLE = ' {"n":1, "S":"\\u0078","l":["y"],"o":{"p":"q"},"a":null} '

EDITED: list[tuple[str, Edit, str]] = [
    (" -1\n", Put(-2), " -2\n"),
    ("9" * 400, Put(9223372036854775807), "9223372036854775807"),
    ('["a"]', Put(["a", "b"]), '["a","b"]'),
    ('{"a": "1", "a": "2"}', Put({"a": "2"}), '{"a":"2"}'),
    ('{"b": "2", "a": "1"}', Put({"a": "1", "b": "2"}), '{"b": "2", "a": "1"}'),
    (' "\\u00e9\\/" ', Put("é/"), ' "\\u00e9\\/" '),
    *(("[]", Put({}), "{}"), ("{}", Put([]), "[]")),
    ("{}", Members({"é": Put(SPELT)}), f'{{"é":"{ESCAPED}"}}'),
    ("[]", Elements({}, [SPELT]), f'["{ESCAPED}"]'),
    ("{}", SOME, '{"Memory":7,"Cpus":"0-3"}'),
    (" { } ", SOME, ' {"Memory":7,"Cpus":"0-3" } '),
    ("null", SOME, '{"Memory":7,"Cpus":"0-3"}'),
    ('{\n  "x": {}\n}', SOME, '{\n  "x": {},"Memory":7,"Cpus":"0-3"\n}'),
    ('{"x":[] }', SOME, '{"x":[],"Memory":7,"Cpus":"0-3" }'),
    ('{"x":"{"}', SOME, '{"x":"{","Memory":7,"Cpus":"0-3"}'),
    ('{ "memory" : 0 , "CPUS" : null , "z" : 1 }', SOME, '{ "memory" : 7 , "CPUS" : "0-3" , "z" : 1 }'),
    (f'{{"Cpu{LONG_S}":"1","\\u006demory":1}}', SOME, f'{{"Cpu{LONG_S}":"0-3","\\u006demory":7}}'),
    ('{"x":{"Memory":1},"y":["Cpus"]}', SOME, '{"x":{"Memory":1},"y":["Cpus"],"Memory":7,"Cpus":"0-3"}'),
    ('{"x":1,"X":2,"x":3,"Memory":[{}],"Cpus":1e5}', SOME, '{"x":1,"X":2,"x":3,"Memory":7,"Cpus":"0-3"}'),
    (f'{{"a":{"9" * 100},"b":-0.5E+3,"Memory":1}}', SOME, f'{{"a":{"9" * 100},"b":-0.5E+3,"Memory":7,"Cpus":"0-3"}}'),
    ('{"K":"a","k":"b"}', EXACT, '{"K":"1","k":"b"}'),
    (f'{{"k":"a","{KELVIN}":"b"}}', EXACT, f'{{"k":"a","{KELVIN}":"b","K":"1"}}'),
    ('{"x": 1, "n": 5}', DOUBLED, '{"x": 1, "n": 10}'),
    *(('{"n": 0}', DOUBLED, '{"n": 0}'), ('{"n": null}', DOUBLED, '{"n": 1}'), ("{}", DOUBLED, '{"n":1}')),
    (WHOLE, Members({}), WHOLE),
    (WHOLE, Members({"Labels": Members({}, exact=True), "Env": Elements({})}), WHOLE),
    (WHOLE, Members({"a": Members({}), "b": Members({"c": Members({})})}), WHOLE),
    (WHOLE, Members({"n": Put(1), "s": Put("x"), "l": Elements({0: "y"}), "o": Members({"p": Put("q")})}), WHOLE),
]


@pytest.mark.parametrize(("before", "edit", "after"), EDITED)
def test_edit(before: str, edit: Edit, after: str) -> None:
    """What changes nothing gives the same object."""
    text = before.encode()
    result = rewrite(text, edit)
    assert result.decode() == after
    assert (result is text) == (after == before)
    json.loads(result)


@pytest.mark.parametrize("twin", ["Memory", "MEMORY", "\\u004demory"])
@pytest.mark.parametrize("between", ["", '"x":1,', '"x":{},'])
def test_key_to_edit_must_not_be_there_twice(twin: str, between: str) -> None:
    text = f'{{"Memory":7,{between}"{twin}":7}}'.encode()
    with pytest.raises(WireError, match="the key Memory twice"):
        rewrite(text, Members({"Memory": Put(7)}))
    if twin != "MEMORY":
        with pytest.raises(WireError, match="the key Memory twice"):
            rewrite(text, Members({"Memory": Put(7)}, exact=True))
    assert rewrite(text, Members({"y": Put(1)})) == text[:-1] + b',"y":1}'


SPACE = st.text(" \t\n\r", max_size=2)
KEYS = st.sampled_from(["a", "A", "b", "k", "K", KELVIN, "s", LONG_S, "ab", "é", "", '"', "\\", "\n"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["}", "]", ",", '":', "\u2028"])
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@st.composite
def spelt_texts(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> str:
    """Return a text in one of the spellings that JSON allows."""
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
    """An object in the simple model; its repr distinguishes it from a list, as repr distinguishes 1, 1.0 and True."""

    members: list[tuple[str, Any]]


def model(text: str) -> Any:
    return json.loads(text, object_pairs_hook=Model)


def after(value: Any, edit: Edit) -> Any:
    """Return the result of an edit of a value in the model. Raises WireError."""
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
    """Return the repr of the result of an edit of a text; None if the edit does not fit."""
    try:
        return repr(after(model(text), edit))
    except WireError:
        return None


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(VALUES, EDITS)
@example('{"a":1,"k":2,"K":3}', Members({"k": Put(1)}))
def test_document_is_read_and_edited_as_in_the_model(text: str, edit: Edit) -> None:
    desired, encoded = expected(text, edit), text.encode()
    value = parse(encoded)
    assert plain(value) == plain(json.loads(text, object_pairs_hook=Object))
    if isinstance(value, Object) and len({key for key, _ in value}) == len(value):
        assert plain(list(value.map().values())) == plain([member for _, member in value])
    if desired is None:
        with pytest.raises(WireError):
            rewrite(encoded, edit)
        return
    result = rewrite(encoded, edit)
    assert repr(model(result.decode())) == desired
    assert (result is encoded) == (repr(model(text)) == desired)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.data(), st.booleans())
def test_every_byte_outside_a_changed_value_stays(data: st.DataObject, exact: bool) -> None:
    names = data.draw(st.lists(KEYS, max_size=4, unique_by=fold))
    puts = {
        name: data.draw(st.integers(-9, 9) | TEXTS)
        for name in data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    }
    before, desired = "", ""
    for index, name in enumerate(names):
        head = data.draw(SPACE) + data.draw(spelt_texts(st.just(name))) + data.draw(SPACE) + ":" + data.draw(SPACE)
        head, value, tail = ("," if index else "") + head, data.draw(VALUES), data.draw(SPACE)
        changed = name in puts and repr(model(value)) != repr(puts[name])
        before += head + value + tail
        desired += head + (json.dumps(puts[name], ensure_ascii=False) if changed else value) + tail
    around = [
        data.draw(SPACE) + '{"twice":1,"x":[]' + data.draw(SPACE) + ',"Twice":{"o":1},"o":',
        ',"y":1.50}' + data.draw(SPACE),
    ]
    edit = Members({"o": Members({name: Put(value) for name, value in puts.items()}, exact)})
    assert rewrite(f"{{{before}}}".join(around).encode(), edit).decode() == f"{{{desired}}}".join(around)


@pytest.mark.slow
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
