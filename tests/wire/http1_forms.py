"""Tables of HTTP/1.1 heads and chunked bodies: accepted ones with their values, refused ones with the broken rule.

The heads of the docker CLI and of cri-dockerd are those of recorded traffic, with other ids, lengths and credentials,
the framing last; those of the SDK for Python, curl, build sessions and websockets are written as these clients are
known to send them.
"""

from typing import NamedTuple

from hypothesis import strategies as st

from runtimeproxy.wire.http1 import Framing, Rule


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def breaking(rule: Rule, *forms: bytes) -> list[tuple[bytes, Rule]]:
    return [(form, rule) for form in forms]


def get(*fields: str) -> bytes:
    return head("GET / HTTP/1.1", "Host: h", *fields)


class Request(NamedTuple):
    """A request and the content of its head."""

    raw: bytes
    framing: Framing = Framing.EMPTY
    length: int = 0
    upgrade: str = ""
    expects_continue: bool = False
    closes: bool = False


def _queries(line: str, *fields: str, upgrade: str = "", expects_continue: bool = False) -> Request:
    name, _, value = fields[-1].partition(": ")
    framing = {"Content-Length": Framing.SIZED, "Transfer-Encoding": Framing.CHUNKED}.get(name, Framing.EMPTY)
    host = () if fields[0].startswith("Host: ") else ("Host: api.moby.localhost",)
    length = int(value) if framing is Framing.SIZED else 0
    return Request(head(f"{line} HTTP/1.1", *host, *fields), framing, length, upgrade, expects_continue)


