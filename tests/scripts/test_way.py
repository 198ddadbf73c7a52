"""The count of a call's way: what is noted, where the way ends, which limits are missed."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

import pytest

from runtimeproxy.texts import Texts
from runtimeproxy.wire import http2
from scripts.benchmark import way
from scripts.benchmark.cases import HELD
from scripts.benchmark.way import LIMITS, Recorder, Way
from scripts.demonstration.processes import DemoError

TO_NOBODY, TO_CLIENT = "/elsewhere", ""
"""What a socket of a pair is bound to is "" as well."""


@contextmanager
def noted(recorder: Recorder) -> Iterator[socket.socket]:
    """Note what the block calls and sends on the socket."""
    end, peer = socket.socketpair()
    with end, peer:
        recorder.start()
        sys.setprofile(recorder.note)
        try:
            yield end
        finally:
            sys.setprofile(None)
            recorder.on = False


def a_way(call: str, hooked: bool, functions: int = 1, files: int = 1, sends: int = 1) -> Way:
    named = tuple((f"{min(number, files)}.py", str(number)) for number in range(1, functions + 1))
    return Way(call, hooked, named, functions, sends, 0, 0)


def all_ways(*changed: Way) -> list[Way]:
    """Return ways within every limit but for the changed ones."""
    others = [a_way(case.name, hooked) for case in HELD for hooked in (False, True)]
    return [*changed, *others]


def test_a_ways_functions_calls_and_sends_are_counted() -> None:
    recorder = Recorder(TO_CLIENT)
    with noted(recorder) as end:
        http2.frame(http2.DATA, 0, 1)
        http2.window_update(1, 5)
        end.send(b"the end of the answer")
        answered = monotonic_ns()
        Texts()
        http2.frame(http2.DATA, 0, 1)
        end.send(b"more")
    found = recorder.way("start", True, answered)
    frame, update = ("wire/http2.py", "frame"), ("wire/http2.py", "window_update")
    assert found.functions == (frame, update)
    assert (found.files, found.calls, found.sends) == (1, 3, 1)  # window_update calls frame
    assert (found.functions_after, found.sends_after) == (1, 1)
    assert found.row == ("start", "asked", "2", "1", "3", "1", "1", "1")


def test_nothing_counts_but_named_functions_of_the_package() -> None:
    recorder = Recorder(TO_CLIENT)
    with noted(recorder) as end:
        all_ways()
        http2.settings({1: 2})  # has a generator expression
        end.send(b"answer")
    functions = recorder.way("start", False, monotonic_ns()).functions
    assert {file for file, _ in functions} == {"wire/http2.py"}
    assert not any("<" in name for _, name in functions)


def test_a_way_without_an_answer_is_no_measurement() -> None:
    recorder = Recorder(TO_NOBODY)
    with noted(recorder) as end:
        end.send(b"to the runtime")
    with pytest.raises(DemoError, match="start: no send of the answer"):
        recorder.way("start", False, monotonic_ns())


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        (a_way("CreateContainer", True, 150, 25, 5), []),
        (a_way("CreateContainer", True, 151), ["CreateContainer, hooked: 151 functions, the limit is 150"]),
        (a_way("CreateContainer", True, 26, 26), ["CreateContainer, hooked: 26 files, the limit is 25"]),
        (a_way("CreateContainer", True, sends=6), ["CreateContainer, hooked: 6 sends, the limit is 5"]),
        (a_way("StartContainer", True, sends=8), ["StartContainer, hooked: 8 sends, the limit is 7"]),
        (a_way("StartContainer", False, 61), ["StartContainer, without a hook server: 61 functions, the limit is 60"]),
    ],
)
def test_a_missed_limit_is_named(changed: Way, missed: list[str]) -> None:
    assert [text for limit in LIMITS if (text := limit.missed(all_ways(changed)))] == missed


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--check"], 1)])
def test_limits_are_held_only_with_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], code: int
) -> None:
    def measure(mode: str, hooked: bool) -> list[Way]:
        return [a_way(call.name, hooked, functions=200) for call in way.held(mode)]

    monkeypatch.setattr(way, "measure", measure)
    monkeypatch.setattr("sys.argv", ["way", *flags])
    assert way.main() == code
    printed = capsys.readouterr()
    assert printed.out.count("asked") == 7
    assert ("CreateContainer, hooked: 200 functions" in printed.err) is bool(flags)


@pytest.mark.slow
def test_the_functions_of_a_real_call_are_listed() -> None:
    command = [sys.executable, "-m", "scripts.benchmark.way", "--list", "CreateContainer"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bare, hooked = printed.split("CreateContainer, ")[1:]
    assert bare.startswith("no hook server: ")
    assert hooked.startswith("hook server asked: ")
    for listed in (bare, hooked):
        first, *functions = listed.splitlines()
        assert len(functions) == len(set(functions)) == int(first.split()[-2])
        assert functions[0].split()[0] == "relay/endpoint.py"
    assert "hookapi/codec.py" not in {line.split()[0] for line in bare.splitlines() if "encode" in line}
    assert {"hookapi/codec.py", "plugins/client.py"} <= {line.split()[0] for line in hooked.splitlines()}
