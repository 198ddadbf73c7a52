"""Odd forms of HTTP/1.1 requests (fault matrix X2), each with a second request, to ``HIDDEN``, in its body."""

from typing import NamedTuple

HIDDEN = "/containers/hidden/json"
FOLLOWING = b"GET /containers/next/json HTTP/1.1\r\nHost: h\r\n\r\n"
SECRET = f"GET {HIDDEN} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
MIB = 1 << 20
CRLF = b"\r\n"
N = b"%x" % len(SECRET)
"""The length of the hidden request in hexadecimal, as in a chunk's first line."""

TARGETS = ("/containers/first/kill", "/containers/create?name=first", "/v1.41/containers/first/stop?t=0")
"""Targets of a request that passes, one that is held, one that may be held."""
TE, CL, KEEP_ALIVE = "Transfer-Encoding: chunked", "Content-Length: ~N~", "Connection: keep-alive"


class Form(NamedTuple):
    name: str
    data: bytes
    """The request; ``~T~`` is its target."""


def post(*fields: str, body: bytes = b"", first: str = "POST ~T~ HTTP/1.1", host: str = "Host: h\r\n") -> bytes:
    """Return a request; ``~N~`` in its fields is the body's length."""
    lines = "".join(f"{field}\r\n" for field in fields).replace("~N~", str(len(body)))
    return f"{first}\r\n{host}{lines}\r\n".encode("latin-1") + body


def sized(*fields: str, body: bytes = SECRET, **more: str) -> bytes:
    return post(CL, *fields, body=body, **more)


def one_chunk(line: bytes = N + CRLF, end: bytes = CRLF) -> bytes:
    return line + SECRET + end + NO_CHUNKS


NO_CHUNKS = b"0\r\n\r\n"
AFTER_CHUNKS = NO_CHUNKS + SECRET
"""A parser that accepts chunked sees the hidden request after the last chunk."""

# Content-Lengths, separated by |: N is the right one, M is 0.
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

HOSTS = ["", " a/b", " a b", " a@b", " [::1]:80", " %2Frun%2Fdocker.sock", " \xe9", " a,b", " a#b", " localhost:x"]

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
FRAMINGS += [(name + ": chunked", CL) for name in ("Transfer-Encoding ", "Transfer-Encoding\t", "Transfer_Encoding")]
FRAMINGS += [(CL, "X: a", f" {TE}"), (CL, f"X: a\n{TE}"), (CL, f"X: a\r{TE}")]

EXPECT, OLD, IN_OLD = "Expect: 100-continue", "POST ~T~ HTTP/1.0", {"first": "POST ~T~ HTTP/1.0"}
ORDINARY = {"no body": post(), "a length": sized(), "chunks": post(TE, body=one_chunk())}
ORDINARY |= {f"the body of a {word}": sized(first=f"{word} ~T~ HTTP/1.1") for word in ("GET", "DELETE", "HEAD")}
ORDINARY |= {"no length, but a body": post(body=SECRET)}
ORDINARY |= {"a chunked body of a GET": post(TE, body=one_chunk(), first="GET ~T~ HTTP/1.1")}
FRAMED = {repr(fields): post(*fields, body=AFTER_CHUNKS) for fields in FRAMINGS}
FRAMED |= {"CL of the chunks' head, and TE": post("Content-Length: 4", TE, body=one_chunk())}
for text in LENGTHS:
    values = text.replace("N", "~N~").replace("M", "0").split("|")
    FRAMED[f"CL {text}"] = post(*(f"Content-Length:{value}" for value in values), body=SECRET)
for text in CODINGS:
    FRAMED[f"TE {text}"] = post(*(f"Transfer-Encoding:{value}" for value in text.split("|")), body=AFTER_CHUNKS)
