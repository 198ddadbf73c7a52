"""A socket that nobody is to connect to any more, while who has connected is still accepted."""

import socket
import tempfile
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import listen
from tests.relay.processes import run_python


def test_who_has_connected_is_accepted_and_nobody_else_can_connect(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    listener = listen(path)
    with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
        early.connect(path)
        assert listener.withdraw()
        with pytest.raises(FileNotFoundError):
            late.connect(path)
        accepted, _ = listener.socket.accept()
        accepted.close()
    assert listener.withdraw(), "it is repeatable"
    listener.close()


def test_the_lock_is_kept_to_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    listener = listen(path)
    listener.withdraw()
    with pytest.raises(ConfigError, match="another runtimeproxy"):
        listen(path)
    listener.close()
    listen(path).close()


def test_what_somebody_else_has_put_in_its_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listener = listen(str(path))
    path.unlink()
    path.write_text("somebody's")
    assert listener.withdraw()
    listener.close()
    assert path.read_text() == "somebody's"


_STAYS = """
import errno, logging, os, socket, sys
from runtimeproxy.relay.listener import listen
logging.basicConfig(format="%(levelname)s %(message)s")
if os.geteuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
listener = listen(sys.argv[1] + "/a.sock")
os.chmod(sys.argv[1], 0o500)
early, late = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
early.connect(listener.path)
assert listener.withdraw()
assert late.connect_ex(listener.path) == errno.ECONNREFUSED
listener.socket.accept()[0].close()
listener.close()
assert listener.socket.fileno() == -1
os.chmod(sys.argv[1], 0o700)
listen(sys.argv[1] + "/a.sock").close()
"""


def test_a_socket_that_cannot_be_removed_stays_with_one_warning() -> None:
    # In the system's own temporary directory: pytest's is closed to the user that the code becomes.
    with tempfile.TemporaryDirectory() as folder:
        run = run_python(_STAYS, folder)
    assert run.returncode == 0, run.stderr
    words = "it cannot be removed (Permission denied); the next start tries again"
    assert run.stderr == f"WARNING {folder}/a.sock stays: {words}\n"
