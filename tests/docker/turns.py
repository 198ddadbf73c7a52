"""Generated requests with their answers, for one connection: all framings, upgrades that fail and that do not.

Owns the strategies.
Must not know: the proxy.
Invariant: each message ends where it says, but for the last answer.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.docker.peer import (
    ATTACH,
    CHUNKED,
    CLOSE,
    CONTINUE,
    CREATE,
    EXEC,
    EXPECT,
    ID,
    INFO,
    NOT_FOUND,
    OK,
    PING,
    START,
    STOP,
    UPGRADE,
    answer,
    chunks,
    head,
    request,
)

EARLY = head("HTTP/1.1 103 Early Hints")


@dataclass
class Turn:
    """A request and its answer; ``behind`` is what either side sends once the connection is a tunnel."""

    sent: bytes
    replied: bytes
    may_tunnel: bool = False
    behind: tuple[bytes, bytes] = (b"", b"")

    @property
    def head_length(self) -> int:
        """Return the length of the request's head."""
        return self.sent.index(b"\r\n\r\n") + 4


# ---- what is generated

FIELDS = st.lists(st.sampled_from(["X-Registry-Auth: e30=", "accept:  */*", "User-Agent: curl", "X-A:"]), max_size=3)
BODY = st.binary(max_size=60) | st.sampled_from([PING, START, b"0\r\n\r\n", OK, b"x" * 3000])
PIECES = st.lists(BODY.filter(bool), max_size=4).map(tuple)
TRAILERS = st.lists(st.sampled_from(["Sum: 1", "Content-Sum: 9"]), max_size=2).map(tuple)
INTERIM = st.sampled_from([b"", b"", EARLY, CONTINUE, EARLY + CONTINUE])
TARGETS = [
    "/_ping",
    "/v1.41/info",
    "/images/load",
    "/build?q=1",
    "/containers/json",
    f"/containers/{ID}/stop",
    "/a%2Fb?%zz",
]
HELD_TARGETS = [
    "/containers/create",
    "/v1.41/containers/create?name=a",
    f"/containers/{ID}/start",
    "/containers/b/stop",
]


@st.composite
def requests_with_a_body(draw: st.DrawFn, targets: list[str] = TARGETS) -> bytes:
    """Return a request with a body in one of the framings."""
    target, fields = draw(st.sampled_from(targets)), draw(FIELDS)
    if draw(st.booleans()):
        return request("POST", target, *fields, *draw(st.sampled_from([(), (EXPECT,)])), body=draw(BODY))
    return request("POST", target, *fields, CHUNKED) + chunks(*draw(PIECES), trailers=draw(TRAILERS))


BODILESS = st.builds(lambda target, fields: request("GET", target, *fields), st.sampled_from(TARGETS), FIELDS)
OLD = st.just(head("GET /_ping HTTP/1.0", "Connection: keep-alive"))
REQUESTS = st.sampled_from([PING, PING, INFO]) | BODILESS | requests_with_a_body() | OLD
TO_HOLD = st.sampled_from([CREATE, START, STOP]) | requests_with_a_body(HELD_TARGETS)
REPLIES = (
    st.sampled_from([OK, OK, NOT_FOUND, answer(204, body=None), answer(304, "Content-Length: 7", body=None)])
    | st.builds(lambda fields, body: answer(200, *fields, body=body), FIELDS, BODY)
    | st.builds(
        lambda pieces, trailers: answer(200, CHUNKED, body=None) + chunks(*pieces, trailers=trailers), PIECES, TRAILERS
    )
)
USUAL = st.builds(lambda sent, early, reply: Turn(sent, early + reply), REQUESTS, INTERIM, REPLIES)
OF_HEAD = st.builds(
    lambda reply: Turn(request("HEAD", "/_ping"), reply),
    st.sampled_from([answer(200, "Content-Length: 9", body=None), answer(404, CHUNKED, body=None)]),
)
MAY_TUNNEL = st.sampled_from([ATTACH, EXEC, request("GET", "/nowhere", *UPGRADE)])
FAILED_UPGRADE = st.builds(lambda sent, reply: Turn(sent, reply, may_tunnel=True), MAY_TUNNEL, REPLIES)
TURNS = st.lists(USUAL | USUAL | OF_HEAD | FAILED_UPGRADE, max_size=5)

RAW = BODY | st.just(b"GET / nonsense\n\0")
UNFRAMED = st.sampled_from([answer(200, body=None), answer(404, CLOSE, body=None), head("HTTP/1.0 200 OK")])
SWITCHES = UNFRAMED | st.just(head("HTTP/1.1 101 UPGRADED", *UPGRADE))
UPGRADED = st.builds(
    lambda sent, early, reply, behind: Turn(sent, early + reply, may_tunnel=True, behind=behind),
    MAY_TUNNEL,
    INTERIM,
    SWITCHES,
    st.tuples(RAW, RAW),
)
ENDLESS = st.builds(lambda sent, reply, body: Turn(sent, reply, behind=(b"", body)), REQUESTS, UNFRAMED, RAW)
LAST = st.builds(lambda sent: Turn(sent, answer(200, CLOSE, body=b"last")), REQUESTS)
CONVERSATIONS = st.builds(lambda turns, last: [*turns, *last], TURNS, st.lists(UPGRADED | ENDLESS | LAST, max_size=1))
SIZES = st.lists(st.tuples(st.booleans(), st.integers(1, 60) | st.integers(1, 4000)), max_size=25)
"""Who sends next, the client or the daemon, and how many bytes."""
