"""Lines of the control protocol: what a client reads of an answer, and what it refuses as no answer."""

import json
from typing import Any

import pytest

from runtimeproxy.admin.protocol import Answer, Refused, join, line, part_line, request


def test_request_leaves_out_parameters_that_are_none() -> None:
    octets = request("store", {"pod": "a\n", "id": None, "limit": 0})
    assert (octets.count(b"\n"), octets[-1:]) == (1, b"\n")
    assert json.loads(octets) == {"id": 1, "method": "store", "params": {"pod": "a\n", "limit": 0}}


@pytest.mark.parametrize("part", [{"a": 1}, b'{"a":1}'], ids=["object", "encoded"])
def test_part_is_one_line(part: dict[str, Any] | bytes) -> None:
    assert part_line("x", part) == line(id="x", part={"a": 1})


def test_answer_is_the_joined_parts_and_end() -> None:
    answer, body, complete = Answer(), dict[str, Any](), []
    parts = [{"rows": [1], "next": 5, "text": "a"}, {}, {"rows": [2, 3], "next": None, "text": [4]}, {"new": [5]}]
    lines = [*(line(id=1, part=part) for part in parts), line(id=1, end={"schemaVersion": 1})]
    for octets in lines:
        join(body, answer.take(octets))
        complete.append(answer.complete)
    assert body == {"rows": [1, 2, 3], "next": None, "text": [4], "new": [5], "schemaVersion": 1}
    assert complete == [False] * len(parts) + [True]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [({"status": 404, "text": "there is none"}, 404, "there is none"), ({"status": 500}, 500, "None")],
)
def test_error_is_raised_with_its_status(error: dict[str, Any], status: int, text: str) -> None:
    with pytest.raises(Refused, match=text) as raised:
        Answer().take(line(id=1, error=error))
    assert (raised.value.status, raised.value.text) == (status, text)


NO_ANSWERS = [
    *[b"", b"HTTP/1.1 400 Bad Request\r\n", b"\xff\n", b"[]\n", b"1\n", b'"part"\n', b"{}\n"],
    *[b'{"part": []}\n', b'{"part": 1}\n', b'{"end": null}\n', b'{"end": {}}\n', b'{"end": {"schemaVersion": 2}}\n'],
    *[b'{"error": "no"}\n', b'{"error": {}}\n', b'{"error": {"status": "404"}}\n', b'{"error": {"status": true}}\n'],
]


@pytest.mark.parametrize("octets", NO_ANSWERS)
def test_line_of_no_answer_is_a_value_error(octets: bytes) -> None:
    with pytest.raises((ValueError,)):
        Answer().take(octets)
