"""Starts and unclean ends are counted across processes; a fault of their file has no other effect (fault matrix P9)."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.observe import starts
from runtimeproxy.observe.starts import Starts
from tests.fakes.descriptors import no_descriptors

Counts = tuple[int, int]


@pytest.fixture
def socket(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "proxy.sock")


def begun(socket: str) -> Starts:
    made = Starts(socket)
    made.begin()
    return made


def counts(made: Starts) -> Counts:
    return made.starts, made.unclean


def killed(made: Starts) -> None:
    """Close the file as the kernel does when the process dies."""
    assert made._file is not None
    os.close(made._file)


def test_ends_that_were_not_told_are_counted_by_the_next_start(socket: str) -> None:
    ends: list[Callable[[Starts], None]] = [killed, Starts.end, killed, killed, Starts.end]
    found = []
    for end in ends:
        made = begun(socket)
        found.append(counts(made))
        end(made)
    assert found == [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3)]
    assert counts(begun(socket)) == (6, 3)


def test_start_is_counted_once(socket: str) -> None:
    made = begun(socket)
    made.begin()
    assert counts(made) == (1, 0)
    made.end()
    made.end()
    assert counts(begun(socket)) == (2, 0)


def test_second_proxy_of_a_socket_counts_nothing(socket: str) -> None:
    first, second = begun(socket), begun(socket)
    second.end()
    first.end()
    assert (counts(second), counts(begun(socket))) == ((0, 0), (2, 0))


def test_start_is_counted_once_the_directory_is_there(tmp_path: Path) -> None:
    made = begun(f"{tmp_path}/new/proxy.sock")
    made.end()
    assert counts(made) == (0, 0)
    (tmp_path / "new").mkdir(mode=0o700)
    made.begin()
    assert counts(made) == (1, 0)


CONTENTS = {
    "nothing": "",
    "a word": "x",
    "a hole": "\0" * 150,
    "two words": "{boot} runs",
    "no number": "{boot} 1 -1 runs",
    "another script's number": "{boot} 1 ² runs",
    "another boot": "0-0 7 5 runs",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_file_of_another_boot_or_form_counts_anew(socket: str, content: str) -> None:
    Path(f"{socket}.starts").write_text(content.format(boot=starts._boot()))
    made = begun(socket)
    assert counts(made) == (1, 0)
    killed(made)
    assert counts(begun(socket)) == (2, 1)


def link(file: Path) -> None:
    target = file.with_name("target")
    target.write_text("mine")
    file.symlink_to(target)


def hard_link(file: Path) -> None:
    target = file.with_name("target")
    target.write_text("mine")
    file.hardlink_to(target)


def open_to_others(file: Path) -> None:
    file.touch()
    file.chmod(0o622)


FAULTS: dict[str, Callable[[Path], object]] = {
    "a link": link,
    "a file with another name": hard_link,
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a file that others may write": open_to_others,
    "a directory that others may write": lambda file: file.parent.chmod(0o777),
    "no directory": lambda file: file.parent.rmdir(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_fault_of_the_file_has_no_effect(socket: str, fault: Callable[[Path], object]) -> None:
    file = Path(f"{socket}.starts")
    fault(file)
    before = sorted(os.listdir(file.parent)) if file.parent.exists() else []
    made = begun(socket)
    made.end()
    assert counts(made) == (0, 0)
    assert (sorted(os.listdir(file.parent)) if file.parent.exists() else []) == before
    target = file.with_name("target")
    assert not target.exists() or target.read_text() == "mine"


def test_without_a_boot_id_the_directory_tells_the_boot(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ProcSubset=pid hides it."""
    monkeypatch.setattr(starts, "_BOOT", f"{socket}.none")
    killed(begun(socket))
    assert counts(begun(socket)) == (2, 1)


def test_shortage_of_descriptors_and_an_abstract_socket_have_no_effect(socket: str) -> None:
    with no_descriptors():
        assert counts(begun(socket)) == (0, 0)
    assert counts(begun("\0abstract")) == (0, 0)
