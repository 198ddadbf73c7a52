"""The JSON editor; the stdlib's parser is the oracle for the meaning of texts."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import json as editor
from runtimeproxy.wire.json import Chosen, Edit, Elements, Members, Object, Put, fold, parse, rewrite
from tests.amounts import examples

LONG_S, KELVIN = "\u017f", "\u212a"


def plain(value: Any) -> Any:
    if isinstance(value, Object):
        return [(key, plain(member)) for key, member in value]
    return [plain(element) for element in value] if isinstance(value, list) else value


def test_get_folds_keys_and_map_does_not() -> None:
    characters = [chr(code) for code in range(128, 0x110000)]
    folded = fold("\0".join(characters)).split("\0")  # folding each one separately would take a second
    twins = {character for character, to in zip(characters, folded, strict=True) if to.isascii()}
    assert twins == {LONG_S, KELVIN}, "only these fold to ASCII"
    value = parse(b'{"a": 1, "B": [true, null, 1.5], "c": null, "k": {"x": "\\u00e9"}}')
    assert [value.get(key) for key in ("A", "b", "c")] == [1, [True, None, 1.5], None]
    assert plain(value.get(KELVIN)) == [("x", "é")]
    assert (value.get("C", 7), value.get("d", "no")) == (7, "no")
    assert parse(b'{"a": 1, "A": null}').map() == {"a": 1, "A": None}
    assert parse(b"{}"), "an object without members is a value, too"
    with pytest.raises(WireError, match="twice"):
        parse(b'{"a": 1, "b": 2, "\\u0061": 1}').map()
    for twin in ("Cpus", "cPUS", f"cpu{LONG_S}", "\\u0063pus"):
        doubled = parse(f'{{"Cpus": 1, "other": 2, "{twin}": null}}'.encode())
        assert doubled.get("other") == 2
        with pytest.raises(WireError, match="the key CPUS twice"):
            doubled.get("CPUS")


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
    read = editor.read_members(owner, {"value": ("Member", kind), "missing": ("Missing", kind)})
    assert read == {"value": expected, "missing": kind()}
    assert type(read["value"]) is kind


UNFIT: list[tuple[type, str]] = [(int, text) for text in ("true", "1.0", str(2**63), str(-(2**63) - 1))]
UNFIT += [(str, "5"), *((list, text) for text in ("{}", "[5]", "[[]]")), (Object, "[]")]
UNFIT += [(dict, text) for text in ("[]", '{"k": 5}', '{"k": "a", "k": "b"}')]


def test_member_of_another_type_cannot_be_read() -> None:
    for kind, text in UNFIT:
        with pytest.raises(WireError, match=r"wrong type in Member|out of range in Member|a key twice"):
            editor.read_members(parse(f'{{"Member": {text}}}'.encode()), {"value": ("Member", kind)})


BROKEN = [
    *((text, "Expecting value at character 0") for text in (b"", b"\xef\xbb\xbf{}")),
    *((b"  ", "Expecting value at character 2"), (b'{"a": 1} x', "Extra data at character 9")),
    *((text, "not Unicode") for text in (b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16"))),
    *((text, "Expecting value") for text in (b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a":')),
    *((text, "Expecting value") for text in (b'{"a":}', b'{"a":+1}', b'{"a":tru}', b'{"a":\x0b1}', b'{"a":\xc2\xa01}')),
    *((text, "Extra data") for text in (b"{}{}", b"{}\0")),
    *((text, "property name") for text in (b"{", b'{"a":1,', b"{,}", b"{1:2}")),
    (b'{"a":1,}', "(property name|trailing comma)"),  # the second one from Python 3.13 on
    *((b'{"a', "Unterminated string"), (b'{"a"', "Expecting ':' delimiter"), (b'{"a" 1}', "Expecting ':' delimiter")),
    *((text, "Expecting ',' delimiter") for text in (b'{"a":1', b'{"a":1]', b'{"a":1 "":2}', b'{"a":01}', b'{"a":1.}')),
    *((text, "control character") for text in (b'{"a":"\n"}', b'{"a\t":1}')),
    *((text, "escape") for text in (b'{"a":"\\x"}', b'{"a":"\\u12"}')),
    (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
    *((b'{"a":' + nesting * 100_000, "too deeply") for nesting in (b"[", b'{"a":')),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_broken_text_is_neither_read_nor_rewritten(text: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=f"not JSON: .*{problem}"):
        parse(text)
    for edits, exact in product(({}, {"b": Put(1)}, {"a": Put(1)}), (False, True)):
        with pytest.raises(WireError, match="not JSON"):
            rewrite(text, Members(edits, exact))


SECRETS = ['{"Env":["s3cret"],}', '{"Env":["s3cret]}', '{"Env":"s3cret"}', '{"Env":[],"s3cret":\\}', '{"Env":[s3cret]}']


@pytest.mark.parametrize("text", SECRETS)
def test_errors_contain_no_value(text: str) -> None:
    with pytest.raises(WireError) as caught:
        rewrite(text.encode(), Members({"env": Elements({})}))
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


TOKENS = [("[" + "[]," * 50 + "0]", 101), ('{"a": [' + '"",' * 50 + "{}]}", 104), ('["' + ",[{" * 50 + '"]', 2)]
TOKENS += [(r'["\",\\", 1, "' + "\n" + r'"    ]', 5), (f'{{"{LONG_S}": "{KELVIN}"}}          ', 3), ("[[[[[", 5)]
TOKENS += [("[" + "1," * 50, 51), ("[" + " " * 50, 1), ('["' + "," * 50, 1), (r'["' + r"\," * 50 + "\\", 1)]


def test_tokens_are_counted_outside_of_strings() -> None:
    for text, tokens in TOKENS:
        assert not editor.has_more_tokens(text.encode(), tokens), text
        assert editor.has_more_tokens(text.encode(), tokens - 1), text


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
    ("null", SOME, '{"Memory":7,"Cpus":"0-3"}'),
    ('{\n  "x": {}\n}', SOME, '{\n  "x": {},"Memory":7,"Cpus":"0-3"\n}'),
    (f'{{"Cpu{LONG_S}":"1","\\u006demory":1}}', SOME, f'{{"Cpu{LONG_S}":"0-3","\\u006demory":7}}'),
    ('{"x":{"Memory":1},"y":["Cpus"]}', SOME, '{"x":{"Memory":1},"y":["Cpus"],"Memory":7,"Cpus":"0-3"}'),
    ('{"x":1,"X":2,"x":3,"Memory":[{}],"Cpus":1e5}', SOME, '{"x":1,"X":2,"x":3,"Memory":7,"Cpus":"0-3"}'),
    ('{"K":"a","k":"b"}', EXACT, '{"K":"1","k":"b"}'),
    (f'{{"k":"a","{KELVIN}":"b"}}', EXACT, f'{{"k":"a","{KELVIN}":"b","K":"1"}}'),
    ('{"x": 1, "n": 5}', DOUBLED, '{"x": 1, "n": 10}'),
    *(('{"n": 0}', DOUBLED, '{"n": 0}'), ('{"n": null}', DOUBLED, '{"n": 1}'), ("{}", DOUBLED, '{"n":1}')),
    (WHOLE, Members({"M": Members({}, exact=True), "a": Members({}), "b": Members({"c": Elements({})})}), WHOLE),
    (WHOLE, Members({"n": Put(1), "s": Put("x"), "l": Elements({0: "y"}), "o": Members({"p": Put("q")})}), WHOLE),
]


@pytest.mark.parametrize(("before", "edit", "after"), EDITED)
def test_edit_rewrites_json_text(before: str, edit: Edit, after: str) -> None:
    """What changes nothing gives the same object."""
    text = before.encode()
    result = rewrite(text, edit)
    assert result.decode() == after
    assert (result is text) == (after == before)
    json.loads(result)


@pytest.mark.parametrize("twin", ["Memory", "MEMORY", "\\u004demory"])
@pytest.mark.parametrize("between", ["", '"x":1,', '"x":{},'])
def test_repeated_key_to_edit_is_refused(twin: str, between: str) -> None:
    text = f'{{"Memory":7,{between}"{twin}":7}}'.encode()
    for exact in {False, twin != "MEMORY"}:
        with pytest.raises(WireError, match="the key Memory twice"):
            rewrite(text, Members({"Memory": Put(7)}, exact))
    assert rewrite(text, Members({"y": Put(1)})) == text[:-1] + b',"y":1}'


def test_edit_that_cannot_be_made_is_refused() -> None:
    for edit in (Members({"\ud800": Put(1)}), Members({"a": Put("\udfff")})):
        with pytest.raises(WireError, match="not Unicode"):
            rewrite(b'{"a": "\\ud800"}', edit)
    second, lists = Members({"l": Elements({1: "b"})}), (b"{}", b'{"l": [ ]}', b'{"l": ["a"]}', b'{"l": null}')
    for before, edit in product(lists, (second, Members({"o": second}))):
        with pytest.raises(WireError, match="without the element"):
            rewrite(before, edit)


SPACE = st.text(" \t\n\r", max_size=2)
KEYS = st.sampled_from(["a", "A", "b", "k", "K", KELVIN, "s", LONG_S, "ab", "é", "", '"', "\\", "\n"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["}", "]", ",", '":', "\u2028"])
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=8)
VALUES = NUMBERS | st.builds(json.dumps, NESTED, ensure_ascii=st.booleans(), indent=st.none() | st.integers(0, 1))


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.data(), st.booleans())
def test_bytes_outside_changed_values_are_unchanged(data: st.DataObject, exact: bool) -> None:
    """The stdlib's parser reads the same, before and after."""
    names = data.draw(st.lists(KEYS, max_size=4, unique_by=fold))
    puts = {name: data.draw(st.integers(-9, 9) | TEXTS) for name in names if data.draw(st.booleans())}
    before, desired = "", ""
    for index, name in enumerate(names):
        key = json.dumps(name, ensure_ascii=data.draw(st.booleans()))
        head = ("," if index else "") + f"{data.draw(SPACE)}{key}{data.draw(SPACE)}:{data.draw(SPACE)}"
        value, tail = data.draw(VALUES), data.draw(SPACE)
        changed = name in puts and repr(json.loads(value)) != repr(puts[name])
        before += head + value + tail
        desired += head + (json.dumps(puts[name], ensure_ascii=False) if changed else value) + tail
    around = [data.draw(SPACE) + '{"twice":1,"x":[],"Twice":{"o":1},"o":', ',"y":1.50}' + data.draw(SPACE)]
    edit = Members({"o": Members({name: Put(value) for name, value in puts.items()}, exact)})
    text = f"{{{before}}}".join(around)
    assert rewrite(text.encode(), edit).decode() == f"{{{desired}}}".join(around)
    assert plain(parse(text.encode())) == plain(json.loads(text, object_pairs_hook=Object))
