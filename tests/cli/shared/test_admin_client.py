"""Where the proxy's admin socket is, and each way in which a proxy fails, hangs or is not available to a command."""

import errno
import gc
import queue
import shlex
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pytest
from click import ClickException

from runtimeproxy.admin.protocol import PART_BYTES, Refused
from runtimeproxy.cli.shared import admin_client
from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, socket_path
from runtimeproxy.errors import ConfigError
from tests.cli.admin_answers import CANNED
from tests.cli.conftest import Run
from tests.fakes.canned_admin import (
    A_PART,
    END,
    HALF_A_LINE,
    HANG,
    SPEAK_HTTP,
    Fault,
    Handler,
    not_accepting,
    not_listening,
    sending,
    serving,
)

FLAG, VARIABLE, FILE = {"admin-endpoint": "unix:///flag"}, {"RUNTIMEPROXY_ADMIN_ENDPOINT": "/variable"}, "/file"
PLACES: list[tuple[dict[str, str], dict[str, str], str, str]] = [
    (FLAG, VARIABLE, f"admin-endpoint: {FILE}", "/flag"),
    ({}, VARIABLE, f"admin-endpoint: {FILE}", "/variable"),
    ({}, {}, f"admin-endpoint: {FILE}", "/file"),
    ({}, {}, "", "/var/run/koord-runtimeproxy/admin.sock"),
    (FLAG, {"RUNTIMEPROXY_HOOK_BUDGET": "soon"}, "no-such-key: 1", "/flag"),
]


@pytest.mark.parametrize(("flags", "environ", "text", "path"), PLACES)
def test_socket_is_found_as_the_proxy_finds_it(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], text: str, path: str
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert socket_path({**flags, "config": str(tmp_path / "config.yaml")}, environ) == path