FRAMED |= {"TE in HTTP/1.0": post(TE, body=AFTER_CHUNKS, **IN_OLD)}
FRAMED |= {"TE in HTTP/1.0, kept alive": post(TE, KEEP_ALIVE, body=AFTER_CHUNKS, **IN_OLD)}
FRAMED |= {"TE and CL in HTTP/1.0": post(TE, CL, KEEP_ALIVE, body=SECRET, **IN_OLD)}
CHUNKED = {f"chunk {line!r}": post(TE, body=one_chunk(line)) for line in SIZE_LINES}
CHUNKED |= {f"after a chunk {end!r}": post(TE, body=one_chunk(end=end)) for end in (b"\n", b"", b"xx\r\n")}
CHUNKED |= {f"last chunk {body!r}": post(TE, body=body + SECRET) for body in LAST_CHUNKS}
CHUNKED |= {"announced trailers": post(TE, "Trailer: X-Sum", body=one_chunk()[:-2] + b"X-Sum: 1\r\n\r\n")}
CHUNKED |= {"a length among the trailers": post(TE, body=b"0\r\nContent-Length:\r\n\r\n")}
CHUNKED |= {"a coding among the trailers": post(TE, body=one_chunk()[:-2] + b"transfer-Encoding: x\r\n\r\n")}
CHUNKED |= {"announced trailers that must not be": post(TE, "Trailer: Content-Length", body=one_chunk())}
LINES = {f"field {line!r}": sized(line) for line in FIELDS}
LINES |= {"a folded first field": post(" X: y", host=""), "bare LF everywhere": sized().replace(CRLF, b"\n", 4)}
LINES |= {"an early empty line of LFs": post("X: a\n\n" + SECRET.decode() + "X: b")}
LINES |= {"a space before the colon of CL": post("Content-Length : ~N~", body=SECRET)}
LINES |= {"lower-case names": post(CL.lower().replace("~n~", "~N~"), host="host: h\r\n", body=SECRET)}
LINES |= {"no Host": sized(host=""), "no Host in HTTP/1.0": sized(host="", first=OLD)}
LINES |= {"no Host in CONNECT": post("X: y", first="CONNECT / HTTP/1.1", host="")}
LINES |= {f"Host {host!r}": sized(host=f"Host:{host}\r\n") for host in HOSTS}
LINES |= {f"first line {line!r}": sized(first=line.replace("@", "~T~")) for line in FIRST_LINES}
BETWEEN = {f"{ends!r} after a body": sized() + ends for ends in (CRLF, CRLF * 2, CRLF * 3, b"\n")}
BETWEEN |= {"an empty line after a GET": post(first="GET ~T~ HTTP/1.1") + CRLF}
BETWEEN |= {"a request of HTTP/1.5 after a body": post(TE, body=b"0;x\r\n\r\n" + SECRET.replace(b"/1.1", b"/1.5"))}
BETWEEN |= {"Expect without a body": post(EXPECT), "Expect in HTTP/1.0": post(EXPECT, CL, body=b"x", **IN_OLD)}
BETWEEN |= {"HTTP/1.0 kept alive": sized(first=f"{OLD}\r\n{KEEP_ALIVE}")}
EMPTY_BYTES = len(post("X: ", first=f"POST {TARGETS[0]} HTTP/1.1"))  # the other targets are a few bytes longer
HEAD_SIZES = (MIB, MIB + 4096, MIB + 4097, 2 * MIB)
BIG = {f"{size} bytes of head": post(f"X: {'x' * (size - EMPTY_BYTES)}") for size in HEAD_SIZES}
BIG |= {"1 MiB of target": sized(first=f"POST ~T~{'x' * MIB} HTTP/1.1")}
BIG |= {"a body of 300 KiB": sized(body=SECRET * (300 * 1024 // len(SECRET)))}
FORMS = tuple(Form(*item) for item in (ORDINARY | FRAMED | CHUNKED | LINES | BETWEEN | BIG).items())


def stream(form: Form, target: str) -> bytes:
    return form.data.replace(b"~T~", target.encode()) + FOLLOWING
