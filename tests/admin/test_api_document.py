"""docs/admin-api.yaml says what the server answers: its routes, parameters and bounds, and each real answer."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from runtimeproxy.admin.health import Check
from runtimeproxy.admin.routes import KINDS, LONGEST_PAGE, ROUTES, Route
from runtimeproxy.errors import Reason
from runtimeproxy.observe.events import MOST_EVENTS, About, EventKind
from runtimeproxy.plugins.reach import Absence
from runtimeproxy.settings.options import LOG_LEVELS, Mode
from tests.admin.asked import Asked
from tests.admin.site import Site
from tests.cli.admin_answers import CANNED, EVENTS
from tests.fakes.plugins import FAIL

DOCUMENT: dict[str, Any] = yaml.safe_load(Path("docs/admin-api.yaml").read_text())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
CHECKER = Draft202012Validator.FORMAT_CHECKER


def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a node refers to, or the node."""
    found = node
    for key in node.get("$ref", "").split("/")[1:]:
        found = DOCUMENT[key] if found is node else found[key]
    return found


def operation(route: Route) -> Mapping[str, Any]:
    found = DOCUMENT["paths"][route.path][route.method.lower()]
    assert isinstance(found, dict)
    return found


def parameters(route: Route) -> dict[str, Mapping[str, Any]]:
    """Return what an operation takes in its query, or as members of its body, by name, each with its schema."""
    if "requestBody" in operation(route):
        schema = operation(route)["requestBody"]["content"]["application/json"]["schema"]
        return {name: resolved(value) for name, value in schema["properties"].items()}
    found = [resolved(parameter) for parameter in operation(route).get("parameters", [])]
    return {each["name"]: resolved(each["schema"]) for each in found if each["in"] == "query"}


def closed(node: Any) -> Any:
    """Return a schema in which no object has members beyond those that are written down."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: [*value] if key == "allOf" else closed(value) for key, value in node.items()}
    is_object = resolved(node).keys() & {"properties", "allOf"}
    return made | {"unevaluatedProperties": False} if is_object and "unevaluatedProperties" not in made else made


def open_at_the_top() -> dict[str, Any]:
    """Return the document's schemas, each closed in what is inside it; who refers to one closes it."""
    made: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        made[name] = closed(schema)
        made[name].pop("unevaluatedProperties", None)
    return made


def faults(schema: str, value: object) -> list[str]:
    whole = {
        "$ref": f"#/components/schemas/{schema}",
        "unevaluatedProperties": False,
        "components": {"schemas": open_at_the_top()},
    }
    found = Draft202012Validator(whole, format_checker=CHECKER).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


# -- the routes ------------------------------------------------------------------------------------------------------


def test_document_has_the_servers_routes() -> None:
    written = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert written == {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=[route.asks for route in ROUTES])
def test_operation_takes_what_its_route_takes(route: Route) -> None:
    assert operation(route)["operationId"] == route.asks
    assert list(parameters(route)) == list(route.takes)
    body = operation(route).get("requestBody", {"content": {"application/json": {"schema": {}}}})
    assert body["content"]["application/json"]["schema"].get("required", []) == list(route.needs)


def values(schema: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield values at the bounds of a parameter's schema, each with whether it is inside."""
    yield from ((value, True) for value in schema.get("enum", ()))
    if "enum" in schema:
        yield "another", False
    if "maximum" in schema:
        yield from ((str(schema["maximum"]), True), (str(schema["maximum"] + 1), False))
        yield from ((str(schema["minimum"]), True), (str(schema["minimum"] - 1), False))
    if "maxLength" in schema and schema["maxLength"] == 512:
        yield from (("n" * 512, True), ("n" * 513, False))


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "GET"], ids=lambda route: route.asks)
def test_parameters_have_the_written_bounds(route: Route) -> None:
    for name, schema in parameters(route).items():
        for value, inside in values(schema):
            try:
                route.takes[name](value)
            except ValueError:
                assert not inside, (name, value)
            else:
                assert inside, (name, value)


def test_words_are_those_of_the_tables() -> None:
    assert SCHEMAS["Kind"]["enum"] == list(KINDS)
    assert SCHEMAS["Level"]["enum"] == list(LOG_LEVELS)
    assert SCHEMAS["Version"]["properties"]["mode"]["enum"] == [mode.value for mode in Mode]
    limits = {route.asks: parameters(route)["limit"]["maximum"] for route in ROUTES if "limit" in route.takes}
    assert limits == {"store": LONGEST_PAGE, "events": MOST_EVENTS}


# -- the answers -----------------------------------------------------------------------------------------------------


