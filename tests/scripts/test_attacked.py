"""The soak's hostile clients, and the calls of others beside them."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.benchmark import programs
from scripts.benchmark.cases import CRI, DOCKER, PROXY
from scripts.demonstration.processes import DemoError, program
from scripts.soaking import attacked, attacker, attacks
from scripts.soaking.attacker import Attacker
from scripts.soaking.attacks import ATTACKS, MOST_BYTES, Attack

KINDS = [(mode, kind) for mode, kinds in ATTACKS.items() for kind in kinds]


@pytest.mark.parametrize(("mode", "kind"), KINDS)
def test_every_kind_has_bytes_and_not_too_many(mode: str, kind: str) -> None:
    assert 0 < len(ATTACKS[mode][kind].make()) <= 2 * MOST_BYTES


@contextmanager
def server(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serve connections, one after the other, until the end of the block."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    serve(client)

        serving = threading.Thread(target=accept)
        serving.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()


def test_an_attacker_goes_on_when_it_is_ended(tmp_path: Path) -> None:
    came: list[bytes] = []
    with server(tmp_path / "s", lambda client: came.append(client.recv(64, socket.MSG_WAITALL))):
        attacking = Attacker(str(tmp_path / "s"), Attack(lambda: b"x" * 64 * 1024, step=64))
        while attacking.took["ended"] < 3:
            attacking.turn()
        attacking.close()
    assert set(came) <= {b"x" * 64, b""}
    assert attacking.took["connections"] >= 3
    assert attacking.took["bytes"] >= 3 * 64


def test_an_attacker_goes_on_when_nothing_comes_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacker, "SILENT_SECONDS", 0.01)
    with server(tmp_path / "s", lambda client: [None for _ in iter(lambda: client.recv(64), b"")] and None):
        attacking = Attacker(str(tmp_path / "s"), Attack(lambda: b"abc"))
        while attacking.took["connections"] < 3:
            attacking.turn()
        attacking.close()
    assert attacking.took["ended"] == 0
    assert attacking.took["bytes"] >= 6


def test_connections_take_turns_and_keep_to_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(attacker.time, "sleep", slept.append)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        attacking = Attacker(str(tmp_path / "s"), Attack(lambda: b"abc", connections=3, step=1, a_second=100))
        attacking.turn()
        attacking.turn()
        accepted = [listener.accept()[0] for _ in range(3)]
        assert [each.recv(64) for each in accepted] == [b"ab"] * 3
        attacking.close()
        assert [each.recv(64) for each in accepted] == [b""] * 3
        for each in accepted:
            each.close()
    assert attacking.took == {"connections": 3, "bytes": 6}
    assert len(slept) == 6
    assert max(slept) > 0.02, "nobody has slept, so the later steps are to wait for longer"


def test_an_attacker_says_that_it_attacks_and_what_that_took(tmp_path: Path) -> None:
    with server(tmp_path / "s", lambda client: client.recv(64) and None):
        command = [sys.executable, "-m", "scripts.soaking.attacker", DOCKER, "heads that are none", str(tmp_path / "s")]
        with program("attacker", command, tmp_path) as running:
            while attacker.ATTACKS_NOW not in running.output():
                assert running.process.poll() is None
    assert json.loads(running.output().splitlines()[-1])["connections"] > 0


def test_an_attack_that_ends_is_no_measurement(tmp_path: Path) -> None:
    served = programs.Served(tmp_path)
    with (
        pytest.raises(DemoError, match="no attack by huge heads"),
        attacked._attack(served, DOCKER, "huge heads", PROXY, 0),
    ):
        pass


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(("mode", "kind"), [(CRI, "PRIORITY"), (DOCKER, "chunks of a byte")])
def test_a_small_part_of_it(mode: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacked, "TURNS", 1)
    monkeypatch.setattr(attacked, "ATTACKS", {mode: {kind: attacks.ATTACKS[mode][kind]}})
    [found] = attacked.measure(mode, 0.02).values()
    for each in found:
        assert len(each.here.microseconds) == len(each.elsewhere.microseconds) == int(attacked.CALLS[each.case] * 0.02)
        assert each.ratio > 0
