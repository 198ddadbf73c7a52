"""HTTP/1.1 heads and bodies by tables and any split; the JSON editor, whose oracle is the stdlib's parser."""

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import WireError
from runtimeproxy.wire import http1
from runtimeproxy.wire import json as editor
from runtimeproxy.wire.http1 import BadMessage, Body, ChunkedBody, EndlessBody, Framing, Rule, SizedBody
from runtimeproxy.wire.json import Chosen, Edit, Elements, Members, Object, Put, fold, parse, rewrite
from tests.amounts import examples
from tests.wire import http1_forms as forms
from tests.wire.http1_forms import breaking, get, head


def refusal(read: Callable[..., object], *arguments: object) -> Rule:
    with pytest.raises(BadMessage) as caught:
        read(*arguments)
    return caught.value.rule


@pytest.mark.parametrize("expected", forms.REQUESTS, ids=lambda row: row.raw[:60])
def test_request_is_read(expected: forms.Request) -> None:
    read = http1.request_head(expected.raw)
    assert (read.raw, read.framing, read.length, read.upgrade, read.expects_continue, read.closes) == expected


@pytest.mark.parametrize("first", ["GET / HTTP/1.1", "HTTP/1.1 200 OK"])
def test_fields_are_ordered_lowercased_and_stripped(first: str) -> None:
    raw = head(first, "Host:  h\t", "x-A:\t b  c ", "DATE:", "X-a: \xe9\xa0", 'Content-Type: a;b="c: d"')
    read = http1.request_head(raw) if first[0] == "G" else http1.response_head(raw, "GET")
    fields = ("host", "h"), ("x-a", "b  c"), ("date", ""), ("x-a", "\xe9\xa0"), ("content-type", 'a;b="c: d"')
    assert read.fields == fields
    assert [read.field(name) for name in ("host", "x-a", "date", "absent")] == ["h", "b  c", "", ""]


def test_request_or_response_is_refused() -> None:
    for raw, rule in forms.REFUSED_REQUESTS:
        assert refusal(http1.request_head, raw) is rule, raw
    for (raw, rule), method in product(forms.REFUSED_RESPONSES, ("GET", "HEAD")):
        assert refusal(http1.response_head, raw, method) is rule, raw


@pytest.mark.parametrize(("raw", "method", "expected"), [(*row[:2], row[2:]) for row in forms.RESPONSES])
def test_response_is_read(raw: bytes, method: str, expected: tuple[object, ...]) -> None:
    read = http1.response_head(raw, method)
    assert (read.raw, read.version) == (raw, (1, int(raw[7:8])))
    assert (read.status, read.framing, read.length, read.closes) == expected


def test_only_short_heads_are_cached_with_method() -> None:
    for start in (get, lambda *fields: head("HTTP/1.1 200 OK", *fields)):
        read = http1.request_head if start is get else lambda octets: http1.response_head(octets, "GET")
        size = http1.CACHED_BYTES - len(start("X: "))
        for length in (size, size + 1):
            raw = start("X: " + "s" * length)
            assert (read(raw) is read(bytes(bytearray(raw)))) == (length == size)
            assert read(raw).field("x") == "s" * length
    sized = head("HTTP/1.1 200 OK", "Content-Length: 5")
    framings = [http1.response_head(sized, method).framing for method in ("GET", "HEAD", "CONNECT")]
    assert framings == [Framing.SIZED, Framing.EMPTY, Framing.UNTIL_CLOSE]


FIRST_LINE = b"GET / HTTP/1.1"
BEGINNINGS = breaking(Rule.LINE_END, b"\n", b"GET /\rHTTP", b"\n\0", FIRST_LINE + b"\n", FIRST_LINE + b"\r\rHost")
BEGINNINGS += breaking(Rule.LINE_END, *(FIRST_LINE + b"\r\nHost: h" + end for end in (b"\n", b"\n\n", b"\r\n\n")))
BEGINNINGS += breaking(Rule.CONTROL, b"\0", b"\0\n", b"GET /\0", b"\x16\x03\x01\0\xa5\x01\0\0")


