"""The exporter with a fake of the proxy's sockets, and with a proxy as docs/admin-api.yaml describes it."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from jsonschema import Draft202012Validator

from runtimeproxy.admin import exporter
from runtimeproxy.admin.exporter import PAGES, PUBLIC, Address, Exporter, Tls, TlsFiles
from runtimeproxy.admin.protocol import PART_BYTES, line
from runtimeproxy.admin.queries import KINDS
from runtimeproxy.errors import ConfigError, Reason
from runtimeproxy.observe.events import About, EventKind
from runtimeproxy.plugins.reach import Absence
from runtimeproxy.settings.options import Mode
from tests.admin.conftest import FIGURES, GET_METRICS, METRICS, Proxy, Site, connected, exporting, fetch, reply
from tests.cli.admin_answers import CANNED, EVENTS
from tests.docs import ROOT
from tests.fakes.canned_admin import END, HANG, Fault, Server, sending
from tests.fakes.plugins import FAIL
from tests.patience import SECONDS, until


def error(status: int, text: str) -> bytes:
    return line(id=1, error={"status": status, "text": text})


def checks(*states: str) -> dict[str, Any]:
    return {"checks": [{"name": f"c{at}", "state": state, "reason": ""} for at, state in enumerate(states)]}


JSON, TEXT = "application/json", "text/plain; charset=utf-8"
PASSED: list[tuple[str, dict[str, Any], Fault, str, str, str]] = [
    ("/metrics", {}, reply(), "200 OK", f"\n{FIGURES}", "text/plain; version=0.0.4; charset=utf-8"),
    ("/livez", {}, reply(checks("ok")), "200 OK", "\r\n\r\nok", TEXT),
    ("/readyz?verbose", {}, reply(checks("degraded")), "200 OK", "[~]c0 degraded\nreadyz check passed\n", TEXT),
    ("/readyz", {}, reply(checks("ok", "failed")), "503 ", "c0 ok\n[-]c1 failed\nreadyz check failed\n", TEXT),
    ("/configz", {}, reply({"options": [1]}, {"options": [2]}), "200 OK", '{"options":[1,2],', JSON),
    ("/store?pod=a&limit=7", {"pod": "a", "limit": 7}, reply({"next": ""}), "200 OK", '{"next":""', JSON),
    ("/store?limit=-1", {"limit": "-1"}, sending(error(400, "wrong")), "400 ", '"error":"wrong"}\n', JSON),
]


async def test_refused_requests_do_not_reach_proxy(upstream: Server, caplog: pytest.LogCaptureFixture) -> None:
    refused = [
        *((f"GET {path} HTTP/1.1", "404") for path in ("/", "/metrics/", "//metrics", *(PAGES.keys() - {*PUBLIC}))),
        *[("POST /loglevel HTTP/1.1", "404"), ("POST /metrics HTTP/1.1", "405"), ("HEAD /readyz HTTP/1.1", "405")],
        *[("GET /metrics?secret=1 HTTP/1.1", "400"), ("GET /readyz?follow HTTP/1.1", "400")],
        *((head, "400") for head in ("secret", "GET /metrics secret", f"{GET_METRICS}\r\nsecret")),
    ]
    caplog.set_level("INFO")
    async with exporting(upstream.server_address) as port:
        for sent, status in refused:
            answered = await fetch(port, sent)
            assert answered.split()[1] == status, sent
            assert ("Allow: GET\r\n" in answered) == (status == "405")
            assert ("the request cannot be read" in answered) == ("secret" in sent and "?" not in sent)
            assert "secret" not in answered + caplog.text
    async with exporting(upstream.server_address, everything=True) as port:
        for method, path in product(("POST", "PUT", "DELETE"), PAGES):
            assert (await fetch(port, f"{method} {path} HTTP/1.1")).startswith("HTTP/1.1 405 ")
    assert not upstream.requests


CLOSED = "it closed the connection: does the proxy run"
UNREADABLE = "its answer cannot be read: is it a proxy of this version?"
LATE = "it did not answer within"
PART = line(id=1, part=METRICS)
NO_ANSWERS = [b"\x00\xff\n", b"[" * 100_000 + b"\n", b" " * 2 * PART_BYTES, b"1\n", b'{"part": []}\n', b"{}\n"]
NO_ANSWERS += [b'{"end": null}\n', b'{"end": {"schemaVersion": 2}}\n', b'{"error": {"status": "404"}}\n']
NO_ANSWERS.append(line(id=1, part={"a": "a" * (PART_BYTES // 2)}) * 33)
NO_METRICS: list[Any] = [{}, METRICS | {"process": []}, dict.fromkeys([*METRICS, "checks", "events"])]
FAULTS: list[tuple[Fault, int, str]] = [(sending(octets), 502, CLOSED) for octets in (PART[:-9], PART)]
FAULTS += [(fault, 502, UNREADABLE) for fault in (*map(sending, NO_ANSWERS), *map(reply, NO_METRICS))]
LOGGED = [("WARNING", None), ("INFO", None)]
FAULTS += [(fault, 504, LATE) for fault in (HANG, sending(PART, hang=True))]


async def test_proxy_fault_is_one_line(upstream: Server, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The fault and the recovery are logged, each once."""
    caplog.set_level("INFO", "runtimeproxy.admin.exporter")
    async with exporting(upstream.server_address) as port:
        for upstream.fault, status, why in FAULTS:
            monkeypatch.setattr(Exporter._call, "__defaults__", (0.05 if status == 504 else SECONDS,))
            answered = [await fetch(port, GET_METRICS) for _ in range(2)]
            upstream.fault = reply()
            monkeypatch.setattr(Exporter._call, "__defaults__", (SECONDS,))
            assert all([FIGURES in await fetch(port, GET_METRICS) for _ in range(2)])
            for state in answered:
                assert state.startswith(f"HTTP/1.1 {status} ")
                text = json.loads(state.partition("\r\n\r\n")[2])["error"]
                assert text.startswith(f"the proxy at {upstream.server_address}: {why}")
            assert [(record.levelname, record.exc_info) for record in caplog.records] == LOGGED
            caplog.clear()


