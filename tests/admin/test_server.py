"""The control protocol as it is answered on a socket: each form of a request, each error as one line, no value."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.admin.protocol import PART_BYTES, REQUEST_BYTES, Part, Refused, line
from runtimeproxy.admin.server import Method, Query
from tests.admin.proxy import Proxy
from tests.admin.site import Site, echo, next_line, parts

END = {"schemaVersion": 1}
NOBODY = 65534


async def slowly(params: Mapping[str, Any]) -> AsyncIterator[Part]:
    for number in range(3):
        await asyncio.sleep(0)
        yield {"numbers": [number]}


async def failing_slowly(params: Mapping[str, Any]) -> AsyncIterator[Part]:
    yield {"first": 1}
    raise KeyError("canary")


def raising(error: Exception) -> Query:
    def query(params: Mapping[str, Any]) -> Iterator[Part]:
        yield {"first": 1}
        raise error

    return query


def raising_early(params: Mapping[str, Any]) -> Iterator[Part]:
    raise ValueError("canary")


def number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("is not a number")
    return value


METHODS: dict[str, Method] = {
    "livez": parts({"checks": []}, public=True),
    "none": parts(),
    "joined": parts({"rows": [1], "next": 5}, {}, {"rows": [2, 3], "next": None}),
    "slowly": Method(slowly),
    "echo": Method(echo, {"pod": str, "limit": number}, ("pod",)),
    "signed": Method(echo, {"name": str}, signed=True),
    "refusing": Method(raising(Refused(404, "there are a and b"))),
}


def error(status: int, text: str) -> dict[str, Any]:
    return {"error": {"status": status, "text": text}}


# -- answers ---------------------------------------------------------------------------------------------------------

ANSWERS: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("none", {}, [{"end": END}]),
    ("joined", {}, [{"part": part} for part in ({"rows": [1], "next": 5}, {}, {"rows": [2, 3], "next": None})]),
    ("slowly", {}, [{"part": {"numbers": [number]}} for number in range(3)]),
    ("echo", {"pod": "a\n\ud800", "limit": 7}, [{"part": {"params": {"pod": "a\n\ud800", "limit": 7}}}]),
    ("refusing", {}, [{"part": {"first": 1}}, error(404, "there are a and b")]),
]


@pytest.mark.parametrize(("method", "params", "answer"), ANSWERS)
async def test_request_has_its_answer(
    tmp_path: Path, method: str, params: dict[str, Any], answer: list[dict[str, Any]]
) -> None:
    async with Site(tmp_path, METHODS) as site:
        found = await site.call(method, **params)
    last = [] if answer[-1].keys() & {"end", "error"} else [{"end": END}]
    assert found == [{"id": 1, **each} for each in answer + last]


@pytest.mark.parametrize("number", [7, 0, -1, "a", "", "\ud800\n"])
async def test_id_is_repeated_in_each_line(tmp_path: Path, number: int | str) -> None:
    octets = [
        line(id=number, method="joined"),
        line(id=number, method="refusing"),
        line(id=number, method="no"),
        line(id=number, method="none", params=[]),
    ]
    async with Site(tmp_path, METHODS) as site:
        found = await site.send(b"".join(octets))
    assert [each["id"] for each in found] == [number] * (4 + 2 + 1 + 1)


@pytest.mark.parametrize("more", [{}, {"id": None}, {"id": [1]}, {"id": 1.5}, {"more": 1}])
async def test_request_without_an_id_is_answered(tmp_path: Path, more: dict[str, Any]) -> None:
    async with Site(tmp_path, METHODS) as site:
        assert await site.send(line(method="none", **more)) == [{"id": None, "end": END}]


async def test_connection_serves_requests_in_order(tmp_path: Path) -> None:
    octets = [line(id=number, method="slowly" if number % 2 else "none") for number in range(20)]
    async with Site(tmp_path, METHODS) as site:
        found = await site.send(b"".join(octets))
        assert [each["id"] for each in found if "end" in each] == [*range(20)]
        with site.connect() as client:
            for number in range(3):  # each after the answer before it
                client.send(line(id=number, method="none"))
                assert await next_line(client, bytearray()) == {"id": number, "end": END}


async def test_last_line_needs_no_newline(tmp_path: Path) -> None:
    async with Site(tmp_path, METHODS) as site:
        assert await site.send(line(id=1, method="none") + b'{"id":2,"method":"none"}') == [
            {"id": 1, "end": END},
            {"id": 2, "end": END},
        ]
        assert await site.send(b"") == []


# -- errors ----------------------------------------------------------------------------------------------------------

FORM = 'a request is a line like {"id": 1, "method": "hooks", "params": {}}'
TAKES = "echo takes pod, limit"
WRONG: list[tuple[bytes, int, str]] = [
    (b"\n", 400, FORM),
    (b"canary\n", 400, FORM),
    (b"GET /canary HTTP/1.1\n", 400, FORM),
    (b"\x16\x03\x01\xff\n", 400, FORM),
    (b"[" * 16_000 + b"\n", 400, FORM),
    (b'["canary"]\n', 400, FORM),
    (b'"canary"\n', 400, FORM),
    (line(params={"pod": "canary"}), 400, FORM),
    (line(method=None), 400, FORM),
    (b'{"method":"none","method":"canary"}', 400, FORM),
    (b'{"method":"echo","params":{"pod":"a","pod":"canary"}}', 400, FORM),
    (line(method=["canary"]), 400, FORM),
    (line(method="canary"), 404, f"no such method; there are {', '.join(METHODS)}"),
    (line(method="echo", params=["canary"]), 400, "echo: params is not a JSON object"),
    (line(method="echo", params="canary"), 400, "echo: params is not a JSON object"),
    (line(method="echo", params=None), 400, "echo: params is not a JSON object"),
    (line(method="echo", params={"pod": "a", "canary": "a"}), 400, f"unknown parameter: {TAKES}"),
    (line(method="none", params={"canary": 1}), 400, "unknown parameter: none takes no parameters"),
    (line(method="signed", params={"by": "canary"}), 400, "unknown parameter: signed takes name"),
    (line(method="echo"), 400, f"pod is missing: {TAKES}"),
    (line(method="echo", params={"limit": 1}), 400, f"pod is missing: {TAKES}"),
    (line(method="echo", params={"pod": "a", "limit": "canary"}), 400, "limit is not a number"),
    (b"canary" * 3000, 400, f"a request has {REQUEST_BYTES} bytes at most"),
]


@pytest.mark.parametrize(("octets", "status", "text"), WRONG, ids=[str(octets[:50]) for octets, *_ in WRONG])
async def test_wrong_request_is_an_error_without_values(
    tmp_path: Path, octets: bytes, status: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Site(tmp_path, METHODS) as site:
        assert await site.send(octets) == [{"id": None, **error(status, text)}]
    assert caplog.records == []


INSIDE: dict[str, Query] = {
    "early": raising_early,
    "late": raising(ValueError("canary")),
    "file": raising(FileNotFoundError(2, "canary")),
    "time": raising(TimeoutError("canary")),
    "async": failing_slowly,
    "unserializable": lambda params: iter([{"canary": {1}}]),
    "too_long": lambda params: iter([{"text": "n" * PART_BYTES}]),
}


@pytest.mark.parametrize("name", INSIDE)
async def test_error_inside_is_500_and_one_log_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Site(tmp_path, {name: Method(INSIDE[name]), "none": parts()}) as site:
        found = await site.send(line(method=name) + line(id=2, method="none"))
    assert found[-2:] == [
        {"id": None, **error(500, f"{name}: an error in the proxy; see its log")},
        {"id": 2, "end": END},
    ]
    assert "canary" not in json.dumps(found)
    (record,) = caplog.records
    assert (record.getMessage(), record.levelno) == (f"the request {name} failed", logging.ERROR)


# -- who is served ---------------------------------------------------------------------------------------------------


async def test_public_socket_serves_public_methods_only(tmp_path: Path) -> None:
    methods = Proxy().methods
    public = {"metrics", "livez", "readyz"}
    async with Site(tmp_path, methods, public=True) as site:
        for name in methods:
            last = (await site.call(name))[-1]
            refused = error(404, "no such method; there are metrics, livez, readyz")
            assert last == {"id": 1, **({"end": END} if name in public else refused)}


async def test_signed_method_is_given_the_client(tmp_path: Path) -> None:
    async with Site(tmp_path, METHODS) as site:
        found = await site.call("signed", name="a")
    assert found[0]["part"]["params"] == {"name": "a", "by": f"uid {os.geteuid()}, pid {os.getpid()}"}


_AS_NOBODY = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
try:
    client.sendall(b'{{"method": "livez"}}\\n')
    client.shutdown(socket.SHUT_WR)
except OSError:
    pass  # refused already
print(client.makefile("rb").readline().decode())
"""


@pytest.mark.engine  # it needs root
@pytest.mark.parametrize("public", [True, False])
async def test_other_user_is_served_on_a_public_socket_only(public: bool) -> None:
    command = [sys.executable, "-c", _AS_NOBODY]
    with tempfile.TemporaryDirectory() as folder:  # pytest's own directory is closed to others
        os.chmod(folder, 0o755)
        async with Site(Path(folder), METHODS, public=public) as site:
            os.chmod(site.path, 0o666)
            run = await asyncio.to_thread(
                subprocess.run, [*command, site.path], capture_output=True, text=True, check=True, timeout=30
            )
    refused = error(403, "only root may use the admin endpoint")
    assert json.loads(run.stdout) == {"id": None, **({"part": {"checks": []}} if public else refused)}
