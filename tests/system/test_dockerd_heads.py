"""The proxy parses requests like a real dockerd, or refuses them by a listed rule (fault matrix X2, X3)."""

import json
import re
import socket
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, Route, find_route
from tests.amounts import examples
from tests.docker.followed import PROXY_PREFIX, answers, check_refused, follow, mutations
from tests.docker.forms import FORMS, HIDDEN, TARGETS, Form, stream
from tests.docker.test_exchange_routes import HELD, ID, PASSING
from tests.engines.dockerd import BUSYBOX, Dockerd

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PATIENCE_SECONDS = 20.0
FOUND_HIDDEN = b"No such container: hidden"


def fetch(path: str, data: bytes) -> bytes:
    """Send bytes, then EOF; return all received bytes. Raises TimeoutError."""
    arrived = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(path)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has answered, and reads no further
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # from a daemon that has not read everything
            while part := client.recv(65536):
                arrived += part
    return arrived


# ---- X2: the same message boundaries

REFUSED_UNREAD = b"\r\n\r\n400 Bad Request"
"""The end of the answer to a malformed request; dockerd's handlers answer in JSON."""


def compare(dockerd: Dockerd, between: str, data: bytes) -> None:
    """Send bytes directly and through the proxy, and compare."""
    direct, through = (answers(fetch(path, data)) for path in (dockerd.socket, between))
    read = follow(data)
    if read.rule is None:
        if through != direct and read.cut(data) and direct[-1].endswith(REFUSED_UNREAD):
            direct.pop()  # dockerd refuses the beginning of a head; the proxy ends the connection
        assert through == direct
        assert not any(PROXY_PREFIX in part for part in through)
    else:
        check_refused(read, direct, through)
    # The answer names the requested container; a changed name begins like the hidden one.
    hidden_targets = sum(target.startswith(HIDDEN.removesuffix("/json")) for target in read.targets)
    assert sum(FOUND_HIDDEN in part for part in through) <= hidden_targets


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name[:60])
def test_request_form_is_parsed_as_dockerd_or_refused(dockerd: Dockerd, between: str, form: Form, target: str) -> None:
    compare(dockerd, between, stream(form, target))


@settings(max_examples=examples())
@given(mutations())
def test_mutated_request_form_is_parsed_as_dockerd(dockerd: Dockerd, between: str, data: bytes) -> None:
    compare(dockerd, between, data)


# ---- X3: the same route


NO_JSON = b"this is no JSON"
HANDLERS = {
    # The handlers' answers to a body that is not JSON, and to {}: no two of them are the same.
    Action.CREATE: ("invalid character", "config cannot be empty"),
    Action.START: ("starting container with non-empty request body", "No such container: "),
    Action.STOP: ('strconv.Atoi: parsing "zz"', "No such container: "),
    Action.UPDATE: ("invalid character", "No such container: "),
}
_VERSION = re.compile("client version ([0-9.]+) is too (?:new|old)")


def decided(dockerd: Dockerd, method: str, target: str) -> Route | str | None:
    """Return dockerd's decision on a method and a target, as its error texts show it.

    It is a version if the router found the handler, and that version is refused before it.
    """
    path, _, query = target.partition("?")
    probes = (f"{path}?t=zz&{query}", NO_JSON), (target, b"{}")
    first, second = (stated(dockerd, method, *probe).replace("Config cannot", "config cannot") for probe in probes)
    if refused := _VERSION.match(second):
        return refused[1]
    reference = second.partition("No such container: ")[2]
    if method == "DELETE":
        return Route(Action.REMOVE, reference) if reference else None
    for action, texts in HANDLERS.items():
        if texts[0] in first and texts[1] in second:
            return Route(action, reference)
    return None


def stated(dockerd: Dockerd, method: str, target: str, body: bytes) -> str:
    """Return the error text for a request, or any text if there is no error."""
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    arrived = fetch(dockerd.socket, f"{head}\r\n\r\n".encode("latin-1") + body).partition(b"\r\n\r\n")[2]
    return str(json.loads(arrived).get("message")) if arrived.startswith(b"{") else arrived.decode()


def agree(dockerd: Dockerd, method: str, target: str) -> None:
    """Check that dockerd routes a request as the proxy does."""
    decision, proxy_route = decided(dockerd, method, target), find_route(method, target)
    if isinstance(decision, str):
        assert decision in target
        decision = decided(dockerd, method, target.replace(decision, "1.41", 1))
    assert decision == (proxy_route and Route(proxy_route.action, proxy_route.reference))


UNSTATED = ("/containers/create?platform=x&na%6De=a%5Fb+c", "/containers/x/stop?%zz", f"/containers/{ID}/restart")
"""Rows of the tables that dockerd's texts do not distinguish."""
SKIPPED = {*UNSTATED, "/volumes/create"}  # the last one would be done
TABLE = [row[:2] for row in HELD + PASSING if row[0] in ("POST", "DELETE") and row[1] not in SKIPPED]
NAMES = ["name=a%20", "name=a+b", "name=%25&name=b", "na%6De=%C3%A9", "x&name=%FF", "name=%2Fa%2F", "Name=x&name=%2B"]
NAMES += ["name=\xc3\xa9\xff"]


def test_listed_route_is_matched_as_dockerd(dockerd: Dockerd) -> None:
    """dockerd's error contains the invalid name of a create."""
    for method, target in TABLE:
        agree(dockerd, method, target)
    for query in NAMES:
        target = f"/containers/create?{query}"
        proxy_route = find_route("POST", target)
        assert proxy_route is not None
        text = stated(dockerd, "POST", target, json.dumps({"Image": BUSYBOX}).encode())
        assert text.startswith(f"Invalid container name ({proxy_route.name}), ")


PREFIXES = (
    "  /v1.41 /v1.41 /v1.100 /v1. /v. /v1.41.1 /v01.41 /V1.41 /v1a /v /1.41 /v1.41/v1.41 /v1%2E41 /%761.41 / /. /x/.."
    " /x /v1.41%2F /v1.41%0a http://h HTTP://u@h:1/v1.41 unix: unix:// http: http:///v1.41 http://h? http://%2F h:1"
)
COLLECTIONS = "containers containers containers %63ontainers Containers container containers%2F"
REFERENCES = (
    f" {'f' * 64} x a.b a-b _ a/b a%2Fb a%2fb %2Fx x%2F .. . ... %2e%2e %2E %20 a+b %25 %2525 %c3%a9 %0a %0d %00 %ff"
    " a;b ~ @ :x * {x} a%zz % x#y x\\y start create stop create/start json containers/x v1.41 exec/y x/checkpoints \xe9"
    " \xc3\xa9 %c3\xa9 \x80/y x/a"
)
ENDS = (
    " start stop update create start stop update kill json START start/ start/. stop/.. start%2F sto%70 %73tart start&x"
    " start?x=1 update? stop?/../x start;x stop%0a start%3F start/x stop#x start%20 checkpoints/y update/%2e stop//"
    " ?start"
)
JOINS = "/ / / / / // %2F %2f /./ "
PARTS = (PREFIXES, "/", COLLECTIONS, JOINS, REFERENCES, JOINS, ENDS)
TARGETS_LIKE_HELD = st.tuples(*(st.sampled_from(words.split(" ")) for words in PARTS)).map("".join)


@settings(max_examples=examples())
@given(st.sampled_from(("POST", "POST", "POST", "DELETE")), TARGETS_LIKE_HELD)
def test_any_route_is_matched_as_dockerd(dockerd: Dockerd, method: str, target: str) -> None:
    agree(dockerd, method, target)
