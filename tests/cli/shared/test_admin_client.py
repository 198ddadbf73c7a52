"""Where the proxy's admin socket is, and the answers that no command of the tables gets."""

import queue
import signal
import threading
from pathlib import Path

import pytest
from click import ClickException

from runtimeproxy.admin.protocol import PART_BYTES, Refused
from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, socket_path
from runtimeproxy.errors import ConfigError
from tests.cli.conftest import Run
from tests.fakes.canned_admin import Fault, Handler, hang_after_a_part, hang_before_the_answer, serving

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


def test_refusal_of_an_unread_request_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "handle", lambda handler: handler.error(Refused(400, "too much")))
    with serving(tmp_path / "a", {}), pytest.raises(ClickException, match="too much"):
        AdminClient(str(tmp_path / "a"), 20.0).call("loglevel", level="n" * (1 << 22))


UNREAD = [
    *[b"[]\n", b"{}\n", b"\x00\n", b"[" * 100_000 + b"\n", b'{"error":"no"}\n', b'{"end":{"schemaVersion":2}}\n'],
    b"n" * (PART_BYTES + 65536),
]


def send(octets: bytes) -> Fault:
    def fault(handler: Handler) -> None:
        handler.wfile.write(octets)

    return fault


@pytest.mark.parametrize("octets", UNREAD, ids=lambda octets: octets[:30])
@pytest.mark.parametrize("after", [b"", b'{"part":{}}\n'], ids=["first", "second"])
def test_answer_of_another_form_cannot_be_read(tmp_path: Path, octets: bytes, after: bytes) -> None:
    with serving(tmp_path / "a", {}, send(after + octets)):
        with pytest.raises(NoProxy, match="the answer cannot be read"):
            AdminClient(str(tmp_path / "a")).call("hooks")
        with pytest.raises(NoProxy, match="the answer cannot be read"):
            list(AdminClient(str(tmp_path / "a")).follow())


@pytest.mark.parametrize("octets", [b'{"part":{"events":[{"a":1}]}}\n{"b"', b'{"part":{"events":[{"a":1}]}}\n'])
def test_following_ends_with_the_proxy(tmp_path: Path, octets: bytes) -> None:
    with serving(tmp_path / "a", {}, send(octets)):
        assert list(AdminClient(str(tmp_path / "a")).follow()) == [{"a": 1}]


def test_following_ends_with_the_answer(tmp_path: Path) -> None:
    def end_and_wait(handler: Handler) -> None:
        handler.part(events=[{"a": 1}])
        handler.end()
        handler.server.over.wait()

    with serving(tmp_path / "a", {}, end_and_wait):
        assert list(AdminClient(str(tmp_path / "a")).follow()) == [{"a": 1}]


def drip(handler: Handler) -> None:
    """Send a line that never ends, some bytes at a time."""
    handler.wfile.write(b"x")
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b"x")


LIMITS = [(drip, "hangs within its answer", 1.0), (hang_after_a_part, "hangs within its answer", 1.0)]
LIMITS += [(hang_before_the_answer, "does not answer", 0.2)]
"""With the seconds to wait; a line must begin on a busy machine too."""


@pytest.mark.parametrize(("fault", "words", "seconds"), LIMITS)
def test_time_limit_is_for_all_requests_together(tmp_path: Path, fault: Fault, words: str, seconds: float) -> None:
    with serving(tmp_path / "a", {}, fault):
        proxy = AdminClient(str(tmp_path / "a"), seconds)
        for found in (words, "takes no connection"):
            with pytest.raises(NoProxy, match=found):
                proxy.call("hooks")
        with pytest.raises(NoProxy, match=words):
            proxy.again().call("hooks")
        if fault is not hang_after_a_part:  # there a follower waits for events
            with pytest.raises(NoProxy, match=words):
                list(proxy.again().follow())


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