@pytest.mark.parametrize(("beginning", "rule"), BEGINNINGS)
def test_invalid_beginning_of_head_is_refused_immediately(beginning: bytes, rule: Rule) -> None:
    buffer, caught = bytearray(b"\r"), None
    for size in range(1, len(beginning) + 1):
        buffer[1:] = beginning[:size]
        try:
            assert http1.head_end(buffer, 1, size) == 0
        except BadMessage as refused:
            caught = refused.rule
            break
    assert caught is rule
    assert refusal(http1.head_end, buffer, 1) is refusal(http1.head_end, b"body\r\n\r\n" + beginning, 8) is rule


def test_head_above_limits_is_refused() -> None:
    room = http1.HEAD_LIMIT - len(get("X: "))
    longest, longer = get("X: " + "x" * room), get("X: " + "x" * (room + 1))
    for before in (b"", b"12345"):
        assert http1.head_end(before + longest + b"body", len(before)) == len(before) + http1.HEAD_LIMIT
        assert http1.head_end(before + longest[:-1], len(before)) == 0
        for octets in (longer, longer[:-1], longest[:-1] + b"x", longer + longer):
            assert refusal(http1.head_end, before + octets, len(before)) is Rule.HEAD_BYTES
    assert http1.request_head(longest).field("x") == "x" * room
    many = [f"X-{number}: y" for number in range(http1.FIELDS_LIMIT - 1)]
    assert len(http1.request_head(get(*many)).fields) == http1.FIELDS_LIMIT
    assert refusal(http1.request_head, get(*many, "X: y")) is Rule.FIELDS


CODING, CHANGED = "Transfer-Encoding: chunked", "Content-Length: 70"
FRAMINGS = [([], [CHANGED]), (["A: b", "CONTENT-length:5", "C: d"], ["A: b", CHANGED, "C: d"])]
FRAMINGS += [(["A: b", CODING, "C:\xe9 "], ["A: b", CHANGED, "C:\xe9 "]), (["trailer: X", CODING], [CHANGED])]
FRAMINGS += [(["A: b", CODING, "Trailer: X", "Trailer: Y"], ["A: b", CHANGED])]
FRAMINGS += [(["TE: trailers", "Trailers: x"], ["TE: trailers", "Trailers: x", CHANGED])]


def test_length_changes_only_framing_and_answer_is_like_dockerd() -> None:
    for fields, changed in FRAMINGS:
        assert http1.with_length(get(*fields), 70) == get(*changed)
    text = 'hook server "a": no\r\n\x00 é'
    for status, close in ((400, True), (500, False)):
        answer = http1.response(status, text, close=close)
        end = http1.head_end(answer)
        read = http1.response_head(answer[:end], "POST")
        assert (read.status, read.closes, read.length) == (status, close, len(answer) - end)
        assert (read.field("content-type"), json.loads(answer[end:])) == ("application/json", {"message": text})


SHORT = 200


def fed(body: Body, stream: bytes, cuts: list[int]) -> int:
    """Feed a stream in chunks; return where the body ended, or the length of the stream."""
    at = 0
    for cut in [*cuts, len(stream)]:
        consumed = body.feed(chunk := stream[at : at + cut])
        at += consumed
        assert consumed == len(chunk) or body.done
        if body.done:
            break
    return at


FOLLOWERS: list[Any] = [(Framing.EMPTY, 0, None), (Framing.SIZED, 0, None), (Framing.SIZED, 1, SizedBody)]
FOLLOWERS += [(Framing.CHUNKED, 0, ChunkedBody), (Framing.UNTIL_CLOSE, 0, EndlessBody)]
UNREAD: list[Any] = [(SizedBody(5), [2, 3], [True, True], True), (SizedBody(5), [2, 4, 3], [True, False, True], True)]
UNREAD += [(SizedBody(5), [4], [True], False), (EndlessBody(), [2, 400], [True, True], False)]


def test_bytes_pass_unread_up_to_end_of_body() -> None:
    for framing, length, kind in FOLLOWERS:
        body = http1.follow(framing, length)
        assert (body and type(body)) is kind
    for body, sizes, passed, done in UNREAD:
        assert [body.passes(bytes(500), size) for size in sizes] == passed
        assert body.done is done
        assert done or body.feed(b"abc", 2) == 3


