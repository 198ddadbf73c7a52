"""The listening socket that systemd hands over (LISTEN_FDS)."""

import os
import socket
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import inherited
from tests.relay.processes import run_python

_INHERIT = """
import os, socket, sys
from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import inherited
given = int(sys.argv[1])
if given != 3:
    os.dup2(given, 3)
environ = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "runtimeproxy.socket", "OTHER": "1"}
try:
    listener = inherited(environ)
except ConfigError as error:
    sys.exit(str(error))
assert environ == {"OTHER": "1"}
assert not listener.socket.getblocking() and not listener.socket.get_inheritable()
assert not listener.withdraw() and os.path.exists(listener.path)
listener.socket.setblocking(True)
accepted, _ = listener.socket.accept()
accepted.sendall(listener.path.encode())
listener.close()
"""


def test_a_handed_over_socket_serves_and_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held, socket.socket(socket.AF_UNIX) as client:
        held.bind(str(tmp_path / "a.sock"))
        held.listen()
        client.connect(str(tmp_path / "a.sock"))
        run = run_python(_INHERIT, str(held.fileno()), pass_fds=(held.fileno(),))
        assert run.returncode == 0, run.stderr
        assert client.recv(200) == os.fsencode(tmp_path / "a.sock")
        assert os.listdir(tmp_path) == ["a.sock"]


def test_a_handed_over_descriptor_that_is_none_of_it_is_refused(tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as idle,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_INET) as internet,
        (tmp_path / "file").open("w") as file,
    ):
        idle.bind(str(tmp_path / "a.sock"))
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        for given, cause in [
            (idle.fileno(), "is no listening unix stream socket"),
            (datagram.fileno(), "is no listening unix stream socket"),
            (internet.fileno(), "is no listening unix stream socket"),
            (file.fileno(), "is no socket"),
        ]:
            run = run_python(_INHERIT, str(given), pass_fds=(given,))
            assert run.returncode == 1
            assert cause in run.stderr
            assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_PID": str(os.getpid())},
        {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_variables_for_somebody_else_mean_nothing(environ: dict[str, str]) -> None:
    assert inherited(environ) is None
    assert environ == {}


def test_more_than_one_handed_over_socket_is_refused() -> None:
    with pytest.raises(ConfigError, match="LISTEN_FDS is '2': one socket is expected"):
        inherited({"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())})
