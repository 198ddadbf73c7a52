"""Tests of the routing decision. The table was compared with gorilla/mux 1.8 on moby's routes; each row says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker import routes
from runtimeproxy.docker.routes import Action, Route, may_upgrade, route

ID = "53a2aab85aded907772e67854c6d1600abd22101b5c4f30eaee265dfea7636ff"
CREATE = Route(Action.CREATE)


def created(name: str) -> Route:
    return Route(Action.CREATE, "", name)


def of(action: Action, reference: str) -> Route:
    return Route(action, reference)


HELD = [
    ("POST", "/v1.41/containers/create?name=k8s_a_b_c_d_0", created("k8s_a_b_c_d_0"), "dockershim"),
    ("POST", f"/v1.41/containers/{ID}/start", of(Action.START, ID), "dockershim"),
    ("POST", f"/v1.41/containers/{ID}/stop?t=10", of(Action.STOP, ID), "dockershim"),
    ("POST", f"/v1.41/containers/{ID}/update", of(Action.UPDATE, ID), "dockershim"),
    ("DELETE", f"/v1.41/containers/{ID}?force=1&v=1", of(Action.REMOVE, ID), "dockershim"),
    # versions
    ("POST", "/containers/create", CREATE, "no version: the newest"),
    ("POST", "/v1/containers/create", CREATE, "any digits and dots"),
    ("POST", "/v1.100/containers/create", CREATE, "routed; the version is refused later"),
    ("POST", "/v1./containers/create", CREATE, "a dot alone is a version too"),
    ("POST", "/v./containers/create", CREATE, "only dots"),
    ("POST", "/v1.2.3/containers/x/start", of(Action.START, "x"), "more than one dot"),
    # references
    ("POST", "/containers/53a2aab/start", of(Action.START, "53a2aab"), "prefix of an id"),
    ("POST", "/containers/web-0.app_1/stop", of(Action.STOP, "web-0.app_1"), "name with - and . and _"),
    ("POST", "/containers/a/b/start", of(Action.START, "a/b"), "a name may hold slashes"),
    ("POST", "/containers/a%2Fb/start", of(Action.START, "a/b"), "decoded before it is matched"),
    ("POST", "/containers/start/start", of(Action.START, "start"), "a container called start"),
    ("POST", "/containers/create/stop", of(Action.STOP, "create"), "a container called create"),
    ("POST", "/containers/x/start/stop", of(Action.STOP, "x/start"), "the last word counts"),
    ("POST", "/containers/x/create/start", of(Action.START, "x/create"), "the last word counts"),
    ("POST", "/containers/v1.41/containers/x/start", of(Action.START, "v1.41/containers/x"), "no second version"),
    ("POST", "/containers/exec/x/start", of(Action.START, "exec/x"), "no start of an exec"),
    ("POST", "/containers/.../start", of(Action.START, "..."), "three dots are a name"),
    ("POST", "/containers/a+b/start", of(Action.START, "a+b"), "+ is no space in a path"),
    ("POST", "/containers/a%20b/start", of(Action.START, "a b"), "a space"),
    ("POST", "/containers/a%3Fb/start", of(Action.START, "a?b"), "an escaped ? is no query"),
    ("POST", "/containers/%C3%A9/start", of(Action.START, "é"), "UTF-8"),
    ("POST", "/containers/%FF/start", of(Action.START, "\ufffd"), "no UTF-8: nobody's name"),
    ("POST", "/containers/a%25b/stop", of(Action.STOP, "a%b"), "decoded once only"),
    ("POST", "/containers/a%0D/stop", of(Action.STOP, "a\r"), "only the line feed ends Go's dot"),
    ("POST", "/containers/x:y/update", of(Action.UPDATE, "x:y"), "a colon is no scheme here"),
    ("POST", "/containers/{x}|^/update", of(Action.UPDATE, "{x}|^"), "Go takes what RFC 3986 does not"),
    # percent-encoding of the fixed parts
    ("POST", "/%63ontainers/%63reate", CREATE, "decoded before it is matched"),
    ("POST", "/v1%2E41/containers/x/%73top", of(Action.STOP, "x"), "decoded before it is matched"),
    ("POST", "/v1.41%2Fcontainers%2Fx%2Fstart", of(Action.START, "x"), "slashes too"),
    ("DELETE", "/containers%2Fx", of(Action.REMOVE, "x"), "slashes too"),
    # queries
    ("POST", "/containers/create?", CREATE, "an empty query"),
    ("POST", "/containers/create?name=", CREATE, "an empty name"),
    ("POST", "/containers/create?name=a&name=b", created("a"), "the first one counts"),
    ("POST", "/containers/create?n%61m%65=a+b%21", created("a b!"), "Go unescapes keys, too"),
    ("POST", "/containers/create?names=a&xname=b&a=name&name", CREATE, "no other key, and a key without a value"),
    ("POST", "/containers/create?name=&name=b", CREATE, "the first one counts, if empty too"),
    ("POST", "/containers/create?platform=x&na%6De=a%5Fb+c", created("a_b c"), "key and value decoded"),
    ("POST", "/containers/create?Name=a", CREATE, "the key's case matters"),
    ("POST", "/containers/create?x?name=a", CREATE, "the first ? begins the query"),
    ("POST", "/containers/create?p=/../stop", CREATE, "a query need not be clean"),
    ("POST", "/containers/x/stop?/containers/y/start", of(Action.STOP, "x"), "a query is no path"),
    ("POST", "/containers/x/stop?%zz", of(Action.STOP, "x"), "Go refuses a query only when it is read"),
    # absolute targets
    ("POST", "http://docker/v1.41/containers/create?name=a", created("a"), "a proxy's form"),
    ("POST", "HTTP://u:p@[::1]:80/containers/x/start", of(Action.START, "x"), "user, address and port"),
    ("POST", "unix:/containers/x/stop", of(Action.STOP, "x"), "a scheme without an authority"),
    ("DELETE", "http:///containers/x", of(Action.REMOVE, "x"), "an empty authority"),
    # delete
    ("DELETE", "/containers/a/b", of(Action.REMOVE, "a/b"), "a name may hold slashes"),
    ("DELETE", "/containers/x/", of(Action.REMOVE, "x/"), "a trailing slash is the name's: nobody's"),
    ("DELETE", "/containers/create", of(Action.REMOVE, "create"), "a container called create"),
    ("DELETE", "/containers/x/start", of(Action.REMOVE, "x/start"), "only the method says what it is"),
    ("DELETE", "/containers/x/checkpoints", of(Action.REMOVE, "x/checkpoints"), "no checkpoint named"),
    ("DELETE", "/containers/x/checkpoints/y/z", of(Action.REMOVE, "x/checkpoints/y/z"), "a checkpoint has no slash"),
    ("DELETE", "/containers/w/x/checkpoints/y", of(Action.REMOVE, "w/x/checkpoints/y"), "its container neither"),
]

PASSING = [
    # methods
    ("GET", "/v1.41/containers/create", "POST only"),
    ("PUT", "/containers/x/start", "POST only"),
    ("HEAD", "/containers/x/stop", "POST only"),
    ("post", "/containers/create", "methods are exact"),
    ("DELETE", "/images/x", "an image"),
    # other routes
    ("GET", "/_ping", "never held"),
    ("GET", f"/v1.41/containers/{ID}/json", "never held"),
    ("POST", f"/containers/{ID}/kill", "watched by its event"),
    ("POST", f"/containers/{ID}/restart", "watched by its event"),
    ("POST", "/containers/x/rename?name=y", "watched by its event"),
    ("POST", "/containers/prune", "watched by its event"),
    ("POST", "/containers/x/exec", "another route"),
    ("POST", "/exec/x/start", "the start of an exec"),
    ("POST", "/services/x/update", "a service"),
    ("POST", "/volumes/create", "a volume"),
    ("DELETE", "/containers/x/checkpoints/y", "a checkpoint, registered before the container"),
    ("DELETE", "/v1.41/containers/x/checkpoints/y", "a checkpoint, registered before the container"),
    # what mux redirects
    ("POST", "//containers/create", "unclean: redirected"),
    ("POST", "/v1.41//containers/create", "unclean: redirected"),
    ("POST", "/containers//x/start", "unclean: redirected, so /name is no reference"),
    ("POST", "/containers/%2Fx/start", "unclean once decoded"),
    ("POST", "/containers//start", "no reference, and unclean"),
    ("POST", "/containers/./start", "unclean"),
    ("POST", "/containers/%2E/start", "unclean once decoded"),
    ("POST", "/x/../containers/create", "unclean"),
    ("POST", "/containers/x/..", "unclean"),
    ("POST", "/containers/x/start/.", "unclean"),
    ("DELETE", "/containers/..", "unclean"),
    # what no route matches
    ("POST", "/containers/create/", "a trailing slash"),
    ("POST", "/containers/x/start/", "a trailing slash"),
    ("POST", "/containers/start", "no reference"),
    ("POST", "/containers/x/Start", "paths are exact"),
    ("POST", "/Containers/create", "paths are exact"),
    ("POST", "/containers/x/start%0A", "a line feed is no end"),
    ("POST", "/containers/x%0Ay/start", "no route's dot matches a line feed"),
    ("POST", "/v/containers/create", "no digits"),
    ("POST", "/v1a/containers/create", "a letter"),
    ("POST", "/V1.41/containers/create", "a capital"),
    ("POST", "/v1.41/v1.41/containers/create", "two versions"),
    ("POST", "/x/containers/create", "a prefix that is no version"),
    ("POST", "/containers/createx", "another word"),
    ("POST", "/containers/create#f", "a target has no fragment"),
    ("DELETE", "/containers/", "no reference: dockerd refuses it"),
    ("DELETE", "/containers", "no reference"),
    # what Go's parser refuses
    ("POST", "/containers/x%/start", "a broken escape"),
    ("POST", "/containers/%zz/start", "a broken escape"),
    ("POST", "%2Fcontainers/create", "no slash in front"),
    ("POST", "containers/create", "no slash in front"),
    ("POST", ":/containers/create", "an empty scheme"),
    ("POST", "1http://h/containers/create", "no scheme"),
    ("POST", "http://containers/create", "a host called containers"),
    ("POST", "http:containers/create", "an opaque URL"),
    ("POST", "http://docker", "no path"),
    ("OPTIONS", "*", "the server as a whole"),
    ("POST", "*", "no path"),
]


ROUTES = {
    "GET": """
        /_ping /auth /configs /configs/{ref} /containers/json /containers/{ref}/archive /containers/{ref}/attach/ws
        /containers/{ref}/changes /containers/{ref}/checkpoints /containers/{ref}/export /containers/{ref}/json
        /containers/{ref}/logs /containers/{ref}/stats /containers/{ref}/top /debug/pprof/ /debug/pprof/{ref}
        /debug/pprof/cmdline /debug/pprof/profile /debug/pprof/symbol /debug/pprof/trace /debug/vars
        /distribution/{ref}/json /events /exec/{ref}/json /images/get /images/json /images/search /images/{ref}/get
        /images/{ref}/history /images/{ref}/json /info /networks /networks/ /networks/{ref} /nodes /nodes/{ref} /plugins
        /plugins/privileges /plugins/{ref}/json /secrets /secrets/{ref} /services /services/{ref} /services/{ref}/logs
        /swarm /swarm/unlockkey /system/df /tasks /tasks/{ref} /tasks/{ref}/logs /version /volumes /volumes/{ref}
    """,
    "HEAD": "/_ping /containers/{ref}/archive",
    "POST": """
        /auth /build /build/cancel /build/prune /commit /configs/create /configs/{ref}/update /containers/create
        /containers/prune /containers/{ref}/attach /containers/{ref}/checkpoints /containers/{ref}/copy
        /containers/{ref}/exec /containers/{ref}/kill /containers/{ref}/pause /containers/{ref}/rename
        /containers/{ref}/resize /containers/{ref}/restart /containers/{ref}/start /containers/{ref}/stop
        /containers/{ref}/unpause /containers/{ref}/update /containers/{ref}/wait /exec/{ref}/resize /exec/{ref}/start
        /grpc /images/create /images/load /images/prune /images/{ref}/push /images/{ref}/tag /networks/create
        /networks/prune /networks/{ref}/connect /networks/{ref}/disconnect /nodes/{ref}/update /plugins/create
        /plugins/pull /plugins/{ref}/disable /plugins/{ref}/enable /plugins/{ref}/push /plugins/{ref}/set
        /plugins/{ref}/upgrade /secrets/create /secrets/{ref}/update /services/create /services/{ref}/update /session
        /swarm/init /swarm/join /swarm/leave /swarm/unlock /swarm/update /volumes/create /volumes/prune
    """,
    "PUT": "/containers/{ref}/archive",
    "DELETE": """
        /configs/{ref} /containers/{ref} /containers/{ref}/checkpoints/{ref} /images/{ref} /networks/{ref} /nodes/{ref}
        /plugins/{ref} /secrets/{ref} /services/{ref} /volumes/{ref}
    """,
    "OPTIONS": "/{ref}",
}
API = tuple((method, path) for method, paths in ROUTES.items() for path in paths.split())
"""Every route of moby 20.10: api/server/router, every initRoutes."""


@pytest.mark.parametrize(("method", "path"), API)
def test_of_all_routes_of_the_api_these_five_are_held(method: str, path: str) -> None:
    held = {
        ("POST", "/containers/create"): Action.CREATE,
        ("POST", "/containers/{ref}/start"): Action.START,
        ("POST", "/containers/{ref}/stop"): Action.STOP,
        ("POST", "/containers/{ref}/update"): Action.UPDATE,
        ("DELETE", "/containers/{ref}"): Action.REMOVE,
    }
    decided = route(method, f"/v1.41{path}")
    assert (decided.action if decided else None) is held.get((method, path))


@pytest.mark.parametrize(("method", "target", "expected", "why"), HELD)
def test_held(method: str, target: str, expected: Route, why: str) -> None:
    assert route(method, target) == expected, why
    assert not may_upgrade(method, target)
    for other in ("GET", "HEAD", "PUT", "PATCH", "OPTIONS", "CONNECT", method.lower(), ""):
        assert route(other, target) is None


@pytest.mark.parametrize(("method", "target", "why"), PASSING)
def test_passing(method: str, target: str, why: str) -> None:
    assert route(method, target) is None, why


@pytest.mark.parametrize("length", [500, 600, 100_000])
def test_long_targets_are_decided_alike_but_not_remembered(length: int) -> None:
    name = "n" * length
    assert route("POST", f"/containers/{name}/start") == of(Action.START, name)
    assert route("POST", f"/containers/{name}/kill") is None
    assert may_upgrade("POST", f"/containers/{name}/attach")


def test_equal_requests_share_one_route() -> None:
    assert route("POST", "/containers/shared/stop") is route("POST", "/containers/shared/stop")


@given(st.sampled_from(["start", "stop", "update"]), st.text(min_size=1, max_size=8), st.sampled_from(["", "/v1.41"]))
def test_escaped_reference_is_the_reference(verb: str, reference: str, version: str) -> None:
    """Every byte of the path escaped: the decision is on what it decodes to."""
    path = f"{version}/containers/{reference}/{verb}"
    parts = reference.split("/")
    clean = not {"", ".", ".."} & set(parts) and "\n" not in reference
    target = "/" + "".join(f"%{byte:02x}" for byte in path.encode()[1:])
    assert route("POST", target) == (of(Action(verb), reference) if clean else None)


@given(st.sampled_from(["POST", "DELETE", "GET"]), st.text(st.characters(codec="ascii"), max_size=30))
def test_no_target_raises_and_only_a_create_has_no_reference(method: str, target: str) -> None:
    decided = route(method, "/containers/" + target)
    assert decided is None or bool(decided.reference) is (decided.action is not Action.CREATE)
    assert not (may_upgrade(method, target) and route(method, target))


UPGRADING = [
    ("POST", f"/v1.41/containers/{ID}/attach?stream=1&stdin=1", True, "the old-style hijack"),
    ("POST", "/containers/a%2Fb/attach", True, "any reference"),
    ("POST", f"/v1.41/exec/{ID}/start", True, "the old-style hijack"),
    ("POST", "/exec/a/b/start", True, "any reference"),
    ("POST", "/v1.41/session", True, "HTTP/2 of a build"),
    ("POST", "/grpc", True, "HTTP/2 of a build"),
    ("GET", "/v1.41/containers/x/attach/ws?stdin=1", True, "a WebSocket"),
    ("GET", "/containers/x/attach%2fws", True, "decoded before it is matched"),
    ("POST", "http://docker/grpc", True, "an absolute target"),
    ("GET", "/containers/x/attach", False, "POST only"),
    ("POST", "/containers/x/attach/ws", False, "GET only"),
    ("GET", "/exec/x/start", False, "POST only"),
    ("PUT", "/session", False, "POST only"),
    ("POST", "/containers//attach", False, "redirected"),
    ("POST", "/exec/x/resize", False, "another route"),
    ("POST", "/session/", False, "a trailing slash"),
    ("POST", "/grpc%", False, "a broken escape"),
    ("GET", "/containers/x/ws", False, "another route"),
    ("GET", "/containers/x/logs?follow=1", False, "a stream, but no tunnel"),
    ("GET", "/v1.41/containers/json?filters=%7B%7D", False, "no tunnel"),
    ("GET", "/_ping", False, "no tunnel"),
    ("POST", "/build", False, "no tunnel"),
]


@pytest.mark.parametrize(("method", "target", "expected", "why"), UPGRADING)
def test_may_upgrade(method: str, target: str, expected: bool, why: str) -> None:
    assert may_upgrade(method, target) is expected, why
    assert route(method, target) is None


def test_of_a_long_query_nothing_but_the_name_is_unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    unescaped: list[str] = []
    monkeypatch.setattr(routes, "unquote_plus", lambda text: unescaped.append(text) or text)
    assert route("POST", "/containers/create?" + "%61&" * 1_000 + "name=x") == created("x")
    assert unescaped == ["x"]
