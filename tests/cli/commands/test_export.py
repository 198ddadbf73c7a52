"""``runtimeproxy export`` from a user's view: what is wrong, in one line, and the exit code."""

import socket

import pytest

from tests.cli.conftest import Run

WRONG = [
    ("--listen=localhost:9654", "--listen: 'localhost:9654' is not an address with a port"),
    ("--listen=0.0.0.0:9654", "--listen: 0.0.0.0 is not a loopback address"),
    ("--listen=[::1]:9654 --client-ca=/ca", "TLS needs all of"),
    ("--admin-endpoint=/a.sock", "--listen: any user of the node could read the proxy's state there: give --tls-cert"),
    ("--admin-endpoint=/a.sock --listen=unix:/x --tls-cert=/c", "--listen: a unix socket has no TLS: leave out --tls"),
    ("--admin-endpoint=a.sock --listen=unix:/x", "--admin-endpoint: 'a.sock' is not a unix socket"),
    ("--metrics-endpoint=metrics.sock", "--metrics-endpoint: 'metrics.sock' is not a unix socket"),
    ("--listen=0.0.0.0:1 --tls-cert=/no --tls-key=/no --client-ca=/no", "--tls-cert: /no cannot be read"),
    ("--listen", "Option '--listen' requires an argument. (runtimeproxy export --help"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG, ids=[flags for flags, _ in WRONG])
def test_wrong_flags_are_one_line(run: Run, flags: str, words: str) -> None:
    code, out, err = run("runtimeproxy", "export", *flags.split())
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"runtimeproxy: error: {words}")


def test_a_port_that_is_taken_is_told(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("runtimeproxy", "export", f"--listen=127.0.0.1:{port}")
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"runtimeproxy: error: cannot listen on 127.0.0.1 port {port}: Address already in use")
