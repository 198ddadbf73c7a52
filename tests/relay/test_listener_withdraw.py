"""A socket that nobody is to connect to any more, while who has connected is still accepted."""

import socket
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import listen


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
