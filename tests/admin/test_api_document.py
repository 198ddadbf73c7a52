"""docs/admin-api.yaml describes the exporter: its paths, parameters and bounds, and each real answer."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from runtimeproxy.admin.exporter import PAGES
from runtimeproxy.admin.queries import KINDS
from runtimeproxy.errors import Reason
from runtimeproxy.observe import events
from runtimeproxy.observe.events import About, EventKind
from runtimeproxy.plugins.reach import Absence
from runtimeproxy.settings.options import Mode
from tests.admin.conftest import Proxy, Site, exporting, fetch
from tests.cli.admin_answers import CANNED, EVENTS
from tests.fakes.plugins import FAIL

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


def faults(schema: str, value: object) -> list[str]:
    """Return the faults of a value. A schema is closed at the top by the one that refers to it."""
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
    async with exporter(tmp_path, rich()) as get:
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
async def exporter(folder: Path, proxy: Proxy) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    """Run an exporter of all pages of a proxy; yield a function that returns a page's status and body."""
    async with Site(folder, proxy.methods) as site, exporting(site.path, everything=True) as port:

        async def get(target: str) -> tuple[int, str]:
            method, _, path = target.rpartition(" ")
            head, _, body = (await fetch(port, f"{method or 'GET'} {path} HTTP/1.0")).partition("\r\n\r\n")
            return int(head.split()[1]), body

        yield get


def faults_of_events(events: list[dict[str, Any]]) -> list[str]:
    return [fault for each in events for fault in faults("Gap" if each["kind"] == "gap" else "Event", each)]


ANSWERS = [(f"/{name.lower()}", 200, name) for name in ("Version", "Hooks", "Store")]
ANSWERS += [("/configz", 200, "Configuration"), ("/store?limit=1", 200, "Store"), ("/store?limit=0", 400, "Error")]
ANSWERS += [("/store?limit=1&limit=2", 400, "Error"), ("/nothing", 404, "Error"), ("PUT /store", 405, "Error")]


async def test_answers_conform_to_their_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a proxy whose answers have each member, and the canned ones of the commands' tests."""
    proxy = rich()
    monkeypatch.setattr(events, "MOST_EVENTS", len(proxy.metrics.events))
    proxy.metrics.events.add(EventKind.DRAIN)
    async with exporter(tmp_path, proxy) as get:
        for target, status, schema in ANSWERS:
            found, text = await get(target)
            assert (found, faults(schema, json.loads(text))) == (status, []), target
        _, text = await get("/events")
    gap, *sent = [json.loads(line) for line in text.splitlines()]
    assert (gap["kind"], gap["to"], sent[0]["number"], len(sent)) == ("gap", 1, 2, 2 * len(EventKind))
    assert faults_of_events([gap, *sent]) == []
    for method, schema in (("version", "Version"), ("hooks", "Hooks"), ("store", "Store")):
        assert faults(schema, CANNED[method]) == []
    for method in ("disable", "enable"):
        answer = {**CANNED[method]}  # type: ignore[dict-item]
        assert (answer.pop("schemaVersion"), answer.pop("notes")) == (1, [])
        assert faults("Hook", answer) == []
    assert faults_of_events([{name: event[name] for name in event if name != "later"} for event in EVENTS]) == []