def rich() -> Asked:
    """Return a proxy whose answers have something in each member."""
    asked = Asked()
    asked.add("p1", "c1", "c2")
    for name in "abc":
        asked.manager.add(name, policy=FAIL)
    asked.manager.plugins[0].last_error.note(1e9, "PreCreateContainer", Reason.DEADLINE)
    asked.metrics.count("hook_calls", "a", "PreCreateContainer", "ok")
    asked.metrics.observe("hook_call_duration_seconds", 0.01, "a")
    asked.reach.absences = {"b": Absence(0.0, "gone")}
    asked.manager.rejected = {"x.json": "x.json: not JSON (yet?)"}
    about = About("CreateContainer", "k1", "shop", "web", "p1", "main", "c1")
    fields, seconds = {"envs.key": "a"}, (0.1, 0.0, 0.2, 0.3, 0.0)
    for kind in EventKind:
        asked.metrics.events.add(
            kind, about, hook_server="a", hook="PreCreateContainer", reason="deadline", fields=fields, seconds=seconds
        )
        asked.metrics.events.add(kind)
    return asked


ANSWERS = [
    ("GET /version", 200, "Version"),
    ("GET /configz", 200, "Configuration"),
    ("GET /hooks", 200, "Hooks"),
    ("GET /store", 200, "Store"),
    ("GET /store?limit=1", 200, "Store"),
    ('POST /loglevel {"level": "debug", "for": "1h"}', 200, "LogLevel"),
    ('POST /loglevel {"level": "loud"}', 400, "Error"),
    ("GET /store?limit=0", 400, "Error"),
    ("GET /nothing", 404, "Error"),
    ("PUT /store", 405, "Error"),
]


@pytest.mark.parametrize(("asked", "status", "schema"), ANSWERS)
async def test_answer_is_as_written(tmp_path: Path, asked: str, status: int, schema: str) -> None:
    method, target, *body = asked.split(maxsplit=2)
    async with Site(tmp_path, rich().table) as site:
        found, text = await site.ask(target, method, "".join(body).encode())
    assert found == status
    assert faults(schema, json.loads(text)) == []


async def lines(folder: Path, asked: Asked, target: str) -> list[dict[str, Any]]:
    """Return the objects of an answer that comes in chunks."""
    async with Site(folder, asked.table) as site:
        _, text = await site.ask(target)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def test_events_are_as_written(tmp_path: Path) -> None:
    events = await lines(tmp_path, rich(), "/events")
    assert len(events) == 2 * len(EventKind)
    assert [fault for event in events for fault in faults("Event", event)] == []


async def test_gap_is_as_written(tmp_path: Path) -> None:
    asked = rich()
    for _ in range(MOST_EVENTS):
        asked.metrics.events.add(EventKind.DRAIN)
    gap, event = await lines(tmp_path, asked, "/events?limit=2")
    assert (faults("Gap", gap), gap["to"]) == ([], 2 * len(EventKind))
    assert event["number"] == gap["to"] + 1


async def test_health_is_text(tmp_path: Path) -> None:
    async with Site(tmp_path, rich().table) as site:
        for name in ("livez", "readyz"):
            status, text = await site.ask(f"/{name}?verbose")
            assert str(status) in DOCUMENT["paths"][f"/{name}"]["get"]["responses"]
            assert text.startswith(f"[+]{Check('loop').name}" if name == "livez" else "[+]listening ok\n")


CANNED_SCHEMAS = {
    "/version": "Version",
    "/hooks": "Hooks",
    "/store": "Store",
    "/loglevel": "LogLevel",
    "/hooks/rdt/disable": "Changed",
    "/hooks/rdt/enable": "Changed",
}


def test_answers_that_the_commands_outputs_are_made_of_are_as_written() -> None:
    assert CANNED.keys() == {*CANNED_SCHEMAS, "/readyz", "/events"}
    assert [fault for path, schema in CANNED_SCHEMAS.items() for fault in faults(schema, CANNED[path])] == []
    events = [{name: value for name, value in event.items() if name != "later"} for event in EVENTS]
    kinds = ["Gap" if event["kind"] == "gap" else "Event" for event in events]
    assert [fault for kind, event in zip(kinds, events, strict=True) for fault in faults(kind, event)] == []


def test_what_is_not_written_down_is_found() -> None:
    hook = rich().ask("hooks")
    assert faults("Hooks", {"schemaVersion": 1, **hook}) == []
    hook["hooks"][0]["more"] = 1
    assert len(faults("Hooks", {"schemaVersion": 1, **hook})) == 1
    assert faults("Gap", {"kind": "gap", "from": 1}) == ["$: 'to' is a required property"]
