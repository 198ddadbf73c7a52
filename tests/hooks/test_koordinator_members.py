"""Members of JSON objects: which one is taken, and what an error of theirs names."""

from collections.abc import Callable
from typing import Any

import pytest

from runtimeproxy_hooks import rdt
from runtimeproxy_hooks.cpuset import Cpuset
from runtimeproxy_hooks.gpu import Gpu
from runtimeproxy_hooks.koordinator import DEVICE_ALLOCATED, RESCTRL, RESOURCE_STATUS, Objects, member, read_json
from runtimeproxy_hooks.sdk import Hook, Malformed
from runtimeproxy_hooks.sdk.testing import HookTester


def read(text: str) -> Any:
    return read_json({"a": text}, "a")


def asked(hook: Hook) -> Callable[[dict[str, str]], object]:
    """Return what has a hook read a pod's annotations."""
    return lambda annotations: HookTester(hook).pre_create_container(annotations=annotations)


@pytest.mark.parametrize("text", ["[]", "[{}]", "[null]", '[{"b": 1}, null]'])
def test_a_list_of_objects_may_have_null_in_it(text: str) -> None:
    assert member(read(f'{{"a": {text}}}'), "a", Objects) == read(text)


@pytest.mark.parametrize("text", ['"x"', "{}", "[1]", '["x"]', "[{}, []]"])
def test_what_is_no_list_of_objects_is_named_with_the_annotation(text: str) -> None:
    with pytest.raises(Malformed, match=r"^annotation a: a must be a list of JSON objects$"):
        member(read(f'{{"a": {text}}}'), "a", Objects)


@pytest.mark.parametrize(
    ("read_by", "key", "text"),
    [
        (asked(Gpu()), DEVICE_ALLOCATED, '{"gpu": ["x"]}'),
        (asked(Cpuset()), RESOURCE_STATUS, '{"numaNodeResources": ["x"]}'),
        (rdt._wish, RESCTRL, '{"llc": {"schemataPerCache": ["x"]}}'),
        (rdt._wish, RESCTRL, "[]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_hook_names_the_annotation_in_which_no_object_stands(
    read_by: Callable[[dict[str, str]], object], key: str, text: str
) -> None:
    with pytest.raises(Malformed, match=f"^annotation {key}: "):
        read_by({key: text})
