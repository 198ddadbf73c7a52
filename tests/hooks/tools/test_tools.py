"""``runtimeproxy hook``: select and call a server, requests as YAML, ``bench``, ``verify`` and ``new``."""

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from runtimeproxy.errors import ConfigError
from runtimeproxy.hookapi import codec
from runtimeproxy.model import merge
from runtimeproxy.model.fields import ContainerInfo, HookAnswer, HookRequest, PodInfo, Resources
from runtimeproxy.model.hookpoints import BY_NAME, HOOK_POINTS, HookPoint, SubjectKind
from runtimeproxy.plugins import registration
from runtimeproxy.relay.rpc.connection import CallFailed, Kind
from runtimeproxy_hooks.tools import client as hook_client
from runtimeproxy_hooks.tools import new, request, trials, verify
from runtimeproxy_hooks.tools.client import WARM_UP_CALLS, Figures, HookCallFailed, Server, bench
from runtimeproxy_hooks.tools.trials import TriedServer
from runtimeproxy_hooks.tools.verify import RULES, Mark, Rule, Verdict, judge
from tests.fakes import hookanswers
from tests.fakes.broken_hookservers import BROKEN, GOOD, LATE_SECONDS, Made, Tried, answering
from tests.fakes.hookanswers import HookCall
from tests.fakes.hookserver import HookServer
from tests.hooks.nodes import umask
from tests.hooks.sdk.processes import ROOT, eventually

Patch = pytest.MonkeyPatch
PRE_RUN, CREATE, PRE_START, POST_START = (
    BY_NAME[name] for name in ("PreRunPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer")
)
BODY = request.encoded(CREATE, request.example())


def test_server_is_selected_by_file_or_socket(tmp_path: Path) -> None:
    assert hook_client.find("unix:///run/x.sock") == Server("/run/x.sock")
    file, entry = tmp_path / "10-x.json", {"remote-endpoint": "unix:///run/x.sock"}
    file.write_text(json.dumps(entry))
    assert hook_client.find(str(file)) == Server("/run/x.sock", 2.0, frozenset())
    file.write_text(json.dumps({**entry, "timeout": "500ms", "runtime-hooks": ["PreStartContainer"]}))
    assert hook_client.find(str(file)) == Server("/run/x.sock", 0.5, frozenset({"PreStartContainer"}))
    file.write_text("{}")
    unread = f"{tmp_path}/y.json: the registration file cannot be read: No such file"
    for name, words in ((file, f"{file}: remote-endpoint is missing"), (tmp_path / "y.json", unread)):
        with pytest.raises(ConfigError, match=f"^{words}"):
            hook_client.find(str(name))
    with pytest.raises(ConfigError, match=r"^SERVER: 'x\.sock' is not a unix socket"):
        hook_client.find("x.sock")


FAILURES = [
    (CallFailed(14, "/run/a: b.sock: Connection refused", Kind.UNREACHABLE), "not reachable: Connection refused"),
    (CallFailed(4, "no answer in time", Kind.DEADLINE), "no answer in time"),
    (CallFailed(13, "cut", Kind.BROKEN), "broken answer: cut"),
    (CallFailed(16, "x", Kind.STATUS), "UNAUTHENTICATED: x"),
    (CallFailed(7, "", Kind.STATUS), "refused (PERMISSION_DENIED): without a text"),
    (CallFailed(12, "whatever", Kind.STATUS), "this hook point is not served (UNIMPLEMENTED)"),
    (CallFailed(2, "{text} \x1b[31mred\nline\x07", Kind.STATUS), "UNKNOWN: {text}  [31mred line"),
]


@pytest.mark.parametrize(("failure", "words"), FAILURES)
def test_failure_text_is_safe_to_print(failure: CallFailed, words: str) -> None:
    assert hook_client.words(failure) == words


