"""The docker CLI behaves the same through the proxy as on dockerd's own socket (promise 20).

So do streams: every byte, also after silence (promise 12, fault matrix S6). ``between`` is the proxy's socket. Exit
codes and output must be equal; values that dockerd generates each time are masked. The proxy parses requests like
dockerd, or refuses them by a listed rule (fault matrix X2, X3).
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.docker.exchange import Action, Route, find_route
from runtimeproxy.wire.http1 import Rule
from tests.amounts import EXECS_OF_THE_CLI, IDLE_SECONDS, STREAM_BYTES, examples
from tests.docker.followed import PROXY_PREFIX, answers, check_refused, follow, mutations
from tests.docker.forms import FORMS, HIDDEN, TARGETS, Form, stream
from tests.docker.test_exchange_routes import HELD, ID, PASSING
from tests.docs import DOCS
from tests.engines import docker_cli
from tests.engines.docker_cli import Outcome, masked
from tests.engines.dockerd import BUSYBOX, Dockerd
from tests.system.proxy import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MEGABYTE = bytes(range(256)) * 4096
LONG = MEGABYTE * 32
"""Not an archive, and longer than dockerd reads before it refuses it."""
ANSWER = "echo ready; read line; echo got $line"
DOCKERFILE = f"FROM {BUSYBOX}\nCOPY file /copied\nRUN cat /copied > /built; echo from the build\nCMD wc -c /built\n"
# dockerd copies each output separately: lines of both are in order only if time passes between them. The script ends
# late, because a client that follows a log may miss a last line right before the end.
CHATTER = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.3; done; sleep 1"
RUN, CREATED = ["run", "--name", "box"], [BUSYBOX, "sh", "-c"]
Step = tuple[Sequence[str], int, str, Mapping[str, Any]]
"""The words of a docker command, its exit code, a part of its masked output, and how it is run."""
SLEEPING: Step = ([*RUN, "-d", *CREATED, "exec sleep 1000"], 0, "", {})
SCENARIOS: dict[str, Sequence[Step]] = {
    "run -it": [([*RUN, "-it", *CREATED, f"{ANSWER}; exit 3"], 3, "got a word", {"typed": (b"ready", b"a word\n")})],
    "attach, to the end of stdin": [
        # Created with -i and without -d, so that the end of stdin does not end the output too.
        (["create", "-i", "--name", "box", *CREATED, "wc -c; echo ended; exit 5"], 0, "", {}),
        (["start", "box"], 0, "", {}),
        (["attach", "box"], 5, "1048576\nended", {"stdin": MEGABYTE}),
    ],
    "exec": [
        SLEEPING,
        (["exec", "box", "sh", "-c", "echo out; echo err >&2; exit 9"], 9, "err\n", {"stdin": b"unread"}),
        (["exec", "-i", "box", "sh", "-c", "wc -c; echo ended"], 0, "1048576\nended", {"stdin": MEGABYTE}),
        (["exec", "-i", "box", "sh", "-c", "wc -c; echo ended"], 0, "0\nended", {}),
        (["exec", "-it", "box", "sh", "-c", ANSWER], 0, "got a word", {"typed": (b"ready", b"a word\n")}),
    ],
    "cp and logs": [
        ([*RUN, "-d", *CREATED, CHATTER], 0, "", {}),
        (["cp", "{folder}/file", "box:/tmp/in"], 0, "", {}),
        (["cp", "box:/tmp/in", "-"], 0, "", {}),
        (["logs", "-f", "-t", "box"], 0, "<time> err 3", {}),
    ],
    "build with BuildKit": [
        (["build", "--network", "none", "-q", "-t", "built:1", "{folder}"], 0, "", {"buildkit": True}),
        (["run", "--rm", "built:1"], 0, "1048576 /built", {}),
    ],
    "refused while stdin is sent": [
        (["load"], 1, "invalid tar header", {"stdin": LONG}),
        (["import", "--change", "BAD", "-", "imported:1"], 1, "not a valid change command", {"stdin": LONG}),
    ],
}


@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
def test_cli_command_has_same_effect(dockerd: Dockerd, between: str, tmp_path: Path, steps: Sequence[Step]) -> None:
    (tmp_path / "file").write_bytes(MEGABYTE)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    outcomes: dict[str, list[object]] = {dockerd.socket: [], between: []}
    for path, results in outcomes.items():
        with dockerd.restored():
            for words, exit_code, shows, more in steps:
                command = [word.replace("{folder}", str(tmp_path)) for word in words]
                outcome = docker_cli.run(path, *command, **more)
                shown = masked(outcome.stdout), masked(outcome.stderr)
                assert outcome.exit_code == exit_code, (command, outcome)
                assert shows in "".join(shown), (command, outcome)
                results.append(shown)
    assert outcomes[between] == outcomes[dockerd.socket]


@pytest.fixture
def box(dockerd: Dockerd) -> Iterator[str]:
    with dockerd.restored():
        assert docker_cli.run(dockerd.socket, *SLEEPING[0]).exit_code == 0
        yield "box"


@pytest.mark.usefixtures("box")
def test_stream_carries_every_byte_both_ways(between: str, tmp_path: Path) -> None:
    copy = 'head -c "$1" /dev/urandom | tee >(sha256sum >"$2"); wait'
    feed = ["bash", "-c", copy, "bash", str(STREAM_BYTES.now), str(tmp_path / "sent")]
    cat = docker_cli.command(between, tmp_path / "config", "exec", "-i", "box", "cat")
    with (
        subprocess.Popen(feed, stdout=subprocess.PIPE) as feeding,
        subprocess.Popen(cat, stdin=feeding.stdout, stdout=subprocess.PIPE) as copying,
    ):
        assert feeding.stdout is not None
        feeding.stdout.close()
        received = subprocess.run(["sha256sum"], stdin=copying.stdout, capture_output=True, check=True).stdout
    assert (feeding.returncode, copying.returncode) == (0, 0)
    assert received == (tmp_path / "sent").read_bytes()


def test_exec_output_is_complete(between: str, box: str) -> None:
    def call(number: int) -> Outcome:
        return docker_cli.run(between, "exec", box, "sh", "-c", "sleep 0.02; echo out; echo err >&2; exit 3")

    with ThreadPoolExecutor(2) as pool:
        assert {*pool.map(call, range(EXECS_OF_THE_CLI.now))} == {Outcome(3, b"out\n", b"err\n")}


def test_idle_stream_carries_next_byte_until_its_end(between: str, dockerd: Dockerd, box: str, tmp_path: Path) -> None:
    """Each direction of an exec. When its client is killed, its stdin ends."""
    cat: Any = docker_cli.command(between, tmp_path, "exec", "-i", box, "cat")
    with subprocess.Popen(cat, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as copying:
        assert copying.stdin is not None
        assert copying.stdout is not None
        for word in (b"one", b"two"):
            copying.stdin.write(word)
            assert copying.stdout.read(3) == word
            time.sleep(IDLE_SECONDS.now)
        assert dockerd.get(f"/containers/{box}/json")["ExecIDs"]
        copying.kill()
    wait_until(lambda: not dockerd.get(f"/containers/{box}/json")["ExecIDs"], "cat ends with its stdin")


PATIENCE_SECONDS = 20.0
FOUND_HIDDEN = b"No such container: hidden"


def fetch(path: str, data: bytes) -> bytes:
    arrived = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(path)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has answered, and reads no further
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # from a daemon that has not read everything
            while part := client.recv(65536):
                arrived += part
    return arrived


# ---- X2: the same message boundaries

REFUSED_UNREAD = b"\r\n\r\n400 Bad Request"
"""The end of the answer to a malformed request; dockerd's handlers answer in JSON."""


