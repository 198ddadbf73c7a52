"""Annotations whose JSON is kept read."""

import pytest

from runtimeproxy_hooks import koordinator
from runtimeproxy_hooks.koordinator import member, read_json
from runtimeproxy_hooks.sdk import Malformed


@pytest.mark.parametrize("spaces", [0, 5000], ids=["kept", "too long to be kept"])
def test_a_text_says_the_same_each_time_and_names_its_own_annotation(spaces: int) -> None:
    text = '{"a": {"b": "x"}}' + " " * spaces
    for key in ("one", "two", "one"):
        value = read_json({key: text}, key)
        assert value == {"a": {"b": "x"}}
        with pytest.raises(Malformed, match=f"annotation {key}"):
            member(member(value, "a", dict), "b", int)
        with pytest.raises(Malformed, match=f"annotation {key}: not JSON, from character {len(text)} on"):
            read_json({key: text + "}"}, key)


def test_few_texts_are_kept_read() -> None:
    for number in range(1000):
        assert read_json({"key": f"[{number}]"}, "key") == [number]
    assert koordinator._read.cache_info().currsize == koordinator._READ_TEXTS