def test_broken_configuration_leads_to_the_flag(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("no-such-key: 1")
    code, out, err = run("runtimeproxy", "hook", "ls", f"--config={tmp_path}/config.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith("(with --admin-endpoint=SOCKET no configuration is read)\n")
    with pytest.raises(ConfigError, match="--admin-endpoint: 'x' is not a unix socket"):
        socket_path({"admin-endpoint": "x"}, {})


def test_proxy_without_an_admin_endpoint_is_not_queried() -> None:
    with pytest.raises(NoProxy, match="the proxy has no admin endpoint: --admin-endpoint is none"):
        AdminClient(None).call("hooks")


# -- a command's line ------------------------------------------------------------------------------------------------

COMMANDS = ["status", "hook trace", "hook trace -f", "hook disable rdt --reason=hangs --for=1h", "hook enable rdt"]
COMMANDS += ["events", "events -f", "store ls", "store get default/web-1", "explain default/web-1", "log-level debug"]
UNREADABLE = "the answer cannot be read: is it a proxy of this version? ({})"
BROKEN_OFF = "the proxy broke off within its answer: {}"
NOBODY = "start the proxy, or correct --admin-endpoint: nothing listens at {}"
Proxy = Callable[[Path], AbstractContextManager[object]]


def failing(fault: Fault) -> Proxy:
    return partial(serving, canned=CANNED, fault=fault)


def refusing(status: int) -> Proxy:
    return failing(lambda handler: handler.error(Refused(status, "so it is")))


SITUATIONS: list[tuple[Proxy, str, int]] = [
    (failing(sending()), "the proxy broke off before its answer: {}", 3),
    (failing(sending(HALF_A_LINE)), BROKEN_OFF, 3),
    (failing(sending(A_PART)), BROKEN_OFF, 3),
    (failing(SPEAK_HTTP), UNREADABLE, 3),
    (failing(sending(b"{not json}\n")), UNREADABLE, 3),
    (nullcontext, NOBODY, 3),
    (not_listening, NOBODY, 3),
    (not_accepting, "the proxy takes no connection (waited 0.05 s): {}", 3),
    *((refusing(status), "so it is", code) for status, code in ((400, 2), (403, 1), (409, 1), (500, 1), (503, 3))),
]
CASES = [("hook ls", *situation) for situation in SITUATIONS]
CASES += [(command, failing(sending(A_PART)), BROKEN_OFF, 3) for command in COMMANDS]
CASES += [(command, refusing(404), "so it is", 1) for command in COMMANDS if command != "status"]


@pytest.mark.parametrize(("command", "proxy", "words", "code"), CASES)
def test_proxy_that_fails_is_one_line(
    run: Run, tmp_path: Path, command: str, proxy: Proxy, words: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of status is on stdout, and may be cut."""
    path = tmp_path / "a"
    if "waited" in words:
        monkeypatch.setattr(admin_client, "SECONDS", 0.05)
    with proxy(path):
        found, out, err = run("runtimeproxy", *shlex.split(command), f"--admin-endpoint={path}")
    line, other = (out, err) if command == "status" else (err, out)
    assert (found, line.count("\n"), other) == (code, 1, "")
    shown = line.strip().removeprefix("runtimeproxy: error: ").removeprefix("no answer: ").removesuffix("...")
    assert words.format(path).startswith(shown)
    assert not [left for left in gc.get_objects() if type(left) is admin_client._Lines and left.sock.fileno() >= 0]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_no_rights_is_one_line(run: Run, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(self: socket.socket, address: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(socket.socket, "connect", connect)
    line = "runtimeproxy: error: run as root: permission denied: /a\n"
    assert run("runtimeproxy", "hook", "ls", "--admin-endpoint=/a") == (3, "", line)


# -- the client ------------------------------------------------------------------------------------------------------


def test_refusal_of_an_unread_request_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "handle", lambda handler: handler.error(Refused(400, "too much")))
    with serving(tmp_path / "a", {}), pytest.raises(ClickException, match="too much"):
        AdminClient(str(tmp_path / "a"), 20.0).call("loglevel", level="n" * (1 << 22))


@pytest.mark.parametrize("octets", [b"[]\n", b"[" * 100_000 + b"\n", b"n" * (PART_BYTES + 65536)])
@pytest.mark.parametrize("before", [b"", A_PART])
def test_answer_of_another_form_cannot_be_read(tmp_path: Path, before: bytes, octets: bytes) -> None:
    with serving(tmp_path / "a", {}, sending(before + octets)):
        with pytest.raises(NoProxy, match="the answer cannot be read"):
            AdminClient(str(tmp_path / "a")).call("hooks")
        with pytest.raises(NoProxy, match="the answer cannot be read"):
            list(AdminClient(str(tmp_path / "a")).follow())


EVENT = b'{"part":{"events":[{"a":1}]}}\n'


@pytest.mark.parametrize("answer", [sending(EVENT, b'{"b"'), sending(EVENT), sending(EVENT, END, hang=True)])
def test_following_ends_with_the_proxy_or_its_answer(tmp_path: Path, answer: Fault) -> None:
    with serving(tmp_path / "a", {}, answer):
        assert list(AdminClient(str(tmp_path / "a")).follow()) == [{"a": 1}]


def drip(handler: Handler) -> None:
    """Send a line that never ends, some bytes at a time."""
    handler.wfile.write(b"x")
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b"x")


LIMITS = [(drip, "hangs within its answer", 1.0, True), (HANG, "does not answer", 0.2, True)]
LIMITS += [(sending(A_PART, hang=True), "hangs within its answer", 1.0, False)]
"""With the seconds to wait (a line must begin on a busy machine too), and whether following has that limit."""


@pytest.mark.parametrize(("fault", "words", "seconds", "following"), LIMITS)
def test_time_limit_is_for_all_requests_together(
    tmp_path: Path, fault: Fault, words: str, seconds: float, following: bool
) -> None:
    with serving(tmp_path / "a", {}, fault):
        proxy = AdminClient(str(tmp_path / "a"), seconds)
        for found in (words, "takes no connection"):
            with pytest.raises(NoProxy, match=found):
                proxy.call("hooks")
        with pytest.raises(NoProxy, match=words):
            list(proxy.again().follow()) if following else proxy.again().call("hooks")


def test_interrupt_just_before_the_wait_ends_following(tmp_path: Path) -> None:
    """A signal that another thread takes interrupts no wait of the main thread, like one just before the wait."""
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def interrupt(handler: Handler) -> None:
        handler.part()
        handler.server.over.wait(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.put(handler.server.over.wait(10))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with serving(tmp_path / "a", {}, interrupt), pytest.raises(KeyboardInterrupt):
            list(AdminClient(str(tmp_path / "a")).follow())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.get(timeout=20)  # the server's thread may be the later one
