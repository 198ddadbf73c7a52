"""Odd forms of HTTP/1.1 requests (fault matrix X2), each with a second request, to ``HIDDEN``, in its body."""

from collections.abc import Callable
from typing import Any, NamedTuple

HIDDEN = "/containers/hidden/json"
FOLLOWING = b"GET /containers/next/json HTTP/1.1\r\nHost: h\r\n\r\n"
SECRET = f"GET {HIDDEN} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
MIB = 1 << 20
CRLF = b"\r\n"
NO_CHUNKS = b"0\r\n\r\n"
N = b"%x" % len(SECRET)
"""The length of the hidden request in hexadecimal, as in a chunk's first line."""

TARGETS = ("/containers/first/kill", "/containers/create?name=first", "/v1.41/containers/first/stop?t=0")
"""Targets of a request that passes, one that is held, one that may be held."""


class Form(NamedTuple):
    name: str
    build: Callable[[str], bytes]


def post(target: str, *fields: str, body: bytes = b"", version: str = "HTTP/1.1", end: str = "\r\n") -> bytes:
    return end.join((f"POST {target} {version}", "Host: h", *fields, "", "")).encode("latin-1") + body


def post_form(*fields: str, **more: Any) -> Callable[[str], bytes]:
    return lambda target: post(target, *fields, **more)


def sized(*fields: str, body: bytes = SECRET) -> Callable[[str], bytes]:
    return post_form(f"Content-Length: {len(body)}", *fields, body=body)


def lengths(values: str) -> Form:
    """Return a form with these Content-Lengths, separated by |: N is the right one, M is 0."""
    filled = values.replace("N", str(len(SECRET))).replace("M", "0").split("|")
    return Form(f"CL {values}", post_form(*(f"Content-Length:{one}" for one in filled), body=SECRET))


def coded(values: str) -> Form:
    """Return a form with these Transfer-Encodings, separated by |.

    A parser that accepts chunked sees the hidden request after the last chunk.
    """
    fields = [f"Transfer-Encoding:{value}" for value in values.split("|")]
    return Form(f"TE {values}", post_form(*fields, body=NO_CHUNKS + SECRET))


def chunked(body: bytes, *fields: str) -> Callable[[str], bytes]:
    return post_form("Transfer-Encoding: chunked", *fields, body=body)


def one_chunk(line: bytes = N + CRLF, end: bytes = CRLF) -> bytes:
    return line + SECRET + end + NO_CHUNKS


def first_line(line: str) -> Callable[[str], bytes]:
    """Return a form with this request line, with @ for the target; its body is the hidden request."""
    head_end = f"\r\nHost: h\r\nContent-Length: {len(SECRET)}\r\n\r\n"
    return lambda target: (line.replace("@", target) + head_end).encode("latin-1") + SECRET


def hosted(host: bytes) -> Callable[[str], bytes]:
    return lambda target: sized()(target).replace(b"Host: h", b"Host: %b" % host, 1)


def with_method(method: str, build: Callable[[str], bytes]) -> Callable[[str], bytes]:
    return lambda target: method.encode() + build(target).removeprefix(b"POST")


def padded(size: int) -> Callable[[str], bytes]:
    return lambda target: post(target, "X: " + "x" * (size - len(post(target, "X: "))))


def both(*fields: str, body: bytes = NO_CHUNKS + SECRET) -> Callable[[str], bytes]:
    return post_form(*(line.replace("N", str(len(body))) for line in fields), body=body)


def _with_end(ends: bytes) -> Callable[[str], bytes]:
    return lambda target: sized()(target) + ends


TE, CL = "Transfer-Encoding: chunked", "Content-Length: N"
RIGHT_CL = f"Content-Length: {len(SECRET)}"
OLD, KEEP_ALIVE = {"version": "HTTP/1.0"}, "Connection: keep-alive"

LENGTHS = [" N| N", " N| M", " M| N", " N, N", " N, M", " N,", " N ; x", " +N", " -N", "", "| N", " N|", " 0xN", " N.0"]
LENGTHS += [" NN", " \tN\t ", " 0N", " \xb2", " 1e2", " 9223372036854775807", " 9223372036854775808", " N N", "\x0bN"]
LENGTHS += [" 99999999999999999999", " 4294967296", " 000000000000000000N", " 00000000000000N", " N\x0c", " \xa0N"]
LENGTHS += [" _N", " 1_0"]

CODINGS = [" chunked| chunked", " chunked, chunked", " gzip, chunked", " chunked, gzip", " gzip", " identity", ""]
CODINGS += [" Chunked", "\tCHUNKED\t", " chunked;q=1", ' "chunked"', " xchunked", " chunked,", ",chunked", " chunke"]
CODINGS += ["\x0bchunked", " chunked\x0c", " \xa0chunked", "chunked", " identity| chunked", " chunked| identity"]