_CLI, _GO = "User-Agent: Docker-Client/28.2.2 (linux)", "User-Agent: Go-http-client/1.1"
_JSON, _TEXT, _TAR = (f"Content-Type: {kind}" for kind in ("application/json", "text/plain", "application/x-tar"))
_TCP = ("Connection: Upgrade", "Upgrade: tcp")
_SDK = ("Host: localhost", "User-Agent: docker-sdk-python/7.1.0", "Accept-Encoding: gzip, deflate", "Accept: */*")
_CURL = ("Host: localhost", "User-Agent: curl/7.88.1", "Accept: */*", "Expect: 100-continue")
_SESSION = ("Connection: Upgrade", "Upgrade: h2c", "X-Docker-Expose-Session-Uuid: 1")
_WEBSOCKET = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
OF_CLIENTS = [
    _queries("HEAD /_ping", _CLI),
    _queries("GET /v1.41/containers/json?all=1&filters=%7B%22id%22%3A%7B%22f25e%22%3Atrue%7D%7D", _GO),
    _queries("POST /v1.41/containers/create?name=k8s_POD_w_d_u_0", _GO, _JSON, "Content-Length: 2210"),
    _queries("POST /v1.41/containers/f25e/stop?t=10", _GO, "Content-Length: 0"),
    _queries("POST /v1.41/containers/f25e/attach?stream=1", _CLI, _TEXT, *_TCP, "Content-Length: 0", upgrade="tcp"),
    _queries("POST /v1.41/exec/f25e/start", _CLI, _JSON, *_TCP, "Content-Length: 28", upgrade="tcp"),
    _queries("POST /v1.41/build?q=1", _CLI, _TAR, "X-Registry-Config: e30=", "Transfer-Encoding: chunked"),
    _queries("POST /session", _CLI, *_SESSION, "X-Docker-Expose-Session-Grpc-Method: /a/B", upgrade="h2c"),
    _queries("GET /version", *_SDK, "Connection: keep-alive"),
    _queries("POST /images/load", *_CURL, "Content-Length: 2097152", expects_continue=True),
    _queries("GET /v1.41/containers/f25e/attach/ws?stream=1", "Host: localhost", *_WEBSOCKET, upgrade="websocket"),
]
"""Requests of the daemon's clients, none of which may ever be refused."""
_STRANGE = 'x!y //containers/%2F%2fa#?%zz%?&{}|\\^`"<>'
ODD = [
    Request(head("GET / HTTP/1.0"), closes=True),
    Request(head("GET / HTTP/1.0", "Connection: Foo , Keep-Alive", "Host: h")),
    Request(head("GET / HTTP/1.0", "Connection: keep-alive, close"), closes=True),
    Request(head("POST / HTTP/1.0", "Content-Length: 7", "Expect: 100-continue"), Framing.SIZED, 7, closes=True),
    Request(get("Connection: Upgrade,\tCLOSE"), closes=True),
    Request(get("Connection: x", "Connection: close"), closes=True),
    *(Request(get(f"Connection:{value}")) for value in ("", " closed, not close")),
    Request(get("Upgrade: TCP"), upgrade="tcp"),
    Request(get("Upgrade: h2c", "Connection: Upgrade", "Upgrade: WebSocket"), upgrade="h2c, websocket"),
    Request(get("Expect: 100-Continue")),
    Request(get("Expect: 100-continue", "Content-Length: 0"), Framing.SIZED),
    Request(get("Expect: 100-continue", "Content-Length: 1"), Framing.SIZED, 1, expects_continue=True),
    Request(get("Expect: 100-continue", "Transfer-Encoding: chunked"), Framing.CHUNKED, expects_continue=True),
    Request(get("transfer-ENCODING:\tChunked \t"), Framing.CHUNKED),
    Request(get("content-length:007"), Framing.SIZED, 7),
    Request(get("Content-Length: \t 12\t "), Framing.SIZED, 12),
    Request(get("Content-Length: " + "9" * 18), Framing.SIZED, 10**18 - 1),
    Request(get("X: a\tb", "Y: \x80\xe9\xff", "Z:", "!#$%&'*+-.^_`|~09: ,\"(){}", "X: again")),
    Request(get("X-Registry-Auth: " + "e" * 20_000)),
    *(Request(head("GET / HTTP/1.1", f"Host:{host}")) for host in ("", " [::1]:80", " %2Fvar%2Frun%2Fdocker.sock")),
    *(Request(head(f"{line} HTTP/1.1", "Host: h")) for line in ("OPTIONS *", "CONNECT /", _STRANGE)),
]
"""Forms that no known client sends, and that every recipient reads alike."""
REQUESTS = OF_CLIENTS + ODD
_LENGTHS = ["", "+5", "-5", "5 5", "5, 5", "5,", "0x5", "5.0", "5;", "\xb2", "1" * 19, "0" * 19, "5|5", "5|6", "|5"]
_CODINGS = ["", "identity", "gzip", "gzip, chunked", "chunked, gzip", "chunked,", "xchunked", "chunked;q=1"]
_CODINGS += ['"chunked"', "chunked|chunked", "chunked|identity", "chun\xe7ed"]
_REFUSED_LINES = {
    Rule.REQUEST_LINE: "GET|GET /|GET  HTTP/1.1|GET  / HTTP/1.1|GET /  HTTP/1.1|GET / HTTP/1.1 |GET\t/ HTTP/1.1"
    "|GET / a HTTP/1.1|G(T / HTTP/1.1|G\xc9T / HTTP/1.1|GET / http/1.1|GET / HTTP/1|GET / HTTP/1.10|GET / HTTP/\xb9.1",
    Rule.VERSION: "GET / HTTP/1.2|GET / HTTP/2.0",
    Rule.TARGET: "GET http:x HTTP/1.1|GET /\t HTTP/1.1|GET a HTTP/1.1|GET *a HTTP/1.1|GET 1http://h/x HTTP/1.1"
    "|GET http://h/%zz HTTP/1.1|CONNECT h:80 HTTP/1.1|GET /% HTTP/1.1|GET /%2 HTTP/1.1|GET /a%2gb HTTP/1.1"
    "|GET /%?%20 HTTP/1.1",
    Rule.CONTROL: "GET /\x01 HTTP/1.1|GET /\x7f HTTP/1.1",
}
_REFUSED_FIELDS = {
    Rule.CONTROL: "X: a\0b|X: a\x0bb|X: a\x1fb|X: a\x7fb|X\0: a|X: a\0\nb: c",
    Rule.LINE_END: "X: a\rb|X: a\nb: c|X: a\r\r\nb: c|X: a\n\nGET / HTTP/1.1\r\nHost: h",
    Rule.FOLDED: " folded|\tfolded: x|X: a\r\n Transfer-Encoding: chunked",
    Rule.FIELD_NAME: "Host|nocolon|: value|Content-Length : 5|Transfer-Encoding\t: chunked|X Y: a|X\xe9: a",
    Rule.HOST: "Host: h|HOST: i",
    Rule.TWO_FRAMINGS: "Content-Length: 5\r\nTransfer-Encoding: chunked|Transfer-Encoding: chunked\r\nContent-Length: 5"
    "|Transfer-Encoding: identity\r\nContent-Length: 5",
    Rule.EXPECT: "Expect: 200-ok|Expect:|Expect: 100-continue, x|Expect: 100-continue\r\nExpect: 100-continue",
}
REFUSED_REQUESTS = [
    *((head(line, "Host: h"), rule) for rule, lines in _REFUSED_LINES.items() for line in lines.split("|")),
    *((get(field), rule) for rule, fields in _REFUSED_FIELDS.items() for field in fields.split("|")),
    *breaking(Rule.REQUEST_LINE, b"\r\n\r\n", b"\r\n" + get(), b" " + get(), b"\t" + get()),
    *breaking(Rule.VERSION, head("PRI * HTTP/2.0")),
    *breaking(Rule.LINE_END, b"GET / HTTP/1.1\nHost: h\r\n\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n", b""),
    *breaking(Rule.FOLDED, head("GET / HTTP/1.1", " Host: h")),
    *breaking(Rule.FIELD_NAME, get() + get()),
    *breaking(Rule.HOST, *map(head, ("GET / HTTP/1.1", "CONNECT / HTTP/1.1", "GET / HTTP/1.0\r\nHost: h\r\nHost: h"))),
    *breaking(Rule.HOST, *(head("GET / HTTP/1.1", f"Host: {host}") for host in ("a/b", "a b", "\xe9"))),
    *((get(*(f"Content-Length: {it}" for it in values.split("|"))), Rule.CONTENT_LENGTH) for values in _LENGTHS),
    *((get(*(f"Transfer-Encoding: {it}" for it in values.split("|"))), Rule.TRANSFER_CODING) for values in _CODINGS),
    *breaking(Rule.CODING_OF_1_0, head("POST / HTTP/1.0", "Transfer-Encoding: chunked")),
    *breaking(Rule.CODING_OF_1_0, head("POST / HTTP/1.0", "Transfer-Encoding: gzip", "Content-Length: 5")),
    *breaking(Rule.EXPECT, head("GET / HTTP/1.0", "Expect: x"), get("Expect: 200-ok", "Content-Length: 5")),
]