def compare(dockerd: Dockerd, between: str, data: bytes) -> None:
    direct, through = (answers(fetch(path, data)) for path in (dockerd.socket, between))
    read = follow(data)
    if read.rule is None:
        if through != direct and read.cut(data) and direct[-1].endswith(REFUSED_UNREAD):
            direct.pop()  # dockerd refuses the beginning of a head; the proxy ends the connection
        assert through == direct
        assert not any(PROXY_PREFIX in part for part in through)
    else:
        check_refused(read, direct, through)
    # The answer names the requested container; a changed name begins like the hidden one.
    hidden_targets = sum(target.startswith(HIDDEN.removesuffix("/json")) for target in read.targets)
    assert sum(FOUND_HIDDEN in part for part in through) <= hidden_targets


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name[:60])
def test_request_form_is_parsed_as_dockerd_or_refused(dockerd: Dockerd, between: str, form: Form, target: str) -> None:
    compare(dockerd, between, stream(form, target))


MILDER = """
    HEAD_BYTES FIELDS LINE_END TARGET VERSION FOLDED FIELD_NAME HOST EXPECT CONTENT_LENGTH CODING_OF_1_0
    TWO_FRAMINGS CHUNK_SIZE TRAILER
"""
READ_BY_DOCKERD = {Rule[name] for name in MILDER.split()}
"""The rules that dockerd 20.10 does not enforce; both refuse a breach of any other. Later ones enforce FIELD_NAME."""


def test_milder_rules_of_dockerd_are_listed(dockerd: Dockerd) -> None:
    """Each listed rule has a form that dockerd accepts."""
    streams = {stream(form, target) for form in FORMS for target in TARGETS}
    refused = [(rule, data) for data in streams if (rule := follow(data).rule) is not None]
    accepted = {rule for rule, data in refused if b"No such container: next" in fetch(dockerd.socket, data)}
    assert READ_BY_DOCKERD - {Rule.FIELD_NAME} <= accepted <= READ_BY_DOCKERD
    page = " ".join(DOCS["docker-mode"].split())
    assert [rule.text for rule in READ_BY_DOCKERD if f"- ``{rule.text}`` -" not in page] == []


@settings(max_examples=examples())
@given(mutations())
def test_mutated_request_form_is_parsed_as_dockerd(dockerd: Dockerd, between: str, data: bytes) -> None:
    compare(dockerd, between, data)


# ---- X3: the same route