SIZE_LINES = [N + b";a=b\r\n", N.upper() + CRLF, b"000" + N + CRLF, N + b" \r\n", N + b" ;a\r\n", N + b"\t\r\n"]
SIZE_LINES += [N + b"\n", b"+1\r\n", N + b"\r\r\n", b"0x" + N + CRLF, b" " + N + CRLF, b"-1\r\n", CRLF]
SIZE_LINES += [N.zfill(15) + CRLF, N.zfill(16) + CRLF, N.zfill(17) + CRLF, b"1" + N.zfill(16) + CRLF, b"f" * 16 + CRLF]
SIZE_LINES += [b"1_0\r\n", b"g\r\n", b"7" + b"f" * 15 + CRLF, N + b';a="\r\n', N + b";a\n\r\n", N + b";a\0\r\n"]
SIZE_LINES += [N + b";\xe9\r\n", N + b";" + b"e" * 5000 + CRLF]

LAST_CHUNKS = [b"0\r\n\r\n", b"00\r\n\r\n", b"0\n\n", b"0\r\n\n", b"0\r\n", b"0;x\r\n\r\n", b"0\r\nX: y\r\n\r\n"]
LAST_CHUNKS += [b"0\r\nX: y\n\r\n", b"0\r\n folded\r\n\r\n", b"0\r\nX : y\r\n\r\n", b"0\r\nnocolon\r\n\r\n"]
LAST_CHUNKS += [b"0\r\r\n\r\n", b"0\r\nContent-Length: 9\r\n\r\n", b"0\r\nX: \0\r\n\r\n", b"0\r\nX: \x01\r\n\r\n"]
LAST_CHUNKS += [b"0\r\n: y\r\n\r\n", b"0\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", b"0\r\nX: \xe9\r\n\r\n"]

HOSTS = [b"a/b", b"a b", b"a@b", b"[::1]:80", b"%2Frun%2Fdocker.sock", b"\xe9", b"a,b", b"a#b", b"localhost:x"]

TARGET_LINES = ["http://h:99@", "HTTP://u@h@", "unix:@", "//h@", " @", "@ ", "*", "@#f", "@%zz", "@%", "@?%zz"]
TARGET_LINES += ["@\xc3\xa9", "@\xe9", "@\0", "@\x7f", "@\x01", "@\tx", "@ x", "@\\x", '@|{}^`<>"', "..T", "@/..", ""]
VERSIONS = ["1.1 ", "1.0", "1.2", "1.9", "2.0", "0.9", "1", "1.10", "01.1", "1.1\tx", "1.1 x"]
METHODS = [" POST", "post", "Post", "P(ST", "P\xc9ST", "FOO", "PUT", "CONNECT", "TRACE", "PATCH", "OPTIONS", "\r\nPOST"]
METHODS += ["\r\n\r\nPOST", "\nPOST"]
FIRST_LINES = [f"POST {target} HTTP/1.1" for target in TARGET_LINES]
FIRST_LINES += [f"POST @ HTTP/{version}" for version in VERSIONS] + [f"{method} @ HTTP/1.1" for method in METHODS]
FIRST_LINES += ["POST\t@ HTTP/1.1", "POST @", "POST @ http/1.1", "OPTIONS * HTTP/1.1", "CONNECT h:1 HTTP/1.1"]
FIRST_LINES += ["CONNECT / HTTP/1.1", "PRI * HTTP/2.0", "POST @\r\nHTTP/1.1", "HTTP/1.1 200 OK"]

# Lines of a request with a length.
FIELDS = ["X: a\r", ": x", "Nothing", "A B: c", "A/B: c", "\xc3\xa9: c", "A\0: c", "X: a\0b", "X: a\x01b", "X: a\x7fb"]
FIELDS += ["X: a\x0bb", "X:\ta\tb\t", "X: \xc3\xa9", "X: \xe9\xff", "X:", f"X: {TE}", "X: a\r\n b", "Host: h"]
FIELDS += ["Expect: 100-continue", "Expect: 100-Continue", "Expect: 200-ok", "Expect:", "Expect: 100-continue, x"]
FIELDS += ["Expect: 100-continue\r\nExpect: 100-continue", "Connection: close", "Connection: keep-alive"]
FIELDS += ["Connection: keep-alive, close", "Connection: Content-Length", "Connection: Upgrade\r\nUpgrade: tcp"]
FIELDS += ["Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"]
FIELDS += ["Content-Encoding: gzip", "Content-Type: multipart/form-data; boundary=x"]
FIELDS += ["\r\n".join(f"X-{number}: y" for number in range(count)) for count in (100, 2_000)]

# Two framings, one of which ends the body before the hidden request; N is the length.
FRAMINGS = [(CL, TE), (TE, CL), (TE, "Content-Length:"), (TE, "Content-Length: 0"), ("Transfer-Encoding: identity", CL)]
FRAMINGS += [
    ("Transfer-Encoding : chunked", CL),
    ("Transfer-Encoding\t: chunked", CL),
    ("Transfer_Encoding: chunked", CL),
]
FRAMINGS += [(CL, "X: a", f" {TE}"), (CL, f"X: a\n{TE}"), (CL, f"X: a\r{TE}")]