def test_figures_are_shown_in_milliseconds() -> None:
    figures = Figures([0.002, 0.001], 0.5, Counter({"no answer in time": 3, "INTERNAL: x": 1}))
    assert [" ".join(line.split()) for line in figures.lines] == [
        *("p50 1.000 ms", "p90 2.000 ms", "p99 2.000 ms", "longest 2.000 ms", "calls/s 4"),
        *("failures 4", "3 x no answer in time", "1 x INTERNAL: x"),
    ]
    assert [line.split() for line in Figures([], 1.0).lines] == [["calls/s", "0"], ["failures", "0"]]


async def test_bench_makes_concurrent_calls_and_counts_failures(tmp_path: Path) -> None:
    """Each of the first calls after the warm-up waits for three of them: consecutive calls would all time out."""

    async def measured(**more: Any) -> Figures:
        return await asyncio.to_thread(bench, Server(server.socket_path), CREATE, BODY, timeout_seconds=10.0, **more)

    async def meet(call: HookCall) -> bytes:
        if len(server.calls) > 1 + WARM_UP_CALLS:
            await barrier.wait()
        return b""

    async def fail_sometimes(call: HookCall) -> bytes:
        return await fail(call) if len(server.calls) % 2 == 0 else b""

    barrier, fail = asyncio.Barrier(3), hookanswers.status(grpc.StatusCode.INTERNAL, "odd")
    async with HookServer(str(tmp_path / "hooks.sock"), default=meet) as server:
        figures = await measured(calls=150, concurrency=3)
        assert len(server.calls) == 1 + WARM_UP_CALLS + 150
        assert (len(figures.seconds), figures.failures) == (150, Counter())
        server.calls.clear()
        server.default = fail_sometimes
        figures = await measured(calls=10, concurrency=1)
        assert (len(figures.seconds), figures.failures) == (5, Counter({"INTERNAL: odd": 5}))
        for server.default, words in ((fail, "INTERNAL: odd"), (hookanswers.garbage(), "broken answer: ")):
            server.calls.clear()
            with pytest.raises(HookCallFailed, match=f"PreCreateContainer: {words}"):
                await measured(calls=10, concurrency=1)
            assert len(server.calls) == 1


RESOURCES_SENT = Resources(cpu_quota=50000, cpu_shares=2, cpuset_cpus="0-3", hugepage_limits={"2MB": 4096})
ENTRIES_SENT: Any = {"envs": {"A": "1", "EMPTY": ""}, "annotations": {"n": "a\nb"}}
SENT = HookRequest(PodInfo(cgroup_parent="/pod"), ContainerInfo(**ENTRIES_SENT, resources=RESOURCES_SENT))


BAD_PERIOD = "resources.cpu_period: must be 0 (not set) or 1000..1000000 microseconds"
PARTS: dict[str, Any] = {"applied": {"resources": {"cpu_shares": 4}}, "dropped": {"resources": {"cpu_period": 5}}}
PARTS |= {"without-effect": {"envs": {"A": "2"}}, "bad": [BAD_PERIOD]}


def test_answer_is_shown_as_changes_and_lost_entries() -> None:
    def shown(answer: HookAnswer, hook_point: HookPoint = CREATE) -> tuple[Any, list[str]]:
        text = "\n".join(hook_client.answer_lines(hook_point, SENT, answer))
        assert text.replace("\n", "").isprintable()
        return yaml.safe_load(text), re.findall(" +# was (.*)", text)

    changed: dict[str, Any] = {"cpu_quota": -1, "hugepage_limits": {"2MB": 0, "1GB": 8192}}
    envs = {"A": "2", "B": "x y", "EMPTY": "1", "on": "off", "\n\x80": "", **{"k" * long: "" for long in (1022, 1023)}}
    more: dict[str, Any] = {"envs": envs, "annotations": {"n": "c"}, "cgroup_parent": "/other"}
    text, before = shown(HookAnswer(**more, resources=Resources(cpu_shares=2, **changed)))
    assert text == {"applied": {**more, "resources": {**changed, "cpuset_cpus": ""}}}
    assert before == ['"a\\nb"', '"1"', '"/pod"', "50000", '"0-3"', "4096"]
    assert shown(merge.echo(SENT)) == shown(HookAnswer()) == ({"applied": {}}, [])
    lost = HookAnswer(envs={"A": "2"}, resources=Resources(cpu_period=5, cpu_shares=4))
    assert shown(lost, PRE_START) == (PARTS, ["2", '"1"'])


