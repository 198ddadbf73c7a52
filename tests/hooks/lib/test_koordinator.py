"""Koordinator's JSON and quantities by Go's rules; the formulas are shown by the tests of the hooks that use them."""

import json
from typing import Any

import pytest

from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.lib.koordinator import DEVICE_ALLOCATED, MAX_INT64, Objects, member, milli, quantity, read_json
from runtimeproxy_hooks.sdk import Malformed

KINDS = {
    **{dict: "a JSON object", list: "a list", Objects: "a list of JSON objects", str: "a text", float: "a number"},
    **{int: "a whole number of 64 bits", bool: "true or false"},
}
SECRET = "canary"


def read(text: str, *kind: type) -> Any:
    return read_json({DEVICE_ALLOCATED: text}, DEVICE_ALLOCATED, kind or tuple(KINDS))


def read_member(text: str, kind: Any) -> Any:
    return member(read(f'{{"a": {text}}}'), "a", kind)


INVALID_JSON = (
    *("{", " ", SECRET, f'{{"{SECRET}": 1,}}', f"{{'{SECRET}': 1}}", '{"a": 1} {}', '\ufeff{"a": 1}', '{"a": "\x00"}'),
    *("NaN", '{"a": -Infinity}', '{"a": 1e999}', "1" * 5000, "[" * 200_000, '{"a":' * 200_000),
)


@pytest.mark.parametrize("text", INVALID_JSON, ids=lambda text: ascii(text[:20]))
def test_invalid_json_is_malformed_and_not_shown(text: str) -> None:
    with pytest.raises(Malformed, match=f"^annotation {DEVICE_ALLOCATED}: not JSON") as caught:
        read(text)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_json_other_than_object_is_malformed() -> None:
    for text in ("[]", '"x"', "1.5", "true"):
        with pytest.raises(Malformed, match=r"^annotation .*: the value must be a JSON object$"):
            read(text, dict)
        with pytest.raises(Malformed, match=r"^what should hold gpu: must be a JSON object$"):
            member(read(text), "gpu", list)
    assert read("null", dict) is None


@pytest.mark.parametrize("spaces", [0, 5000], ids=["cached", "too long for the cache"])
def test_error_of_cached_text_names_its_annotation(spaces: int) -> None:
    text = '{"a": {"b": "x"}}' + " " * spaces
    for key in ("one", "two", "one"):
        value = read_json({key: text}, key)
        assert value == {"a": {"b": "x"}}
        with pytest.raises(Malformed, match=f"annotation {key}"):
            member(member(value, "a", dict), "b", int)
        with pytest.raises(Malformed, match=f"annotation {key}: not JSON, from character {len(text)} on"):
            read_json({key: text + "}"}, key)


def test_number_of_cached_texts_is_bounded() -> None:
    for number in range(100):
        assert read_json({"key": f"[{number}]"}, "key") == [number]
    assert koordinator._read.cache_info().currsize == koordinator._READ_TEXTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(('{"BUSid": "a"}', "a"), ('{"bu\u017fID": "a"}', "a"), ('{"busID": ""}', "")),
        *(('{"busID": "a", "BUSID": "b"}', "b"), ('{"busID": "a", "BUSID": "b", "busID": "c"}', "c")),
        *(('{"BUSID": "b", "busID": "a"}', "a"), ('{"busid": "b", "BUSID": null}', "b")),
        *((text, "default") for text in ('{"busID": null}', '{"b": 1}', "null", "")),
    ],
)
def test_member_is_matched_as_in_go(text: str, expected: str) -> None:
    assert member(read(text), "busID", str, "default") == expected


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        *(("{}", {dict}), ("true", {bool}), ("[]", {list, Objects}), ('[{"b": 1}, null]', {list, Objects})),
        *(("[{}, []]", {list}), ('"\\ud83d\\ude00"', {str}), ('"x\\udfff"', set()), ("-1", {int, float})),
        *((str(MAX_INT64), {int, float}), (str(MAX_INT64 + 1), {float}), ("1e3", {float})),
    ],
)
def test_member_of_wrong_type_is_malformed(text: str, kinds: set[type]) -> None:
    for kind in KINDS:
        if kind in kinds:
            assert read_member(text, kind) == json.loads(text)
        else:
            with pytest.raises(Malformed, match=rf"^annotation {DEVICE_ALLOCATED}: a must be {KINDS[kind]}$"):
                read_member(text, kind)


QUANTITIES = [
    *((0, 0, 0), (-3, -3, -3000), (True + 1, 2, 2000), ("+5", 5, 5000), (" 5\n", 5, 5000), ("007", 7, 7000)),
    *(("1.", 1, 1000), (".5", 1, 500), ("500m", 1, 500), ("0.1m", 1, 1), ("-0.1m", -1, -1), ("-1.5", -2, -1500)),
    *((f"1{unit}", 1, least) for unit, least in (("n", 1), ("u", 1), ("m", 1), ("", 1000), ("e-3", 1))),
    *((f"1{unit}", 1000**n, 1000 ** (n + 1)) for n, unit in enumerate("kMGTP", 1)),
    *((f"1{unit}i", 1024**n, 1024**n * 1000) for n, unit in enumerate("KMGTP", 1)),
    *((text, 1000, 1_000_000) for text in ("1e3", "1E3", "1e+3", "1e0000003")),
    *(("9007199254740993", 9007199254740993, 9007199254740993000), ("0." + "0" * 61 + "1", 1, 1)),
    *(("0e999999999", 0, 0), ("0e-999999999", 0, 0), ("1e-999999999", 1, 1), ("-1e-999999999", -1, -1)),
    # A number of JSON keeps its text: a double cannot represent these.
    *((read("9007199254740993.0"), 9007199254740993, 9007199254740993000), (read("1.5"), 2, 1500)),
    (read("0.1000000000000000055511151231257827"), 1, 101),
]


@pytest.mark.parametrize(("value", "rounded", "thousandths"), QUANTITIES)
def test_quantity_is_exact_and_rounded_up(value: Any, rounded: int, thousandths: int) -> None:
    assert (quantity(value, "x"), milli(value, "x")) == (rounded, thousandths)


TOO_GREAT = [2**63, -(2**63), "9223372036854775808", "8Ei", "-10E", "1e19", "1e999999999", f"{MAX_INT64}.1"]
NO_QUANTITIES = [
    *("", " ", "-", ".", "Gi", "m", "e3", "1e", "1e+", "1 Gi", "1gi", "1K", "1Kim", "1e3Ki", "1_000", "1" * 65, "1,5"),
    *("1.2.3", "--1", "0x10", "1/2", "inf", "\u0663", "1\n1", SECRET, "1e" + "9" * 63, 10**70, float("nan"), True),
    *(None, [], {"a": 1}),
]
MALFORMED = [
    *((value, r"^gpu-memory: beyond 64 bits") for value in TOO_GREAT),
    *((value, r"^gpu-memory: not a quantity") for value in NO_QUANTITIES),
]


@pytest.mark.parametrize(("value", "words"), MALFORMED)
def test_malformed_quantity_is_error_and_not_shown(value: Any, words: str) -> None:
    for reads in (quantity, milli):
        with pytest.raises(Malformed, match=words) as caught:
            reads(value, "gpu-memory")
        assert SECRET not in str(caught.value)
