"""Whatever a runtime tells of itself, its status is read, and a hook server can be told what is known."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy import hookpoints
from runtimeproxy.call import Unreadable
from runtimeproxy.cri import status
from runtimeproxy.hookapi import codec
from runtimeproxy.model import HookRequest, PodInfo
from tests.cri.test_status import CONTAINER_INFO, CONTAINER_STATUS, READERS, container, with_value
from tests.fakes import cri_pb2


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_unreadable(message: bytes) -> None:
    for read in READERS:
        with suppress(Unreadable):
            assert read(message, "asked").id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def paths(document: dict[str, Any], above: str = "") -> list[str]:
    """Name every place in a document, as with_value takes it."""
    here = [above + key for key in document]
    return here + [
        path for key, value in document.items() if isinstance(value, dict) for path in paths(value, f"{above}{key}.")
    ]


@settings(deadline=None)
@given(st.sampled_from([path for path in paths(CONTAINER_INFO) if "memory.high" not in path]), JSON)
def test_any_value_anywhere_is_read(path: str, value: object) -> None:
    read = container(with_value(CONTAINER_INFO, path, value))
    assert (read.id, read.name, read.annotations) == ("c1", "main", {"k": "v"})
    codec.encode(hookpoints.BY_NAME["PreStartContainer"], HookRequest(PodInfo(), read))


@pytest.mark.parametrize(("text", "meant"), [(r"\ud83d\ude00", "😀"), (r"\uD83D\uDE00", "😀"), (r"\\ud83d", r"\ud83d")])
def test_a_whole_pair_and_what_only_looks_like_half_of_one_are_texts(text: str, meant: str) -> None:
    info = json.dumps({"config": {"envs": [{"key": "A", "value": "VALUE"}]}}).replace("VALUE", text)
    message = cri_pb2.ContainerStatusResponse(status=CONTAINER_STATUS, info={"info": info}).SerializeToString()
    assert status.read_container_status(message, "c1").envs == {"A": meant}