async def test_page_returns_answer_or_why_proxy_gave_none(upstream: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exporting(upstream.server_address, everything=True) as port:
        for target, params, upstream.fault, status, body, kind in PASSED:
            answered = await fetch(port, f"GET {target} HTTP/1.1")
            assert upstream.requests.pop() == (target[1:].partition("?")[0], params)
            assert answered.partition(" ")[2].startswith(status)
            assert body in answered
            assert "Connection: close\r\n" in answered
            assert f"Content-Type: {kind}" in answered
    assert not upstream.requests
    monkeypatch.setattr(exporter, "HEALTH_SECONDS", 0.05)
    upstream.fault = HANG
    async with exporting(upstream.server_address) as port:
        for path in ("/livez", "/readyz"):
            answered = await fetch(port, f"GET {path} HTTP/1.1")
            assert answered.startswith("HTTP/1.1 503 ")
            assert "[-]loop failed: the proxy did not answer within 0.05 s: its event loop hangs\n" in answered
        os.unlink(str(upstream.server_address))
        answered = await fetch(port, GET_METRICS)
    assert answered.startswith("HTTP/1.1 502 ")
    do = "does the proxy run with this endpoint, and is this user in the group of --metrics-group?"
    assert f"No such file or directory: {do}" in answered


def events(*numbers: int) -> bytes:
    return line(id=1, part={"events": [{"number": number} for number in numbers]})


def numbers(answered: str) -> list[int]:
    """Return the numbers of the events in a chunked answer."""
    return [json.loads(text)["number"] for text in answered.splitlines() if text.startswith('{"number"')]


FOLLOW = "GET /events?follow HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_events_are_sent_as_lines_to_limited_followers(upstream: Server) -> None:
    upstream.fault = sending(events(), events(1, 2), line(id=1, part={}), events(3), END)
    async with exporting(upstream.server_address, everything=True) as port:
        answered = await fetch(port, "GET /events?since=7&limit=9&hookServer=a&kind=edited&pod=b&follow=0 HTTP/1.1")
    params = {"since": 7, "limit": 9, "hookServer": "a", "kind": "edited", "pod": "b", "follow": False}
    assert upstream.requests == [("events", params)]
    assert numbers(answered) == [1, 2, 3]
    assert "Content-Type: application/x-ndjson\r\n" in answered
    assert answered.endswith("\r\n0\r\n\r\n")
    for then in (b"", b"noise\n", line(id=1, part={"events": None}) + END, error(500, "broken")):
        upstream.fault = sending(events(1), then)
        async with exporting(upstream.server_address, everything=True) as port:
            answered = await fetch(port, "GET /events HTTP/1.1")
        assert answered.startswith("HTTP/1.1 200 ")
        assert not answered.endswith("\r\n0\r\n\r\n")
    upstream.fault = sending(events(1), hang=True)
    async with exporting(upstream.server_address, everything=True) as port, AsyncExitStack() as stack:
        for _ in range(exporter.FOLLOWERS):
            reader, writer = await stack.enter_async_context(connected(port, FOLLOW))
            await reader.readuntil(b'{"number":1}\n')
        assert (await fetch(port, "GET /events?follow=true HTTP/1.1")).startswith("HTTP/1.1 503 ")
        upstream.fault = sending(events(1), END)
        assert numbers(await fetch(port, "GET /events HTTP/1.1")) == [1]
        writer.close()
        while (answered := await fetch(port, "GET /events?follow HTTP/1.1")).startswith("HTTP/1.1 503 "):
            pass
        assert numbers(answered) == [1]


async def test_endless_head_or_connection_above_limit_is_closed(upstream: Server) -> None:
    head = f"{GET_METRICS}\r\n" + "A: b\r\n" * exporter.HEAD_BYTES
    async with exporting(upstream.server_address) as port, AsyncExitStack() as stack:
        async with connected(port, head) as (reader, _):
            with suppress(ConnectionError):  # the exporter has unread data
                assert not await reader.read()
        for _ in range(exporter.CONNECTIONS):
            await stack.enter_async_context(connected(port, ""))
        async with connected(port, "") as (reader, _):
            assert not await reader.read()


@pytest.mark.parametrize("sent", [b"GET /store", b"GET /store HTTP/1.1\r\nHost: a\r\n\r\n", FOLLOW.encode()])
async def test_stalled_client_is_closed(upstream: Server, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Within a head, or as it never reads its answer, which is longer than all buffers."""
    monkeypatch.setattr(exporter, "CONNECTION_SECONDS", 0.2)
    text = "x" * (PART_BYTES // 2)
    upstream.fault = reply(*[{"containers": [text], "events": [{"text": text}]}] * 20)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        async with Exporter(str(upstream.server_address), everything=True) as running:
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            running.accept(accepted)
            client.sendall(sent)
            await until(lambda: len(upstream.requests) == sent.count(b"Host"))
            assert running.clients
            await until(lambda: not running.clients)
            at_exit, theirs = socket.socketpair()
            running.accept(at_exit)
        await asyncio.sleep(0)
        theirs.close()
        assert at_exit.fileno() == -1


class Authority:
    """A certificate authority, with its files."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.files = TlsFiles(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
        self._ca.cert_pem.write_to_path(self.files.client_ca)
        self.renew()

    def renew(self) -> bytes:
        """Write another certificate for the server, with its key; return it in DER form."""
        issued = self._ca.issue_cert("node.test")
        issued.private_key_pem.write_to_path(self.files.key)
        Path(self.files.cert).write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def client(self, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.client_ca)
        if certificate:
            self._ca.issue_cert("prometheus.test").configure_cert(context)
        return context


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
async def test_client_without_certificate_gets_nothing(upstream: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    too_old = authority.client()
    too_old.minimum_version = too_old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with exporting(upstream.server_address, Tls(authority.files)) as port:
        for stranger in (None, authority.client(certificate=False), too_old):
            with suppress(OSError):
                assert not await fetch(port, GET_METRICS, stranger)
        assert FIGURES in await fetch(port, GET_METRICS, authority.client())
    assert len(upstream.requests) == 1


BROKEN = [
    ("cert", None, "--tls-cert: {path} cannot be read (No such file or directory)"),
    ("key", b"", "--tls-key {path} cannot be used together ("),
    ("cert", b"nonsense", "--tls-cert {path} and --tls-key"),
    ("client_ca", b"", "--client-ca: {path} cannot be used ("),
]


async def test_renewed_certificates_are_served_if_usable(upstream: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def served() -> bytes:
        async with connected(port, "", authority.client()) as (_, writer):
            return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))

    async with exporting(upstream.server_address, Tls(authority.files)) as port:
        before = await served()
        key = Path(authority.files.key).read_bytes()
        Path(authority.files.key).write_bytes(b"half of it")
        assert await served() == before
        Path(authority.files.key).write_bytes(key)
        renewed = authority.renew()
        assert renewed != before
        assert await served() == renewed
    for name, content, words in BROKEN:
        path = Path(getattr(authority.files, name))
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ConfigError, match=re.escape(words.format(path=path))):
            Tls(authority.files)
        path.write_bytes(before)


def test_tls_is_required_where_users_may_connect() -> None:
    """The flag --listen has an address with a port, or a path."""
    no_addresses = ["unix:x.sock", "/run/x.sock", "localhost:9654", "::1:9654", "[127.0.0.1]:9654"]
    no_addresses += ["127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", ":9654", ""]
    here, remote, none, every = ("127.0.0.1", 1), ("10.0.0.1", 1), (None, None, None), ("c", "k", "a")
    readable = "--listen: any user of the node could read the proxy's state there"
    tls_flags: list[tuple[Address, tuple[str | None, ...], bool, str]] = [
        (here, none, False, ""),
        (remote, every, False, ""),
        (remote, none, False, "--listen: 10.0.0.1 is not a loopback address"),
        (("::", 1), none, False, "--listen: :: is not a loopback address"),
        (here, ("c", None, None), False, "TLS needs all of .*: --tls-key and --client-ca is missing"),
        (here, none, True, readable),
        (here, ("c", "k", None), True, "TLS needs all of .*: --client-ca is missing"),
        (here, every, True, ""),
        ("/x.sock", none, True, ""),
        ("/x.sock", ("c", None, None), True, "--listen: a unix socket has no TLS"),
    ]
    addresses = {
        "127.0.0.1:9654": ("127.0.0.1", 9654),
        "[::1]:9654": ("::1", 9654),
        "unix:///run/x.sock": "/run/x.sock",
    }
    assert {text: exporter.parse_address(text) for text in addresses} == addresses
    for text in no_addresses:
        with pytest.raises(ConfigError, match=r"^--listen: .* is not an? (address with a port|unix socket)"):
            exporter.parse_address(text)
    for at, files, everything, error in tls_flags:
        with pytest.raises(ConfigError, match=error) if error else nullcontext():
            expected = TlsFiles(*map(str, files)) if files[0] else None
            assert exporter.tls_files(at, *files, everything=everything) == expected


@pytest.mark.slow
async def test_program_serves_all_pages_on_unix_socket(upstream: Server, tmp_path: Path) -> None:
    upstream.fault = reply({"hooks": []})
    path = tmp_path / "http" / "x.sock"
    flags = [f"--admin-endpoint={upstream.server_address!s}", f"--listen=unix:{path}"]
    command = [sys.executable, "-m", "runtimeproxy", "export", *flags]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.PIPE)
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        assert f"listening on unix:{path}".encode() in await process.stderr.readline()
        assert [stat.S_IMODE(state.stat().st_mode) for state in (path, path.parent)] == [0o600, 0o700]
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /hooks HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b'{"hooks":[],"schemaVersion":1}\n' in await reader.read()
        writer.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert b"Traceback" not in await process.stderr.read()
    assert not path.exists()