FORMS = (
    # bodies in ordinary forms
    Form("no body", post),
    Form("a length", sized()),
    Form("chunks", chunked(one_chunk())),
    Form("no length, but a body", post_form(body=SECRET)),
    *(Form(f"the body of a {method}", with_method(method, sized())) for method in ("GET", "DELETE", "HEAD")),
    Form("a chunked body of a GET", with_method("GET", chunked(one_chunk()))),
    # framings
    *(Form(repr(fields), both(*fields)) for fields in FRAMINGS),
    Form("CL of the chunks' head, and TE", both("Content-Length: 4", TE, body=one_chunk())),
    *map(lengths, LENGTHS),
    *map(coded, CODINGS),
    Form("TE in HTTP/1.0", post_form(TE, body=NO_CHUNKS + SECRET, **OLD)),
    Form("TE in HTTP/1.0, kept alive", post_form(TE, KEEP_ALIVE, body=NO_CHUNKS + SECRET, **OLD)),
    Form("TE and CL in HTTP/1.0", post_form(TE, RIGHT_CL, KEEP_ALIVE, body=SECRET, **OLD)),
    # chunks
    *(Form(f"chunk {line!r}", chunked(one_chunk(line))) for line in SIZE_LINES),
    *(Form(f"after a chunk {end!r}", chunked(one_chunk(end=end))) for end in (b"\n", b"", b"xx\r\n")),
    *(Form(f"last chunk {body!r}", chunked(body + SECRET)) for body in LAST_CHUNKS),
    Form("announced trailers", chunked(one_chunk()[:-2] + b"X-Sum: 1\r\n\r\n", "Trailer: X-Sum")),
    Form("a length among the trailers", chunked(b"0\r\nContent-Length:\r\n\r\n")),
    Form("a coding among the trailers", chunked(one_chunk()[:-2] + b"transfer-Encoding: x\r\n\r\n")),
    Form("announced trailers that must not be", chunked(one_chunk(), "Trailer: Content-Length")),
    # lines and fields
    *(Form(f"field {line!r}", sized(line)) for line in FIELDS),
    Form("a folded first field", lambda target: post(target, " X: y").replace(b"Host: h\r\n", b"")),
    Form("bare LF everywhere", post_form(RIGHT_CL, body=SECRET, end="\n")),
    Form("an early empty line of LFs", post_form("X: a\n\n" + SECRET.decode() + "X: b")),
    Form("a space before the colon of CL", post_form(f"Content-Length : {len(SECRET)}", body=SECRET)),
    Form("lower-case names", lambda target: post(target, RIGHT_CL.lower(), body=SECRET).replace(b"Host", b"host", 1)),
    Form("no Host", lambda target: sized()(target).replace(b"Host: h\r\n", b"", 1)),
    Form("no Host in HTTP/1.0", lambda target: first_line("POST @ HTTP/1.0")(target).replace(b"Host: h\r\n", b"", 1)),
    Form("no Host in CONNECT", lambda target: b"CONNECT / HTTP/1.1\r\nX: y\r\n\r\n"),
    Form("an empty Host", lambda target: sized()(target).replace(b"Host: h\r\n", b"Host:\r\n", 1)),
    *(Form(f"Host {host!r}", hosted(host)) for host in HOSTS),
    *(Form(f"first line {line!r}", first_line(line)) for line in FIRST_LINES),
    # between requests
    *(Form(f"{ends!r} after a body", _with_end(ends)) for ends in (CRLF, CRLF * 2, CRLF * 3, b"\n")),
    Form("an empty line after a GET", lambda target: with_method("GET", post)(target) + CRLF),
    Form(
        "a request of HTTP/1.5 after a body",
        lambda target: chunked(b"0;x\r\n\r\n")(target) + SECRET.replace(b"HTTP/1.1", b"HTTP/1.5"),
    ),
    Form("Expect without a body", post_form("Expect: 100-continue")),
    Form("Expect in HTTP/1.0", post_form("Expect: 100-continue", "Content-Length: 1", body=b"x", **OLD)),
    Form("HTTP/1.0 kept alive", first_line("POST @ HTTP/1.0\r\nConnection: keep-alive")),
    # sizes
    *(Form(f"{size} bytes of head", padded(size)) for size in (MIB, MIB + 4096, MIB + 4097, 2 * MIB)),
    Form("1 MiB of target", lambda target: first_line("POST @" + "x" * MIB + " HTTP/1.1")(target)),
    Form("a body of 300 KiB", sized(body=SECRET * (300 * 1024 // len(SECRET)))),
)


def stream(form: Form, target: str) -> bytes:
    return form.build(target) + FOLLOWING