async def test_call_shows_request_and_its_changes(tmp_path: Path) -> None:
    async def called(hook_point: HookPoint, points: frozenset[str] | None = None) -> hook_client.Called:
        """Call the server with the example request, as the command does: in a thread with its own event loop."""
        named = Server(server.socket_path, points=points)
        return await asyncio.to_thread(hook_client.call, named, hook_point, request.example(), 10.0)

    async with HookServer(str(tmp_path / "hooks.sock"), default=hookanswers.koordlet(cpu_quota=-1)) as server:
        created, started = await called(CREATE), await called(POST_START, frozenset({"PreStartContainer"}))
    first, *heads = [line for line in created.text.splitlines() if line.startswith("#")]
    assert first.startswith(f"# PreCreateContainer at {tmp_path}/hooks.sock answered in ")
    assert heads == ["# not sent at this hook point: pod.runtime_handler, pod.overhead, container.id"]
    assert (yaml.safe_load(created.text), created.faults) == ({"applied": {"resources": {"cpu_quota": -1}}}, ())
    assert "# the proxy would not call: the registration file does not name PostStartContainer" in started.text
    assert "# the proxy ignores what is answered at this hook point" in started.text


# Requests as YAML.
def of_pod(**fields: Any) -> HookRequest:
    return HookRequest(PodInfo(**fields))


NUMBERS = "{cpu_quota: -1, cpuset_cpus: 0, hugepage_limits: {2MB: 18446744073709551615}, unified: {a: b}}"
READ_NUMBERS = Resources(cpu_quota=-1, cpuset_cpus="0", hugepage_limits={"2MB": 2**64 - 1}, unified={"a": "b"})
READ: list[tuple[str, HookRequest]] = [
    *((text, of_pod()) for text in ("", "# nothing\n", "container:", "pod: {labels: , name: ~, attempt: null}")),
    ("container: {envs: {A: '1'}}", HookRequest(PodInfo(), ContainerInfo(envs={"A": "1"}))),
    ("pod: {name: web, uid: 0x1, attempt: 4294967295}", of_pod(name="web", uid="0x1", attempt=2**32 - 1)),
    ("pod: {overhead: {}}", of_pod(overhead=Resources())),
    (f"pod: {{resources: {NUMBERS}}}", of_pod(resources=READ_NUMBERS)),
    ("pod: {labels: &same {a: b}, annotations: *same}", of_pod(labels={"a": "b"}, annotations={"a": "b"})),
]


@pytest.mark.parametrize(("text", "read"), READ, ids=[text for text, _ in READ])
def test_request_is_parsed(text: str, read: HookRequest) -> None:
    assert request.parse(text, "f") == read


