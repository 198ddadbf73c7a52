"""Docker's API as dockerd 20.10 routes it, and conversations on it: requests, their answers, what follows an upgrade.

Owns the table of routes (moby 20.10, api/server/router: every initRoutes), and the strategies for messages on them.
Must not know: the proxy.
Invariant: a message is what RFC 9112 allows and a daemon may send; each ends where it says, but for the last answer.
"""

from typing import NamedTuple

from hypothesis import strategies as st

from tests.docker.peer import CHUNKED, CLOSE, CONTINUE, EXPECT, ID, UPGRADE, chunks, head

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
TABLE = tuple((method, path) for method, paths in ROUTES.items() for path in paths.split())
HELD = (
    *(("POST", f"/containers/{path}") for path in ("create", "{ref}/start", "{ref}/stop", "{ref}/update")),
    ("DELETE", "/containers/{ref}"),
)
OTHERS = tuple(row for row in TABLE if row not in HELD and "checkpoints/{ref}" not in row[1])
"""Without the checkpoints' too: with a slash in it the reference may be a container's."""

REFERENCES = st.sampled_from(
    (ID, ID[:12], "web-0.main_1", "k8s_POD_w_d_u_0", "a%2Fb", "127.0.0.1:5000/pause:1", "%C3%A9")
)
QUERIES = st.sampled_from(("", "", "?", "?a=b&a=c", "?filters=%7B%22id%22%3Atrue%7D", "?t=10", "?name=k8s_POD_w_d_u_0"))
PREFIXES = st.sampled_from(("/v1.41", "/v1.41", "", "/v1.24", "/v1.100"))
FIELDS = st.lists(
    st.sampled_from(
        (
            *("User-Agent: Docker-Client/28.2.2 (linux)", "Accept-Encoding: gzip, deflate", "x-meta-A: \t a \t", "X:"),
            *("X-Registry-Auth: " + "e30=" * 3000, "Connection: keep-alive", "Traceparent: 00-0-0-01", "A: b", "a: c"),
        )
    ),
    max_size=3,
)
ANSWER_FIELDS = st.lists(
    st.sampled_from(
        (
            *("Api-Version: 1.41", "Content-Type: application/json", "Docker-Experimental: false", "X: \x01\xe9"),
            *("Server: Docker/20.10.24+dfsg1 (linux)", "Date: Fri, 20 Nov 2026 10:00:00 GMT", "Connection: keep-alive"),
        )
    ),
    max_size=3,
)
PAYLOADS = (
    st.binary(max_size=30) | st.integers(0, 9000).map(lambda size: b"0\r\n\r\n" * (size // 5)) | st.just(CONTINUE)
)
INTERIM = st.lists(
    st.sampled_from((CONTINUE, head("HTTP/1.1 102 Processing"), head("HTTP/1.1 103 Early Hints", "Link: x"))),
    max_size=2,
)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[tuple[str, ...], bytes]:
    """Return the fields and the bytes of a chunked body."""
    pieces = draw(st.lists(PAYLOADS.filter(len), max_size=3))
    body = chunks(*pieces)
    if draw(st.booleans()):
        body = body.replace(b"\r\n", b';a="b"\r\n', 1)
    if draw(st.booleans()):
        return (CHUNKED, "Trailer: X-Sum"), body.removesuffix(b"\r\n") + b"X-Sum: 1\r\n\r\n"
    return (CHUNKED,), body


SIZED = PAYLOADS.map(lambda body: ((f"Content-Length: {len(body)}",), body))
NO_BODY: st.SearchStrategy[tuple[tuple[str, ...], bytes]] = st.just(((), b""))


class Message(NamedTuple):
    """A request with the answer to it."""

    request: bytes
    answer: bytes
    early: bool
    """The answer may come as soon as the request's head is there."""

    @property
    def needed(self) -> int:
        """Return how much of the request is there before the answer comes."""
        return self.request.index(b"\r\n\r\n") + 4 if self.early else len(self.request)


class Conversation(NamedTuple):
    """Messages on one connection; ``behind`` is what the client and the daemon send in a tunnel at the end."""

    messages: list[Message]
    behind: tuple[bytes, bytes] = (b"", b"")

    @property
    def sent(self) -> bytes:
        """Return all that the client sends."""
        return b"".join(message.request for message in self.messages) + self.behind[0]

    @property
    def replied(self) -> bytes:
        """Return all that the daemon sends."""
        return b"".join(message.answer for message in self.messages) + self.behind[1]

    def allowed(self, came: int) -> int:
        """Return how much the daemon may have sent when so many bytes have come to it."""
        at = sent = 0
        for message in self.messages:
            if came < at + message.needed:
                return sent
            at += len(message.request)
            sent += len(message.answer)
        return len(self.replied)


@st.composite
def requests(draw: st.DrawFn, rows: tuple[tuple[str, str], ...], *more: str, version: str = "HTTP/1.1") -> bytes:
    """Return a request on one of the routes with more fields."""
    method, path = draw(st.sampled_from(rows))
    target = draw(PREFIXES) + path.replace("{ref}", draw(REFERENCES)) + draw(QUERIES)
    framing, body = draw(NO_BODY | SIZED | (SIZED if version == "HTTP/1.0" else chunked()))
    expects = (EXPECT,) if body and draw(st.integers(0, 3)) == 0 else ()
    lines = draw(st.permutations(("Host: docker", *draw(FIELDS), *framing, *expects, *more)))
    return head(f"{method} {target} {version}", *lines) + body


def is_head(request: bytes) -> bool:
    """Tell whether the answer to a request has no body."""
    return request.startswith(b"HEAD ")


@st.composite
def finals(draw: st.DrawFn, request: bytes, *more: str) -> bytes:
    """Return a framed final answer to a request."""
    status = draw(st.sampled_from((200, 200, 201, 204, 304, 400, 404, 409, 500)))
    framing, body = draw(SIZED | chunked())
    if status in (204, 304):
        framing, body = draw(st.sampled_from(((), framing))), b""
    lines = (*draw(ANSWER_FIELDS), *framing, *more)
    return head(f"HTTP/1.1 {status} Some Words", *lines) + (b"" if is_head(request) else body)


@st.composite
def messages(draw: st.DrawFn, rows: tuple[tuple[str, str], ...] = TABLE, held: bool = False) -> Message:
    """Return a request whose answer is framed and leaves the connection open."""
    kept_alive = draw(st.integers(0, 9)) == 0
    request = draw(
        requests(rows, *(("Connection: keep-alive",) if kept_alive else ()), version=f"HTTP/1.{1 - kept_alive}")
    )
    # A daemon says 100 once to a held request that waits for it: the proxy has said it before.
    interim = ([CONTINUE] if waits(request) else []) if held else draw(INTERIM)
    return Message(request, b"".join(interim) + draw(finals(request)), not held and draw(st.booleans()))


def waits(request: bytes) -> bool:
    """Tell whether the client may wait for 100 Continue."""
    return EXPECT.encode() in request.partition(b"\r\n\r\n")[0] and b" HTTP/1.1\r\n" in request


@st.composite
def last_messages(
    draw: st.DrawFn, rows: tuple[tuple[str, str], ...] = TABLE, held: bool = False
) -> tuple[Message, tuple[bytes, bytes]]:
    """Return a request that ends the connection as one of messages, and what follows in a tunnel."""
    kind = draw(st.sampled_from(("upgrade", "upgrade", "no framing", "close", "close of HTTP/1.0")))
    if kind == "upgrade":
        protocol = draw(st.sampled_from(("tcp", "h2c", "WebSocket")))
        request = draw(requests(rows, "Connection: Upgrade", f"Upgrade: {protocol}"))
        final = head("HTTP/1.1 101 UPGRADED", *UPGRADE)
    elif kind == "no framing":
        request = draw(requests(tuple(row for row in rows if row[0] != "HEAD")))
        final = head(f"HTTP/1.1 {draw(st.sampled_from((200, 404, 500)))} OK", *draw(ANSWER_FIELDS))
    else:
        request = draw(requests(rows, CLOSE, version="HTTP/1.0" if "1.0" in kind else "HTTP/1.1"))
        final = draw(finals(request, CLOSE))
    message = Message(request, (CONTINUE if held and waits(request) else b"") + final, False)
    if "close" in kind:
        return message, (b"", b"")
    behind = draw(PAYLOADS), draw(PAYLOADS)
    may_wait = held or kind == "upgrade" or b"/attach" in request.partition(b" HTTP/")[0]
    return message, behind if may_wait else (b"", behind[1])


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Return messages on all routes."""
    between = draw(st.lists(messages(), max_size=4))
    goes_on = draw(st.booleans())
    if between and goes_on:
        return Conversation(between)
    last, behind = draw(last_messages())
    return Conversation([*between, last], behind)


@st.composite
def held_conversations(draw: st.DrawFn) -> Conversation:
    """Return messages of which about every second one is a held call."""
    between = draw(st.lists(messages(HELD, held=True) | messages(OTHERS), max_size=4))
    goes_on = draw(st.booleans())
    if between and goes_on:
        return Conversation(between)
    last, behind = draw(last_messages(HELD, held=True))
    return Conversation([*between, last], behind)
