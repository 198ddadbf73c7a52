"""The routing decision. The tables were compared with gorilla/mux 1.8 on moby's routes; each row has its reason."""

from collections.abc import Mapping
from functools import partial

import pytest

from runtimeproxy.docker import exchange
from runtimeproxy.docker.exchange import Action, Route, find_route, may_upgrade

ID = "53a2aab85aded907772e67854c6d1600abd22101b5c4f30eaee265dfea7636ff"
CREATE, created = Route(Action.CREATE), partial(Route, Action.CREATE, "")


def split(table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each word of a table's texts, with its reason."""
    return [(why, word) for why, words in table.items() for word in words.split()]


X = "x"
UNENCODED = {
    "the prefix of an id": "53a2aab",
    "a name may hold - . _ and slashes": "web-0.app_1 a/b",
    "only the last word counts": "start create x/stop x/create exec/x v1.41/containers/x",
    "three dots are a name, and + is no space": "... a+b",
    "Go takes what RFC 3986 does not, and a colon is no scheme here": "{x}|^ x:y",
}
DECODED = {"a%2Fb": "a/b", "a%20b": "a b", "a%3Fb": "a?b", "%C3%A9": "é", "a%25b": "a%b", "a%0D": "a\r"}
DECODED |= {"%FF": "\ufffd", "\xff": "\ufffd", "\xc3\xa9": "é", "%C3\xa9": "é"}
"""Targets are decoded once, before matching. A name that is not UTF-8 names nothing; only a line feed ends Go's dot.
Targets are bytes as latin-1."""
REMOVED = {
    "a name may hold slashes, at its end too": "a/b x/",
    "only the method says what it is": "create x/start",
    "a checkpoint has a name without a slash, as its container": "x/checkpoints x/checkpoints/y/z w/x/checkpoints/y",
}
CALLED = {
    "no version, or any digits and dots": (
        CREATE,
        "/containers/create /v1/containers/create /v1.100/containers/create",
    ),
    "a dot alone is a version too": (CREATE, "/v1./containers/create /v./containers/create"),
    "decoded before it is matched": (CREATE, "/%63ontainers/%63reate"),
    "no name, or an empty one": (CREATE, "/containers/create? /containers/create?name="),
    "the first name counts, if empty too": (CREATE, "/containers/create?name=&name=b"),
    "a key without a value": (CREATE, "/containers/create?names=a&xname=b&a=name&name"),
    "the key's case matters": (CREATE, "/containers/create?Name=a"),
    "the first ? begins the query": (CREATE, "/containers/create?x?name=a"),
    "a query need not be clean": (CREATE, "/containers/create?p=/../stop"),
    "more than one dot": (Route(Action.START, X), "/v1.2.3/containers/x/start"),
    "slashes are decoded, too": (Route(Action.START, X), "/v1.41%2Fcontainers%2Fx%2Fstart"),
    "user, address and port": (Route(Action.START, X), "HTTP://u:p@[::1]:80/containers/x/start"),
    "a version and a word are decoded": (Route(Action.STOP, X), "/v1%2E41/containers/x/%73top"),
    "a query is no path": (Route(Action.STOP, X), "/containers/x/stop?/containers/y/start"),
    "Go refuses a query only when it is read": (Route(Action.STOP, X), "/containers/x/stop?%zz"),
    "a scheme without an authority": (Route(Action.STOP, X), "unix:/containers/x/stop"),
}
HELD = [("POST", "/v1.41/containers/create?name=k8s_a_b_c_d_0", created("k8s_a_b_c_d_0"), "dockershim")]
HELD += [("POST", f"/v1.41/containers/{ID}/start", Route(Action.START, ID), "dockershim")]
HELD += [("POST", f"/v1.41/containers/{ID}/stop?t=10", Route(Action.STOP, ID), "dockershim")]
HELD += [("POST", f"/v1.41/containers/{ID}/update", Route(Action.UPDATE, ID), "dockershim")]
HELD += [("DELETE", f"/v1.41/containers/{ID}?force=1&v=1", Route(Action.REMOVE, ID), "dockershim")]
HELD += [("DELETE", "/containers%2Fx", Route(Action.REMOVE, X), "slashes are decoded, too")]
HELD += [("DELETE", "http:///containers/x", Route(Action.REMOVE, X), "an empty authority")]
HELD += [("POST", "/containers/create?name=a&name=b", created("a"), "the first one counts")]
HELD += [("POST", "/containers/create?n%61m%65=a+b%21", created("a b!"), "Go unescapes keys, too")]
HELD += [("POST", "/containers/create?platform=x&na%6De=a%5Fb+c", created("a_b c"), "key and value decoded")]
HELD += [("POST", "http://docker/v1.41/containers/create?name=a", created("a"), "a proxy's form")]
HELD += [("POST", "/containers/create?name=\xc3\xa9+%C3%A9", created("é é"), "not ASCII, with and without escapes")]
HELD += [("POST", f"/containers/{name}/start", Route(Action.START, name), why) for why, name in split(UNENCODED)]
HELD += [("POST", f"/containers/{spelt}/stop", Route(Action.STOP, name), "decoded") for spelt, name in DECODED.items()]
HELD += [("DELETE", f"/containers/{name}", Route(Action.REMOVE, name), why) for why, name in split(REMOVED)]
HELD += [("POST", target, stated, why) for why, (stated, targets) in CALLED.items() for target in targets.split()]

PASSED = {
    "watched by its event": f"/containers/{ID}/kill /containers/{ID}/restart /containers/x/rename?name=y",
    "all of these are watched by their events": "/containers/prune",
    "another route": "/containers/x/exec /exec/x/start /services/x/update /volumes/create",
    "unclean: redirected": "//containers/create /v1.41//containers/create /containers/./start /x/../containers/create",
    "unclean at the end": "/containers/x/.. /containers/x/start/.",
    "unclean, so /name is no reference": "/containers//x/start /containers//start",
    "unclean once decoded": "/containers/%2Fx/start /containers/%2E/start",
    "a trailing slash": "/containers/create/ /containers/x/start/",
    "no reference": "/containers/start",
    "paths are exact": "/containers/x/Start /Containers/create /containers/createx",
    "no route's dot matches a line feed, which is no end either": "/containers/x/start%0A /containers/x%0Ay/start",
    "no version": "/v/containers/create /v1a/containers/create /V1.41/containers/create /x/containers/create",
    "two versions": "/v1.41/v1.41/containers/create",
    "a target has no fragment": "/containers/create#f",
    "a broken escape": "/containers/x%/start /containers/%zz/start",
    "no slash in front": "%2Fcontainers/create containers/create *",
    "no scheme": ":/containers/create 1http://h/containers/create",
    "a host called containers, an opaque URL, no path": "http://containers/create http:containers/create http://docker",
}
NOT_REMOVED = {
    "an image": "/images/x",
    "a checkpoint, registered before the container": "/containers/x/checkpoints/y /v1.41/containers/x/checkpoints/y",
    "unclean": "/containers/..",
    "no reference": "/containers/ /containers",
}
PASSING = [("POST", target, why) for why, target in split(PASSED)]
PASSING += [("DELETE", target, why) for why, target in split(NOT_REMOVED)]
PASSING += [("GET", target, "never held") for target in ("/_ping", f"/v1.41/containers/{ID}/json")]
PASSING += [("GET", "/v1.41/containers/create", "POST only"), ("PUT", "/containers/x/start", "POST only")]
PASSING += [("HEAD", "/containers/x/stop", "POST only"), ("post", "/containers/create", "methods are exact")]
PASSING += [("OPTIONS", "*", "the server as a whole")]


def test_only_five_counted_routes_are_held() -> None:
    """A request that passes is counted by its route."""

    def counted_as(method: str, target: str) -> str:
        match = exchange.match_passing(f"{method} {target}")
        return exchange.PASSING_SERIES[match.lastindex or 0 if match else 0][1][0]

    not_counted = f"""
        GET:/ GET:/containers/json/ GET:/containers/{ID}/json/x GET:/containers/{ID} GET://_ping get:/_ping PUT:/_ping
        GET:http://docker/_ping GET:/plugins GET:/v1.41 GET:/containers//json OPTIONS:* GET:/containers/{"x" * 256}/json
    """
    actions = {"POST /containers/create": Action.CREATE, "DELETE /containers/{id}": Action.REMOVE}
    for action in (Action.START, Action.STOP, Action.UPDATE):
        actions[f"POST /containers/{{id}}/{action.name.lower()}"] = action
    for _, (template, *_) in exchange.PASSING_SERIES[1:]:
        method, _, path = template.partition(" ")
        route = find_route(method, f"/v1.41{path}")
        assert (route.action if route else None) is actions.get(template)
        path = path.replace("{id}", ID).replace("{name}", "docker.io/library/nginx:1@sha256:ab")
        for target in (path, f"/v1.41{path}", f"/v1.41{path}?a=/containers/json"):
            assert counted_as(method, target) == template
    for other in not_counted.split():
        assert counted_as(*other.split(":", 1)) == "other", other


def test_route_is_held() -> None:
    for method, target, expected, why in HELD:
        assert find_route(method, target) == expected, why
        assert not may_upgrade(method, target)
        for other in ("GET", "HEAD", "PUT", "PATCH", "OPTIONS", "CONNECT", method.lower(), ""):
            assert find_route(other, target) is None


def test_route_passes() -> None:
    name = "n" * 100_000
    assert find_route("POST", f"/containers/{name}/start") == Route(Action.START, name)
    assert find_route("POST", f"/containers/{name}/kill") is None
    assert may_upgrade("POST", f"/containers/{name}/attach")
    for method, target, why in PASSING:
        assert find_route(method, target) is None, why


def test_route_may_upgrade() -> None:
    for upgrades, targets in {
        "the old-style hijack": f"POST:/v1.41/containers/{ID}/attach?stream=1&stdin=1 POST:/v1.41/exec/{ID}/start",
        "any reference": "POST:/containers/a%2Fb/attach POST:/exec/a/b/start",
        "HTTP/2 of a build": "POST:/v1.41/session POST:/grpc POST:http://docker/grpc",
        "a WebSocket": "GET:/v1.41/containers/x/attach/ws?stdin=1 GET:/containers/x/attach%2fws",
        "not: POST only": "GET:/containers/x/attach GET:/exec/x/start PUT:/session",
        "not: GET only": "POST:/containers/x/attach/ws",
        "not: redirected, a trailing slash, a broken escape": "POST:/containers//attach POST:/session/ POST:/grpc%",
        "not: another route": "POST:/exec/x/resize GET:/containers/x/ws GET:/_ping POST:/build",
        "not: a stream, but no tunnel": "GET:/containers/x/logs?follow=1",
        "not: an escaped query": "GET:/v1.41/containers/json?filters=%7B%7D",
    }.items():
        for method, _, target in (text.partition(":") for text in targets.split()):
            assert may_upgrade(method, target) is not upgrades.startswith("not"), target
            assert find_route(method, target) is None


def test_query_decodes_only_name_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    unescaped: list[str] = []
    monkeypatch.setattr(exchange, "unquote_to_bytes", lambda text: unescaped.append(text) or text)
    assert find_route("POST", "/containers/create?" + "%61&" * 1_000 + "name=x") == created("x")
    assert unescaped == [b"x"]