NO_JSON = b"this is no JSON"
HANDLERS = {
    # The handlers' answers to a body that is not JSON, and to {}: no two of them are the same.
    Action.CREATE: ("invalid character", "config cannot be empty"),
    Action.START: ("starting container with non-empty request body", "No such container: "),
    Action.STOP: ('strconv.Atoi: parsing "zz"', "No such container: "),
    Action.UPDATE: ("invalid character", "No such container: "),
}
_VERSION = re.compile("client version ([0-9.]+) is too (?:new|old)")


def decided(dockerd: Dockerd, method: str, target: str) -> Route | str | None:
    """Return dockerd's decision on a method and a target, as its error texts show it.

    It is a version if the router found the handler, and that version is refused before it.
    """
    path, _, query = target.partition("?")
    probes = (f"{path}?t=zz&{query}", NO_JSON), (target, b"{}")
    first, second = (stated(dockerd, method, *probe).replace("Config cannot", "config cannot") for probe in probes)
    if refused := _VERSION.match(second):
        return refused[1]
    reference = second.partition("No such container: ")[2]
    if method == "DELETE":
        return Route(Action.REMOVE, reference) if reference else None
    for action, texts in HANDLERS.items():
        if texts[0] in first and texts[1] in second:
            return Route(action, reference)
    return None


def stated(dockerd: Dockerd, method: str, target: str, body: bytes) -> str:
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    arrived = fetch(dockerd.socket, f"{head}\r\n\r\n".encode("latin-1") + body).partition(b"\r\n\r\n")[2]
    return str(json.loads(arrived).get("message")) if arrived.startswith(b"{") else arrived.decode()


def agree(dockerd: Dockerd, method: str, target: str) -> None:
    decision, proxy_route = decided(dockerd, method, target), find_route(method, target)
    if isinstance(decision, str):
        assert decision in target
        decision = decided(dockerd, method, target.replace(decision, "1.41", 1))
    assert decision == (proxy_route and Route(proxy_route.action, proxy_route.reference))


UNSTATED = ("/containers/create?platform=x&na%6De=a%5Fb+c", "/containers/x/stop?%zz", f"/containers/{ID}/restart")
"""Rows of the tables that dockerd's texts do not distinguish."""
SKIPPED = {*UNSTATED, "/volumes/create"}  # the last one would be done
TABLE = [row[:2] for row in HELD + PASSING if row[0] in ("POST", "DELETE") and row[1] not in SKIPPED]
NAMES = ["name=a%20", "name=a+b", "name=%25&name=b", "na%6De=%C3%A9", "x&name=%FF", "name=%2Fa%2F", "Name=x&name=%2B"]
NAMES += ["name=\xc3\xa9\xff"]


def test_listed_route_is_matched_as_dockerd(dockerd: Dockerd) -> None:
    """dockerd's error contains the invalid name of a create."""
    for method, target in TABLE:
        agree(dockerd, method, target)
    for query in NAMES:
        target = f"/containers/create?{query}"
        proxy_route = find_route("POST", target)
        assert proxy_route is not None
        text = stated(dockerd, "POST", target, json.dumps({"Image": BUSYBOX}).encode())
        assert text.startswith(f"Invalid container name ({proxy_route.name}), ")


PREFIXES = (
    "  /v1.41 /v1.41 /v1.100 /v1. /v. /v1.41.1 /v01.41 /V1.41 /v1a /v /1.41 /v1.41/v1.41 /v1%2E41 /%761.41 / /. /x/.."
    " /x /v1.41%2F /v1.41%0a http://h HTTP://u@h:1/v1.41 unix: unix:// http: http:///v1.41 http://h? http://%2F h:1"
)
COLLECTIONS = "containers containers containers %63ontainers Containers container containers%2F"
REFERENCES = (
    f" {'f' * 64} x a.b a-b _ a/b a%2Fb a%2fb %2Fx x%2F .. . ... %2e%2e %2E %20 a+b %25 %2525 %c3%a9 %0a %0d %00 %ff"
    " a;b ~ @ :x * {x} a%zz % x#y x\\y start create stop create/start json containers/x v1.41 exec/y x/checkpoints \xe9"
    " \xc3\xa9 %c3\xa9 \x80/y x/a"
)
ENDS = (
    " start stop update create start stop update kill json START start/ start/. stop/.. start%2F sto%70 %73tart start&x"
    " start?x=1 update? stop?/../x start;x stop%0a start%3F start/x stop#x start%20 checkpoints/y update/%2e stop//"
    " ?start"
)
JOINS = "/ / / / / // %2F %2f /./ "
PARTS = (PREFIXES, "/", COLLECTIONS, JOINS, REFERENCES, JOINS, ENDS)
TARGETS_LIKE_HELD = st.tuples(*(st.sampled_from(words.split(" ")) for words in PARTS)).map("".join)


@settings(max_examples=examples())
@given(st.sampled_from(("POST", "POST", "POST", "DELETE")), TARGETS_LIKE_HELD)
def test_any_route_is_matched_as_dockerd(dockerd: Dockerd, method: str, target: str) -> None:
    agree(dockerd, method, target)
