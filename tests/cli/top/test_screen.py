"""How ``runtimeproxy top`` looks: what is there at which size, and that nothing controls the terminal."""

import io
import math
from dataclasses import replace
from textwrap import indent

import pytest
from rich.console import Console

from runtimeproxy.cli.top.figures import HookServer, Operation, View
from runtimeproxy.cli.top.screen import duration, screen
from runtimeproxy.observe.events import PARTS
from tests.docs import DOCS

NOTHING = (None, None)
OUTCOMES = {"agreed": 5, "failed": 0, "refused": 2, "unsettled": 0, "ended": 0}
EMPTY = View(
    *("0.9.0", "containerd", 20.0, None, True, [], 0, 0.0, 0.0, 0, 0, 0, [], dict.fromkeys(PARTS, NOTHING), [], [])
)
OPERATION = Operation("CreateContainer", 1.25, OUTCOMES, frozenset({"refused"}))
SERVER = HookServer("koordlet", "closed", "Ignore", 2.0, (0.002, 0.5), 3, last_error="PreStartContainer deadline")
ERROR = ("16:01:02", "refused", "PreCreateContainer", "ns/pod/c", "gpu", "no GPU is left")


def full(operations: int, servers: int, errors: int) -> View:
    return replace(
        EMPTY,
        operations=[replace(OPERATION, name=f"Operation{at}") for at in range(operations)],
        hook_servers=[replace(SERVER, name=f"server{at}") for at in range(servers)],
        errors=[(*ERROR[:5], f"error{at}") for at in range(errors)],
    )


def lines(view: View, width: int = 80, height: int | None = 24) -> list[str]:
    """Return the frame's lines; colours are left out."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(view, width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


SIZES = [(80, 24), (80, 12), (119, 30), (120, 40), (155, 24), (156, 24), (200, 50)]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("counts", [(0, 0, 0), (8, 3, 50), (8, 30, 50), (12, 1, 1)])
def test_frame_is_no_larger_than_the_terminal(width: int, height: int, counts: tuple[int, int, int]) -> None:
    view = replace(full(*counts), ready=False, notes=["[-]runtime failed: " + "x" * 200] * 9, held=1, missing="away")
    found = lines(view, width, height)
    assert max(map(len, found)) <= width
    assert len(found) <= max(height, 20)  # what is below 20 lines the terminal cuts


def test_what_is_left_out_is_counted_and_bad_hook_servers_stay() -> None:
    view = full(12, 30, 50)
    bad = replace(SERVER, name="bad", state="open")
    found = lines(replace(view, hook_servers=[*view.hook_servers, bad]))
    assert "\n".join(found).count("and ") == 2
    assert any(line.startswith("bad ") for line in found)


def test_without_a_height_there_is_everything() -> None:
    text = "\n".join(lines(full(12, 30, 5), height=None))
    assert all(name in text for name in ("Operation11", "server29", "error4"))


COLUMNS = [
    (80, ["POLICY"], ["LAST ERROR", "SUBJECT"]),
    (140, ["LAST ERROR", "SUBJECT", "PreStartContainer deadline"], []),
    (160, ["SUBJECT"], ["LAST ERROR"]),
    (200, ["POLICY", "LAST ERROR", "SUBJECT"], []),
]


@pytest.mark.parametrize(("width", "there", "not_there"), COLUMNS)
def test_wide_terminal_has_more_columns(width: int, there: list[str], not_there: list[str]) -> None:
    text = "\n".join(lines(full(1, 1, 1), width, 40))
    assert [name for name in there if name not in text] == []
    assert [name for name in not_there if name in text] == []


def test_docs_show_a_frame_as_it_is() -> None:
    own, hooks = (0.000251, 0.0009), (0.00312, 0.0172)
    parts = {**dict.fromkeys(PARTS, NOTHING), "own": own, "hooks": hooks, "runtime": (0.0891, 0.972)}
    good = {**OUTCOMES, "agreed": 889, "refused": 0}
    notes = ["[~]disabled_plugins degraded: disabled by hand: cpuset"]
    view = replace(
        EMPTY,
        **{"uptime": 88980.0, "interval": 10.0, "held": 1, "oldest": 0.0412, "passing": 13.7, "connections": 4},
        **{"pods": 112, "containers": 187, "parts": parts, "notes": notes},
        operations=[
            replace(OPERATION, rate=0.4, outcomes={**good, "refused": 2, "failed": 1}),
            Operation("RunPodSandbox", 0.2, {**good, "agreed": 431}),
            Operation("StartContainer", 0.4, {**good, "agreed": 884, "ended": 3}),
        ],
        hook_servers=[
            HookServer("cpuset", "disabled", "Fail", 0.0, NOTHING, 12),
            HookServer("koordlet", "closed", "Ignore", 1.0, hooks, 0),
        ],
        errors=[
            ("16:01:02", "refused", "CreateContainer", "default/web-1/main", "cpuset", "deadline"),
            ("15:58:40", "slow", "CreateContainer", "default/web-0/main", "", ""),
        ],
    )
    assert indent("\n".join(lines(view)), "    ") in DOCS["commands"]


STATES = [
    (replace(EMPTY, ready=False, notes=["[-]runtime failed: x"]), "not ready", "[-]runtime failed: x"),
    (replace(EMPTY, notes=["[~]store degraded: y"]), "ready, degraded", "[~]store degraded: y"),
    (replace(EMPTY, ready=None), "ready unknown", ""),
    (replace(EMPTY, missing="it hangs"), "no answer, these figures are old", "it hangs"),
    (replace(EMPTY, interval=10.0), "ready", "last 10 s"),
    (replace(EMPTY, held=2, oldest=0.25), "ready", "held 2, oldest 250 ms"),
]


@pytest.mark.parametrize(("view", "state", "line"), STATES)
def test_head_says_how_the_proxy_is(view: View, state: str, line: str) -> None:
    found = lines(view)
    assert f"   {state}   " in found[0]
    assert any(line in each for each in found)


def test_no_name_controls_the_terminal() -> None:
    evil = "\x1b[2J\n[red]x"
    view = replace(
        EMPTY,
        notes=[evil],
        operations=[replace(OPERATION, name=evil)],
        hook_servers=[replace(SERVER, name=evil, last_error=evil, state=evil, policy=evil)],
        errors=[(evil, evil, evil, evil, evil, evil)],
        missing=evil,
    )
    found = lines(view, 200)
    assert len([line for line in found if "?[2J?[red]x" in line]) == 4  # the operation stands beside the hook server
    assert not any("\x1b" in line for line in found)


DURATIONS = [
    (None, "-"),
    (0.0, "0 s"),
    (0.000326, "0.326 ms"),
    (0.0172, "17.2 ms"),
    (0.9996, "1 s"),
    (59.0, "59 s"),
    (600.0, "10 min"),
    (3 * 3600 + 120.0, "3 h 2 min"),
    (49 * 3600.0, "2 d"),
    (math.inf, ">10 s"),
]


@pytest.mark.parametrize(("seconds", "text"), DURATIONS)
def test_time_has_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