DOCKERD = (
    *("Api-Version: 1.41", "Content-Type: application/json", "Docker-Experimental: false", "Ostype: linux"),
    *("Server: Docker/20.10.24+dfsg1 (linux)", "Date: Fri, 20 Nov 2026 10:00:00 GMT"),
)
_RAW_STREAM = "Content-Type: application/vnd.docker.raw-stream"
_FIVE, _CODED = "Content-Length: 5", "Transfer-Encoding: chunked"
_EMPTY, _SIZED, _CHUNKED, _ENDLESS = Framing.EMPTY, Framing.SIZED, Framing.CHUNKED, Framing.UNTIL_CLOSE


def _ok(*fields: str) -> bytes:
    return head("HTTP/1.1 200 OK", *fields)


RESPONSES: list[tuple[bytes, str, int, Framing, int, bool]] = [
    (_ok(*DOCKERD, "Content-Length: 2"), "GET", 200, _SIZED, 2, False),
    (_ok(*DOCKERD, _CODED), "GET", 200, _CHUNKED, 0, False),
    *((_ok(field), "HEAD", 200, _EMPTY, 0, False) for field in (_FIVE, _CODED)),
    *((_ok(field), "CONNECT", 200, _ENDLESS, 0, False) for field in (_FIVE, _CODED)),
    (head("HTTP/1.1 201 Created", *DOCKERD, "Content-Length: 88"), "POST", 201, _SIZED, 88, False),
    *((head("HTTP/1.1 204 No Content", field), "POST", 204, _EMPTY, 0, False) for field in (*DOCKERD[:1], _FIVE)),
    (head("HTTP/1.1 304 Not Modified", _CODED), "POST", 304, _EMPTY, 0, False),
    (head("HTTP/1.1 404 Not Found", _RAW_STREAM), "POST", 404, _ENDLESS, 0, False),
    (head("HTTP/1.1 404 Not Found", _FIVE), "CONNECT", 404, _SIZED, 5, False),
    (head("HTTP/1.1 101 UPGRADED", _RAW_STREAM, "Connection: Upgrade", "Upgrade: tcp"), "POST", 101, _EMPTY, 0, False),
    (head("HTTP/1.1 100 Continue"), "POST", 100, _EMPTY, 0, False),
    (head("HTTP/1.1 400 Bad Request", "Connection: close"), "GET", 400, _ENDLESS, 0, True),
    *((head(f"HTTP/{it}", _FIVE), "GET", 200, _SIZED, 5, it[2] == "0") for it in ("1.0 200 OK", "1.1 200", "1.1 200 ")),
    (_ok("Connection: Close", _FIVE), "GET", 200, _SIZED, 5, True),
    (head("HTTP/1.0 200 OK", _FIVE, "Connection: keep-alive"), "GET", 200, _SIZED, 5, False),
    (head("HTTP/1.1 999 \xe9 \t(x)", _FIVE), "GET", 999, _SIZED, 5, False),
    (_ok("X: \xe9\x01\x7f\tb", "Host: a", "Host: b", "Expect: x", _FIVE), "GET", 200, _SIZED, 5, False),
]
"""Responses, each with the method of its request, its status and framing, and whether it closes the connection."""
REFUSED_RESPONSES = [
    *breaking(Rule.STATUS_LINE, b"\r\n\r\n", b"\r\n" + _ok(), b" " + _ok()),
    *breaking(Rule.STATUS_LINE, *map(head, ("HTTP/1.1", "HTTP/1.1 OK", "HTTP/1.1  200 OK", "HTTP/1.1 20 OK"))),
    *breaking(Rule.STATUS_LINE, *map(head, ("HTTP/1.1 2000 OK", "HTTP/1.1 099 OK", "HTTP/1.1 \xb200 OK"))),
    *breaking(Rule.STATUS_LINE, *map(head, ("HTTP/1.1 200\tOK", "http/1.1 200 OK", "HTTP/1 200 OK", "ICY 200 OK"))),
    *breaking(Rule.VERSION, head("HTTP/1.2 200 OK")),
    *breaking(Rule.LINE_END, b"HTTP/1.1 200 OK\r\n", *map(_ok, ("X: a\nContent-Length: 5", "X: a\rContent-Length: 5"))),
    *((_ok(field), rule) for rule, field in ((Rule.CONTROL, "X: a\0b"), (Rule.FOLDED, "X: a\r\n b"))),
    *breaking(Rule.FIELD_NAME, *map(_ok, ("Content-Length : 5", "nocolon"))),
    *breaking(Rule.CONTENT_LENGTH, *(_ok(f"Content-Length: {it}") for it in ("5\r\nContent-Length: 5", "5, 5", "x"))),
    *breaking(Rule.CONTENT_LENGTH, head("HTTP/1.1 204 No Content", "Content-Length: x")),
    *breaking(Rule.TRANSFER_CODING, *map(_ok, ("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity"))),
    *breaking(Rule.TWO_FRAMINGS, _ok("Transfer-Encoding: chunked", "Content-Length: 5")),
    *breaking(Rule.CODING_OF_1_0, head("HTTP/1.0 200 OK", "Transfer-Encoding: chunked")),
]
_LONGEST_TRAILER = b"X: " + b"x" * (65_536 - 7) + b"\r\n"
CHUNKED = [
    *((b"0\r\n\r\n", b""), (b"000\r\n\r\n", b"")),
    (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"5\r\nhello\r\n0c\r\n\r\n0\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", b"hello\r\n0\r\n\r\n0\r\n\r\n"),
    (b"000000000000005\r\nhello\r\n000000000000000\r\n\r\n", b"hello"),
    (b"1F\r\n" + b"x" * 31 + b"\r\n1f\r\n" + b"y" * 31 + b"\r\n0\r\n\r\n", b"x" * 31 + b"y" * 31),
    (b'5;a;b=c;d="e\t\xe9;"\r\nhello\r\n0; x\r\n\r\n', b"hello"),
    (b"5;\r\nhello\r\n0;\r\n\r\n", b"hello"),
    (b"5;" + b"e" * 4091 + b"\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nY:\r\nContent-Lengths: 5\r\nZ: \xe9\ta \r\n\r\n", b"hello"),
    (b"0\r\n" + _LONGEST_TRAILER + b"\r\n", b""),
]
REFUSED_CHUNKED = [
    *breaking(Rule.CHUNK_SIZE, b"\r\n", b"\n", b" 5\r\n", b"5 \r\n", b"5 ;x\r\n", b"+5\r\n", b"0x5\r\n", b"5_0\r\n"),
    *breaking(Rule.CHUNK_SIZE, b"g\r\n", b"\xb2\r\n", b";x\r\n", b"5\n", b"5\r\r\n", b"5;a\rb\r\n", b"5;a\n"),
    *breaking(Rule.CHUNK_SIZE, b"5;\0\r\n", b"5;\x7f\r\n", b"0\n\r\n", b"1000000000000000\r\n"),
    *breaking(Rule.CHUNK_SIZE, b"0000000000000000\r\n", b"1\r\nx\r\n5\nhello"),
    *breaking(Rule.CHUNK_LINE_BYTES, b"5;" + b"e" * 4092 + b"\r\nhello\r\n0\r\n\r\n", b"5" * 4095),
    *breaking(Rule.CHUNK_END, b"5\r\nhello\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"5\r\nhello\r0\r\n\r\n"),
    *breaking(Rule.CHUNK_END, b"5\r\nhellooo\r\n"),
    *breaking(Rule.TRAILER, b"0\r\n\n", b"0\r\nX: a\n\r\n", b"0\r\nX: a\rb\r\n\r\n", b"0\r\n folded\r\n\r\n"),
    *breaking(Rule.TRAILER, b"0\r\nX: a\r\n folded\r\n\r\n", b"0\r\nX : a\r\n\r\n", b"0\r\n: a\r\n\r\n"),
    *breaking(Rule.TRAILER, b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nX: a\r\ntransfer-encoding:\r\n\r\n"),
    *breaking(Rule.TRAILER, b"0\r\nnocolon\r\n\r\n", b"0\r\nX: a\0\r\n\r\n", b"0\r\nGET / HTTP/1.1\r\n\r\n"),
    *breaking(Rule.TRAILER_BYTES, b"0\r\nX" + _LONGEST_TRAILER + b"\r\n", b"0\r\n" + b"X: 34567\r\n" * 7_000),
]
READ_BY_H11 = {Rule.LINE_END, Rule.FOLDED, Rule.CONTROL, Rule.TARGET, Rule.VERSION, Rule.HOST, Rule.CONTENT_LENGTH}
READ_BY_H11 |= {Rule.CODING_OF_1_0, Rule.TWO_FRAMINGS, Rule.EXPECT}
READ_BY_H11 |= {Rule.CHUNK_SIZE, Rule.CHUNK_LINE_BYTES, Rule.TRAILER, Rule.TRAILER_BYTES}
"""The rules that h11 does not enforce; both refuse messages that break another one."""
_LINES = ["Content-Length: 5", "content-length:05", "Content-Length: 0", "Content-Length: 5, 5", "Content-Length: +5"]
_LINES += ["Transfer-Encoding: chunked", "Transfer-Encoding:\tCHUNKED ", "Transfer-Encoding: gzip, chunked"]
_LINES += ["Connection: close", "Connection: Upgrade", "Upgrade: tcp", "Expect: 100-continue", "Expect: x", "Host: i"]
_LINES += ["X: y", "X:", "X: \t\xe9 z\t", " folded", "X : y", "X", "Content-Length : 5", "X: a\rb", "X: a\nY: b"]
_LINES += ["X: \0", "", "X: \x0b", "X: \x01", "Trailer: X"]
_BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", b"0\r\n\r\n"]
_BODIES += [b"5\nhello\n0\n\n", b"5 \r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"0\r\n x\r\n\r\n"]
_BODIES += [b"0\r\nX: y\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n"]
_OCTETS = st.sampled_from([*(bytes((octet,)) for octet in range(256)), b"\r\n", b""])
SOME_LINES, BODY = st.lists(st.sampled_from(_LINES), max_size=3), st.sampled_from(_BODIES)
NOISE = st.lists(st.tuples(st.integers(0, 150), _OCTETS), max_size=2)


def spoiled(stream: bytes, noise: list[tuple[int, bytes]]) -> bytes:
    """Return a stream with octets inserted; an empty one removes the octet at its place."""
    for at, octets in noise:
        stream = stream[:at] + octets + stream[at + (not octets) :]
    return stream
