"""Steps that are the project's own tests, run with a share of their full numbers.

Owns which tests make up a step, and the figures that pytest's report gives.
Must not know: how tests are run (``programs``), how figures are shown.
Invariant: a step in which a test fails, or is skipped, has no figures but an error.
"""

from collections.abc import Sequence

from scripts.soaking.programs import run_tests
from scripts.soaking.results import Figure, Found
from tests.amounts import CALLS_OF_A_CLIENT, EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES


def _system(*names: str) -> Sequence[str]:
    return [f"tests/system/test_{name}.py" for name in names]


HOOKS = _system("hook_failures", "plugins", "policy_exact", "secrets")
PEERS = (
    "tests/docker/test_boundaries.py::test_heads_that_come_byte_by_byte_disturb_nobody",
    *_system("backends_broken", "bounds", "crowd"),
)
CANCELS = _system("cancels")
RESTARTS = _system("restarts", "runtime_away", "engines_killed", "containerd")
KILLS = (*_system("restart"), "tests/test_originals_file.py")


def faults(tests: Sequence[str], share: float) -> Found:
    """Run tests of what goes wrong, whose numbers scale."""
    passed = run_tests(tests, share)
    slowest, seconds = max(passed.tests, key=lambda test: test[1])
    return Found(
        [Figure("tests that passed", f"{len(passed.tests)}"), Figure(f"slowest, {slowest}", f"{seconds:.0f} s")]
    )


def clients(share: float) -> Found:
    """Run the test of the three clients, which counts at the fake runtime and at the clients."""
    calls = CALLS_OF_A_CLIENT.at(share)
    passed = run_tests(["tests/system/test_three_clients.py"], share)
    return Found(
        [
            Figure(f"{calls:,} calls of {name.removeprefix('test_')}", f"all with grpc-status 0, in {seconds:.1f} s")
            for name, seconds in passed.tests
        ]
    )


def streams(share: float) -> Found:
    """Run the tests of Docker mode's streams."""
    passed = run_tests(_system("streams", "dockerd_streams"), share)
    return Found(
        [
            Figure("tests that passed", f"{len(passed.tests)}"),
            Figure("bytes through each pipe, each way", f"{STREAM_BYTES.at(share):,}, with equal checksums"),
            Figure(
                "execs of the docker CLI with a stdin, and without", f"{EXECS_OF_THE_CLI.at(share):,} each, all ended"
            ),
            Figure("silence before the next byte", f"{IDLE_SECONDS.at(share)} s"),
        ]
    )


def properties(share: float) -> Found:
    """Run every test that Hypothesis makes examples for, in two processes: some take many minutes."""
    two = ("-n", "2", "--dist", "worksteal")
    passed = run_tests([*two, "-m", "hypothesis", "--hypothesis-show-statistics", "tests"], share)
    figures = [
        Figure("property tests that passed", f"{len(passed.tests)}"),
        Figure("examples that they were given", f"{passed.examples:,}", "1 or more", passed.examples > 0),
        Figure("slowest test", f"{max(seconds for _, seconds in passed.tests):.1f} s"),
    ]
    return Found(figures)