END, MIDDLE, WHOLE = b"0\r\n\r\n", b"5\r\n1", b"5\r\n12345"
PASSING = [
    *((MIDDLE, b"234", b"5\r\n" + END), (MIDDLE, b"2345\r\n3\r\nabc", b"\r\n" + END), (MIDDLE, b"2345\r\n", END)),
    *((MIDDLE, b"2345\r\n3\r\n", b"abc\r\n" + END), (MIDDLE, b"2345\r\n" + END, b"")),
    *((WHOLE, b"\r\n3\r\nabc", b"\r\n" + END), (WHOLE + b"\r\n", b"3\r\nabc\r\n2\r\nde\r\n", END)),
    (b"", b"1\r\nx\r\n" * http1.PASSING_CHUNKS, END),
]
NOT_PASSING = [
    *((MIDDLE, b"2345\r\n3", b"\r\nabc\r\n" + END), (MIDDLE, b"2345\r\n3;x\r\nabc", b"\r\n" + END)),
    *((MIDDLE, b"2345\r\n0\r\nX: 1\r\n\r\n", b""), (MIDDLE, b"2345\r\n" + END + b"HTTP/1.1", b"")),
    *((b"5", b"\r\n12345", b"\r\n" + END), (WHOLE, b"\r", b"\n" + END), (WHOLE + b"\r\n0\r\n", b"\r\n", b"")),
    (b"", b"1\r\nx\r\n" * (http1.PASSING_CHUNKS + 1), END),
]


@pytest.mark.parametrize(("read", "offered", "following"), PASSING + NOT_PASSING)
@pytest.mark.parametrize("cuts", [[], [1] * 40])
def test_chunks_pass_unread_when_in_plain_form(read: bytes, offered: bytes, following: bytes, cuts: list[int]) -> None:
    """The buffer after the offered bytes contains those of an earlier read; what does not pass is read as usual."""
    body, passes = ChunkedBody(), (read, offered, following) in PASSING
    body.feed(read)
    assert body.passes(bytearray(offered + b"\r\n0\r\n\r\n"), len(offered)) is passes
    end = fed(body, following if passes else offered + following, cuts)
    assert body.done
    assert end == (len(following) if passes else len((offered + following).removesuffix(b"HTTP/1.1")))


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize(("raw", "payload"), forms.CHUNKED, ids=lambda octets: octets[:40])
def test_chunked_body_end_is_found(raw: bytes, payload: bytes, kind: type[bytes] | type[bytearray]) -> None:
    body = ChunkedBody()
    assert (body.feed(kind(b"head" + raw + b"GET /"), 4), body.done) == (4 + len(raw), True)
    assert body.feed(b"GET /") == 0
    assert http1.dechunk(kind(raw)) == payload
    assert refusal(http1.dechunk, raw + b"x") is Rule.WHOLE_BODY
    for index in range(min(len(raw), SHORT)):
        assert fed(ChunkedBody(), raw + b"GET", [index]) == len(raw)
        assert refusal(http1.dechunk, raw[:index]) is Rule.WHOLE_BODY


@pytest.mark.parametrize(("raw", "rule"), forms.REFUSED_CHUNKED, ids=lambda value: repr(value)[:40])
def test_broken_chunked_body_is_refused_for_any_split(raw: bytes, rule: Rule) -> None:
    for cuts in ([], [1] * len(raw), *([index] for index in range(1, min(len(raw), SHORT)))):
        assert refusal(fed, ChunkedBody(), raw, cuts) is rule


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
GIVEN = ' {"n":1, "S":"\\u0078","l":["y"],"o":{"p":"q"},"a":null} '
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
    (GIVEN, Members({"M": Members({}, exact=True), "a": Members({}), "b": Members({"c": Elements({})})}), GIVEN),
    (GIVEN, Members({"n": Put(1), "s": Put("x"), "l": Elements({0: "y"}), "o": Members({"p": Put("q")})}), GIVEN),
]


@pytest.mark.parametrize(("before", "edit", "after"), EDITED)
def test_edit_rewrites_json_text(before: str, edit: Edit, after: str) -> None:
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