DOCUMENT: dict[str, Any] = yaml.safe_load(Path("docs/admin-api.yaml").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a node refers to, or the node."""
    target = node
    for key in node.get("$ref", "").split("/")[1:]:
        target = DOCUMENT[key] if target is node else target[key]
    return target


def parameters(path: str) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of a path's parameters by name."""
    schemas = [resolved(parameter) for parameter in DOCUMENT["paths"][path]["get"].get("parameters", [])]
    return {schema["name"]: resolved(schema["schema"]) for schema in schemas if schema["in"] == "query"}


def closed(node: Any) -> Any:
    """Return a schema in which no object has members that it does not list."""
    if isinstance(node, list):
        return [closed(child) for child in node]
    if not isinstance(node, dict):
        return node
    made = {key: [*value] if key == "allOf" else closed(value) for key, value in node.items()}
    is_object = resolved(node).keys() & {"properties", "allOf"}
    return made | {"unevaluatedProperties": False} if is_object and "unevaluatedProperties" not in made else made


def schema_faults(schema: str, value: object) -> list[str]:
    """Return the schema_faults of a value. A schema is closed at the top by the one that refers to it."""
    schemas = {name: closed(closed_schema) for name, closed_schema in SCHEMAS.items()}
    for closed_schema in schemas.values():
        closed_schema.pop("unevaluatedProperties", None)
    root = {
        "$ref": f"#/components/schemas/{schema}",
        "unevaluatedProperties": False,
        "components": {"schemas": schemas},
    }
    validator = Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def values(schema: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield values at the bounds of a parameter's schema, each with whether it is inside."""
    if "enum" in schema:
        yield from [*((value, True) for value in schema["enum"]), ("another", False)]
    for bound, step in (("maximum", 1), ("minimum", -1)):
        if bound in schema:
            yield from ((str(schema[bound]), True), (str(schema[bound] + step), False))
    if "maxLength" in schema:
        yield from (("n" * schema["maxLength"], True), ("n" * (schema["maxLength"] + 1), False))


async def test_document_lists_exporter_paths_and_parameters(tmp_path: Path) -> None:
    assert {path: [*methods] for path, methods in DOCUMENT["paths"].items()} == {path: ["get"] for path in PAGES}
    for path, params in PAGES.items():
        assert DOCUMENT["paths"][path]["get"]["operationId"] == path[1:]
        assert tuple(parameters(path)) == params
    assert SCHEMAS["Kind"]["enum"] == list(KINDS)
    assert SCHEMAS["Version"]["properties"]["mode"]["enum"] == [mode.value for mode in Mode]
    async with pages(tmp_path, rich()) as get:
        for path, (name, schema) in [(page, each) for page in PAGES for each in parameters(page).items()]:
            tried = [*values(schema)]
            assert len(tried) > 1
            for value, inside in tried:
                more = "&limit=1" if name == "follow" else ""  # otherwise the answer has no end
                status, text = await get(f"{path}?{name}={value}{more}")
                assert (status != 400) == inside, (path, name, value, text)
                assert inside or f"{name} is not " in json.loads(text)["error"]


def rich() -> Proxy:
    """Return a proxy whose answers have a value in each member."""
    proxy = Proxy()
    proxy.add("p1", "c1", "c2")
    for name in "abc":
        proxy.manager.add(name, policy=FAIL)
    proxy.manager.plugins[0].last_error.note(1e9, "PreCreateContainer", Reason.DEADLINE)
    proxy.metrics.count("hook_calls", "a", "PreCreateContainer", "ok")
    proxy.metrics.observe("hook_call_duration_seconds", 0.01, "a")
    proxy.reach.absences = {"b": Absence(0.0, "gone")}
    proxy.manager.rejected = {"x.json": "x.json: not JSON (yet?)"}
    about = About("CreateContainer", "k1", "shop", "web", "p1", "main", "c1")
    more: dict[str, Any] = {"fields": {"envs.key": "a"}, "seconds": (0.1, 0.0, 0.2, 0.3, 0.0), "reason": "deadline"}
    for kind in EventKind:
        proxy.metrics.events.add(kind, about, hook_server="a", hook="PreCreateContainer", **more)
        proxy.metrics.events.add(kind)
    return proxy


@asynccontextmanager
async def pages(folder: Path, proxy: Proxy) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    """Run an exporter of all pages of a proxy; yield a function that returns a page's status and body."""
    async with Site(folder, proxy.methods) as site, exporting(site.path, everything=True) as port:

        async def get(target: str) -> tuple[int, str]:
            method, _, path = target.rpartition(" ")
            head, _, body = (await fetch(port, f"{method or 'GET'} {path} HTTP/1.0")).partition("\r\n\r\n")
            return int(head.split()[1]), body

        yield get


def faults_of_events(events: list[dict[str, Any]]) -> list[str]:
    return [fault for each in events for fault in schema_faults("Gap" if each["kind"] == "gap" else "Event", each)]


ANSWERS = [(f"/{name.lower()}", 200, name) for name in ("Version", "Hooks", "Store")]
ANSWERS += [("/configz", 200, "Configuration"), ("/store?limit=1", 200, "Store"), ("/store?limit=0", 400, "Error")]
ANSWERS += [("/store?limit=1&limit=2", 400, "Error"), ("/nothing", 404, "Error"), ("PUT /store", 405, "Error")]


async def test_answers_conform_to_their_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a proxy whose answers have each member, and the canned ones of the commands' tests."""
    proxy = rich()
    monkeypatch.setattr("runtimeproxy.observe.events.MOST_EVENTS", len(proxy.metrics.events))
    proxy.metrics.events.add(EventKind.DRAIN)
    async with pages(tmp_path, proxy) as get:
        for target, status, schema in ANSWERS:
            found, text = await get(target)
            assert (found, schema_faults(schema, json.loads(text))) == (status, []), target
        _, text = await get("/events")
    gap, *sent = [json.loads(line) for line in text.splitlines()]
    assert (gap["kind"], gap["to"], sent[0]["number"], len(sent)) == ("gap", 1, 2, 2 * len(EventKind))
    assert faults_of_events([gap, *sent]) == []
    for method, schema in (("version", "Version"), ("hooks", "Hooks"), ("store", "Store")):
        assert schema_faults(schema, CANNED[method]) == []
    for method in ("disable", "enable"):
        answer = {**CANNED[method]}  # type: ignore[dict-item]
        assert (answer.pop("schemaVersion"), answer.pop("notes")) == (1, [])
        assert schema_faults("Hook", answer) == []
    assert faults_of_events([{name: event[name] for name in event if name != "later"} for event in EVENTS]) == []
