"""A hostile client that goes on: as soon as one of its connections ends, it makes another one.

Owns its connections, and what they took.
Must not know: what the bytes mean.
Invariant: it reads whatever comes, so that it is never itself the one who makes the other side wait.
Run: ``python -m scripts.soaking.attacker cri|docker NAME SOCKET``; it prints a line when its first bytes are taken, and
its counts at SIGTERM.
"""

import json
import select
import signal
import socket
import sys
import time
from collections import Counter

from scripts.soaking.attacks import ATTACKS, Attack

READ_BYTES = 1 << 18
SILENT_SECONDS = 1.0
"""A connection on which everything is sent, and nothing comes any more, is given up."""
ATTACKS_NOW = "attacks"

_COMES = select.POLLIN | select.POLLHUP | select.POLLERR


class Attacker:
    """The connections of an attack to a socket; ``took`` counts connections, those that were ended, and bytes."""

    def __init__(self, path: str, attack: Attack) -> None:
        self.took: Counter[str] = Counter()
        self._path = path
        self._attack = attack
        self._data = memoryview(attack.make())
        self._poll = select.poll()
        self._sent: dict[socket.socket, int] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._next = time.monotonic()

    def turn(self) -> None:
        """Have as many connections as there should be, and go on with those that take or have something."""
        while len(self._sockets) < self._attack.connections:
            self._connect()
        ready = self._poll.poll(SILENT_SECONDS * 1000)
        for descriptor, events in ready:
            sock = self._sockets[descriptor]
            if events & _COMES and not self._read(sock):
                self.took["ended"] += 1
                self._drop(sock)
            elif events & select.POLLOUT:
                self._send(sock)
        if not ready:
            self.close()

    def close(self) -> None:
        """Close every connection."""
        for sock in tuple(self._sockets.values()):
            self._drop(sock)

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self._path)
        sock.setblocking(False)
        self._sockets[sock.fileno()], self._sent[sock] = sock, 0
        self._poll.register(sock, select.POLLIN | select.POLLOUT)
        self.took["connections"] += 1

    def _drop(self, sock: socket.socket) -> None:
        self._poll.unregister(sock)
        del self._sockets[sock.fileno()], self._sent[sock]
        sock.close()

    def _read(self, sock: socket.socket) -> bool:
        """Read; False at the end."""
        try:
            return bool(sock.recv(READ_BYTES))
        except OSError:
            return False

    def _send(self, sock: socket.socket) -> None:
        at = self._sent[sock]
        try:
            size = sock.send(self._data[at : at + self._attack.step])
        except OSError:  # it has been ended, which is read
            size = 0
        self.took["bytes"] += size
        self._sent[sock] = at + size
        if at + size == len(self._data):
            self._poll.modify(sock, select.POLLIN)
        if self._attack.a_second:
            self._next = max(self._next + 1 / self._attack.a_second, time.monotonic() - SILENT_SECONDS)
            time.sleep(max(self._next - time.monotonic(), 0))


def main() -> None:
    """Attack until SIGTERM."""
    mode, name, path = sys.argv[1:]
    attacker = Attacker(path, ATTACKS[mode][name])
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, end)
    while not over:
        before = attacker.took["bytes"]
        attacker.turn()
        if not before and attacker.took["bytes"]:
            print(ATTACKS_NOW, flush=True)
    attacker.close()
    print(json.dumps(attacker.took))


if __name__ == "__main__":
    main()