REFUSED = [
    ("- pod", "f:1: write 'key: value' lines here"),
    ("pod:\n  labls: {secret: canary}", "f:2: pod.labls: unknown key; did you mean labels?"),
    ("pod:\n  id: canary", "f:2: pod.id: unknown key; did you mean uid?"),
    ("container: {pod_id: canary}", "f:1: container.pod_id: unknown key; there are name, attempt, "),
    ("pod: {annotations: {a: {b: canary}}}", "f:1: pod.annotations.a: write one text, in quotes if it is JSON"),
    ("pod: {attempt: canary}", "f:1: pod.attempt: write a whole number, without a unit"),
    ("pod: {attempt: 4294967296}", "f:1: pod.attempt: write a number from 0 to 4294967295"),
    ("pod: {resources: {hugepage_limits: {2MB: -1}}}", "f:1: pod.resources.hugepage_limits.2MB: write a number from 0"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_error_has_line_and_key_but_no_value(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        request.parse(text, "f")
    assert str(caught.value).startswith(words)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


LOST = [
    *((PRE_RUN, "pod: {overhead: {cpu_shares: 2}}", ()), (PRE_RUN, "container: {name: main}", ("container",))),
    (
        CREATE,
        "{pod: {cgroup_parent: /b}, container: {id: c1, cgroup_parent: /a}}",
        ("pod.cgroup_parent", "container.id"),
    ),
    (PRE_START, "{pod: {overhead: {}, runtime_handler: a}, container: {}}", ("pod.runtime_handler", "pod.overhead")),
    (PRE_START, '{pod: {}, container: {envs: {A: "\\ud83d"}}}', ("container.envs",)),
]


def test_field_that_proxy_never_sends_is_reported() -> None:
    assert [request.unsent(hook_point, request.parse(text, "f")) for hook_point, text, _ in LOST] == [
        row[2] for row in LOST
    ]
    for hook_point in HOOK_POINTS:
        sent = request.at_hook_point(hook_point, request.example())
        assert (sent.container is None) == (hook_point.subject is SubjectKind.POD)
        assert request.unsent(hook_point, sent) == ()
        assert request.encoded(hook_point, sent) == codec.encode(hook_point, sent)
    with pytest.raises(ConfigError, match=r"PreStartContainer is about a container, and the request has none: add"):
        request.encoded(PRE_START, of_pod())


# Verify.
Points = Sequence[HookPoint]
TWO_POINTS = (PRE_RUN, CREATE)
NOWHERE = "no hook point answers a plain request"


def serve_create(path: str) -> HookServer:
    unserved = hookanswers.BY_NAME["unimplemented"]()
    return HookServer(path, {"PreCreateContainer": hookanswers.echo()}, default=unserved)


async def verdicts(
    folder: Path, made: Made, points: Points = TWO_POINTS, tried: Sequence[Rule] = RULES, **more: Any
) -> dict[str, Verdict]:
    async with made(path := str(folder / "hooks.sock")):
        subject = TriedServer(path, request.example(), points, **({"timeout_seconds": 10.0} | more))
        await subject.probe()
        return {verdict.rule.name: verdict for verdict in await judge(subject, rules=tried)}


NO_ANSWER, REFUSAL = (
    "the server answers no more since 'empty'",
    "the plain request is refused: give one that is not (-f)",
)
REPEATED = "PreCreateContainer: resources: cpu_period, cpu_quota, cpu_shares, memory_limit_in_bytes, "
REPEATED += "memory_swap_limit_in_bytes"
LATE = f"no answer within {LATE_SECONDS:g} s: PreCreateContainer (empty), PreCreateContainer (missing)"
WORDS = {
    "a refusal": {"values": REFUSAL, "echo": REFUSAL},
    "sets a bad value": {"values": f"PreRunPodSandbox: {BAD_PERIOD} (and at PreCreateContainer)"},
    "forgets a number of its echo": {"echo": f"{REPEATED} repeated as sent, oom_score_adj left out"},
    "dies of an empty request": {"missing": NO_ANSWER, "broken-connection": NO_ANSWER, "restart": NO_ANSWER},
    "hangs": {"deadline": "no answer within 0.2 s: PreCreateContainer (a plain request)"},
    "hangs without a cgroup parent": {"empty": "no answer in time, see 'deadline'", "deadline": LATE},
}
SERVERS = BROKEN | {name: Tried(made, "") for name, made in GOOD.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
async def test_server_fails_only_expected_rules(tmp_path: Path, name: str) -> None:
    tried = SERVERS[name]
    points = TWO_POINTS if tried.timeout_seconds > LATE_SECONDS else TWO_POINTS[1:]  # a server that hangs does so once
    found = await verdicts(tmp_path, tried.made, points, timeout_seconds=tried.timeout_seconds)
    words = {rule: verdict.words for rule, verdict in found.items()}
    broken, skipped = ({rule for rule in found if found[rule].mark is mark} for mark in (Mark.BROKEN, Mark.SKIPPED))
    assert broken == {tried.breaks} - {""}, words
    assert words | WORDS.get(name, {}) == words
    if name in GOOD:
        assert skipped == {"restart"} | WORDS.get(name, {}).keys()
    if tried.breaks in ("serves", "plain"):
        not_checked = {"serves", "unknown-method", "restart", "deadline", tried.breaks}
        assert {rule for rule, each in words.items() if each == NOWHERE} == found.keys() - not_checked
    assert list(found) == [rule.name for rule in RULES]
    assert {each.breaks for each in BROKEN.values()} | {"restart"} == found.keys(), "a rule has no server"


RESTART = tuple(rule for rule in RULES if rule.name == "restart")
FAIL, HANG = hookanswers.BY_NAME["fail"](), hookanswers.hang()
AWAY = "waited 2 s for an answer at PreRunPodSandbox; afterwards a plain request: not reachable: No such file or "
AWAY += "directory"
COMMANDS: list[tuple[str, float, list[hookanswers.Answer], str]] = [
    ("exit 3", 10.0, [], "the restart command ended with exit code 3"),
    ("sleep 100 & echo $! > {0}/pid; wait", 2.0, [], "waited 2 s for the command to end"),  # its child ends, too
    ("rm {0}/hooks.sock", 2.0, [], AWAY),
    ("touch {0}/restarted", 10.0, [HANG, FAIL, HANG, FAIL], RESTART[0].sentence),  # the server may be slow afterwards
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "seconds", "starts", "words"), COMMANDS)
async def test_restart_is_tested_with_command(
    tmp_path: Path, monkeypatch: Patch, command: str, seconds: float, starts: list[hookanswers.Answer], words: str
) -> None:
    async def answer(call: HookCall) -> bytes:
        return await (left.pop() if (tmp_path / "restarted").exists() and left else hookanswers.echo())(call)

    monkeypatch.setattr(trials, "RESTART_SECONDS", seconds)
    left, seconds, command = [*starts], LATE_SECONDS / 2 if starts else 10.0, command.format(tmp_path)
    more: dict[str, Any] = {"restart_command": command, "timeout_seconds": seconds}
    found = await verdicts(tmp_path, answering(answer), TWO_POINTS[:1], RESTART, **more)
    mark = Mark.PASSED if starts else Mark.BROKEN
    assert (found["restart"].mark, found["restart"].words, left) == (mark, words, [])
    if (pid := tmp_path / "pid").exists():
        command_line = Path("/proc", pid.read_text().strip(), "cmdline")  # a zombie has none
        await asyncio.to_thread(eventually, lambda: not (command_line.exists() and command_line.read_bytes()))


EXAMPLE = request.example()
POD_ONLY, WITHOUT_HANDLER = HookRequest(EXAMPLE.pod), replace(EXAMPLE, pod=replace(EXAMPLE.pod, runtime_handler=""))
WITH_UPDATE, BOTH = (PRE_RUN, BY_NAME["PreUpdateContainerResources"]), "PreRunPodSandbox, PreUpdateContainerResources"
UNSERVED = "serves             FAIL  PreRunPodSandbox not served (UNIMPLEMENTED)\n"
TABLES: list[tuple[Made, HookRequest, Points, str, str, str]] = [
    (GOOD["an echo"], WITHOUT_HANDLER, WITH_UPDATE, BOTH, "", "\n14 passed, 0 failed, 1 skipped"),
    (serve_create, request.example(), TWO_POINTS[:1], "PreCreateContainer", UNSERVED, "\n13 passed, 1 failed"),
    (GOOD["an echo"], POD_ONLY, TWO_POINTS[:1], "PreRunPodSandbox", "", "\n14 passed, 0 failed"),
    (serve_create, POD_ONLY, TWO_POINTS[:1], "none of PreRunPodSandbox", UNSERVED, ""),
    (BROKEN["serves no hook point"].made, request.example(), (), "no hook point", "", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("made", "queried", "points", "serves", "first", "last"), TABLES)
async def test_table_has_each_rule_and_sums(
    tmp_path: Path, made: Made, queried: HookRequest, points: Points, serves: str, first: str, last: str
) -> None:
    lines: list[str] = []
    async with made(path := str(tmp_path / "hooks.sock")):
        subject = TriedServer(path, queried, points, 10.0)
        good = await asyncio.to_thread(verify.verify, subject, lines.append)
    assert lines[0] == f"{tmp_path}/hooks.sock serves {serves}\n"
    assert lines[1].startswith(first)
    assert [row.split()[0] for row in lines[1:-1]] == [rule.name for rule in RULES]
    assert lines[-1].startswith(last)
    assert good == ("0 failed" in lines[-1])


# A new hook server.
INVALID, TAKEN = "is not a name: write small letters", "is the name of another module"
NAMES = [
    *((name, INVALID) for name in ("", "Gpu", "1a", "_a", "a--b", "a/b", "é", "..", "x" * 41)),
    *((name, TAKEN) for name in ("class", "json")),
    ("runtimeproxy-hooks", f"'runtimeproxy_hooks' {TAKEN}, which runtimeproxy_hooks.py would"),
]


def test_folder_is_not_written_or_removed_on_error(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, words in NAMES:
        with pytest.raises(ConfigError, match=re.escape(words)):
            new.new(name, tmp_path)
    monkeypatch.setattr(new, "files", lambda name: {"no folder/gpu.py": ""})
    with pytest.raises(ConfigError, match=f"^{tmp_path}/gpu cannot be written: No such file or directory; name a fold"):
        new.new("gpu", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_has_all_files_and_is_writable_only_by_owner(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, mask in (("gpu", 0o000), ("gpu-env", 0o077)):
        with umask(mask):
            folder = new.new(name, tmp_path)
        assert (folder, stat.S_IMODE(folder.stat().st_mode)) == (tmp_path / name.replace("-", "_"), 0o755)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert files.keys() == {"gpu_env.py", "test_gpu_env.py", "gpu_env.service", "gpu_env.json", "README.rst"}
    assert not [name for name, text in files.items() if "$name" in text or "{name}" in text or "$class" in text]
    assert "class GpuEnvHook(Hook):" in files["gpu_env.py"]
    entry = registration.parse("gpu_env.json", files["gpu_env.json"].encode())
    assert (entry.warnings, entry.points) == ((), {"PreCreateContainer"})
    assert entry.endpoint == "/var/run/runtimeproxy-hooks/gpu_env.sock"
    monkeypatch.setattr(sys, "executable", python := "/a b/100%/python3")
    word, in_unit, texts = f"'{python}'", "'/a b/100%%/python3'", new.files("gpu")
    assert f"\nExecStart={in_unit} /usr/local/lib/gpu/gpu.py " in texts["gpu.service"]
    assert "\nProtectHome=yes\n" in texts["gpu.service"]
    for command in (f"{word} -m pytest``", f"{word} -m pip install pytest``", f"    {word} gpu.py --endpoint"):
        assert command in texts["README.rst"]
    assert not [name for name, text in texts.items() if "python3" in text.replace(word, "").replace(in_unit, "")]
    monkeypatch.setattr(sys, "executable", "/home/me/venv/bin/python")
    assert "\nProtectHome=read-only\n" in new.files("gpu")["gpu.service"]


@pytest.mark.slow
def test_commands_of_readme_work(tmp_path: Path) -> None:
    """The first block serves, the second calls, verifies and measures."""
    folder = new.new("gpu-env", tmp_path)
    serve, try_out = re.findall(r"::\n\n((?: {4}.*\n)+)", (folder / "README.rst").read_text())
    program = tmp_path / "runtimeproxy"  # the name in the README
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m runtimeproxy "$@"\n')
    program.chmod(0o755)
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    serving = subprocess.Popen(["bash", "-c", f"exec {serve.strip()}"], cwd=folder, env=environ)
    try:
        eventually((folder / "gpu_env.sock").exists)
        more: dict[str, Any] = {"cwd": folder, "env": environ, "capture_output": True, "text": True}
        done = subprocess.run(["bash", "-euc", try_out], timeout=120, check=False, **more)
    finally:
        serving.terminate()
        assert serving.wait(timeout=30) == 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'applied:\n  envs:\n    HOOK_GPU_ENV: "on"\n' in done.stdout
    assert "14 passed, 0 failed, 1 skipped" in done.stdout
    assert "1000 calls of PreCreateCon" in done.stdout
    assert not (folder / "gpu_env.sock").exists()
