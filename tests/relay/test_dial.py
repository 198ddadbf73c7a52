"""Connecting: a full backlog is waited for, an absent listener fails immediately (relay-rules A12).

Also which users may serve a hook server's socket (fault matrix X6).
"""

import asyncio
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.relay.dial import UntrustedSocket, dial, dial_now, dial_trusted
from tests.fakes.descriptors import no_descriptors

LONG_SECONDS = 60.0
"""Most seconds to wait; far longer than immediate events take on a busy machine."""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield a listening socket in a directory of its own."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "run" / "l.sock"))
        sock.listen(0)
        yield sock


@pytest.fixture
def served(listener: socket.socket) -> Path:
    return Path(listener.getsockname())


def fill_backlog(path: str) -> list[socket.socket]:
    """Connect until the listener's backlog is full."""
    retained = []
    while (sock := dial_now(path)) is not None:
        retained.append(sock)
    return retained


def scarce(number: int, times: int) -> Callable[[str], socket.socket | None]:
    """Return a dialler that fails ``times`` times for lack of a resource."""
    failures = [OSError(number, "scarce")] * times

    def dialler(path: str) -> socket.socket | None:
        if failures:
            raise failures.pop()
        return dial_now(path)

    return dialler


async def test_full_backlog_is_waited_for(listener: socket.socket) -> None:
    path = listener.getsockname()
    retained = fill_backlog(path)
    with pytest.raises(TimeoutError):
        await dial(path, 0.03)
    waiting = asyncio.create_task(dial(path, LONG_SECONDS))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    retained += [listener.accept()[0] for _ in retained]
    near = await waiting
    far, _ = listener.accept()
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    for sock in [*retained, near, far]:
        sock.close()


NOBODY = 65534
as_root = pytest.mark.engine
"""Only root can give a file to another user."""
NO_SOCKET = "{path} is a link or no socket: register the path of the hook server's own socket"
FAULTS = {
    "directory of all": ("chmod 1777 .", "{folder} can be written by everybody, who could"),
    "linked directory": ("cd ..; mv run real; ln -s real run", "{folder} is a link: register the socket by the path"),
    "link": ("mv l.sock real; ln -s real l.sock", NO_SOCKET),
    "file": ("rm l.sock; touch l.sock", NO_SOCKET),
    "another user": (f"chown {NOBODY}:{NOBODY} l.sock", f"{{path}} belongs to user {NOBODY}: run the hook"),
}
"""Directories that other users can write in are tested in test_listener.py."""


@pytest.mark.parametrize(
    ("spoil", "text"),
    [pytest.param(*row, id=fault, marks=as_root if fault == "another user" else ()) for fault, row in FAULTS.items()],
)
def test_socket_that_others_can_replace_is_not_dialled(served: Path, spoil: str, text: str) -> None:
    subprocess.run(["sh", "-ec", spoil], cwd=served.parent, check=True)
    with pytest.raises(UntrustedSocket, match=re.escape(text.format(folder=served.parent, path=served))):
        dial_trusted(str(served))


@as_root
def test_socket_of_root_with_another_listener_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hooks.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        os.seteuid(NOBODY)  # the user who calls listen(2) is the peer in unix(7)
        try:
            sock.listen(1)
        finally:
            os.seteuid(0)
        with pytest.raises(UntrustedSocket, match=f"user {NOBODY} listens on {path}: run the hook server as root"):
            dial_trusted(str(path))
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.recv(1) == b""


@pytest.mark.parametrize("above", [0o755, 0o1777])
def test_own_socket_in_own_directory_is_trusted(served: Path, above: int) -> None:
    """The mode of the directory above does not count. A full backlog and a missing listener are reported."""
    served.parent.parent.chmod(above)
    made = dial_trusted(str(served))
    assert made is not None
    retained = [made, *fill_backlog(str(served))]
    assert made.getpeername() == str(served)
    assert dial_trusted(str(served)) is None
    for path in (served.with_name("other.sock"), served.parent / "none" / "hooks.sock"):
        with pytest.raises(FileNotFoundError):
            dial_trusted(str(path))
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        dial_trusted(str(served))
    for sock in retained:
        sock.close()
