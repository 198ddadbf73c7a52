"""Where the proxy's admin socket is, and the questions that no command of the tables asks."""

import queue
import signal
import threading
from pathlib import Path

import pytest
from click import ClickException

from runtimeproxy.cli.shared.admin_client import AdminClient, NoProxy, socket_path
from runtimeproxy.errors import ConfigError
from tests.cli.conftest import Run
from tests.fakes.canned_admin import Fault, Handler, hang_before_the_head, serving

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


def test_proxy_without_an_admin_endpoint_is_none_to_ask() -> None:
    with pytest.raises(NoProxy, match="the proxy has no admin endpoint: --admin-endpoint is none"):
        AdminClient(None).get("/hooks")


def test_text_is_as_it_came(tmp_path: Path) -> None:
    with serving(tmp_path / "a", {"/metrics": "a 1\nb 2\n"}):
        assert AdminClient(str(tmp_path / "a")).text("/metrics") == "a 1\nb 2\n"


def test_refusal_that_does_not_wait_for_the_body_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: Handler) -> None:
        handler.close_connection = True
        handler.send(400, "application/json", '{"error": "too much"}')

    monkeypatch.setattr(Handler, "do_POST", refuse)
    with serving(tmp_path / "a", {}), pytest.raises(ClickException, match="too much"):
        AdminClient(str(tmp_path / "a")).post("/loglevel", {"level": "n" * (1 << 22)})


UNREAD = ["[]", '{"schemaVersion": 2}', "{}", "[" * 100_000, "\x00"]


@pytest.mark.parametrize("text", UNREAD)
def test_answer_of_another_form_cannot_be_read(tmp_path: Path, text: str) -> None:
    def answer(handler: Handler) -> None:
        handler.send(200, "application/json", text)

    with serving(tmp_path / "a", {}, answer), pytest.raises(NoProxy, match="the answer cannot be read"):
        AdminClient(str(tmp_path / "a")).get("/hooks")


LINES = ["5\n", "nonsense\n", "[]\n"]


@pytest.mark.parametrize("text", LINES)
def test_line_that_is_no_event_cannot_be_read(tmp_path: Path, text: str) -> None:
    with serving(tmp_path / "a", {"/events": text}), pytest.raises(NoProxy, match="the answer cannot be read"):
        list(AdminClient(str(tmp_path / "a")).lines("/events", {}))


@pytest.mark.parametrize("text", ['{"a": 1}\n{"b"', '{"a": 1}'])
def test_lines_that_were_cut_are_told(tmp_path: Path, text: str) -> None:
    with (
        serving(tmp_path / "a", {"/events": text}),
        pytest.raises(NoProxy, match="the proxy broke off within its answer"),
    ):
        list(AdminClient(str(tmp_path / "a")).lines("/events", {}))


def drip(handler: Handler) -> None:
    """Send a head that never ends, some bytes at a time."""
    server = handler.server
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not server.over.wait(0.02):
        handler.wfile.write(b"x")


@pytest.mark.parametrize("fault", [drip, hang_before_the_head])
def test_time_limit_is_for_all_questions_together(tmp_path: Path, fault: Fault) -> None:
    with serving(tmp_path / "a", {}, fault):
        proxy = AdminClient(str(tmp_path / "a"), seconds=0.2)
        for words in ("does not answer", "takes no connection"):
            with pytest.raises(NoProxy, match=words):
                proxy.get("/hooks")
        with pytest.raises(NoProxy, match="does not answer"):
            proxy.again().get("/hooks")


def test_interrupt_just_before_the_wait_ends_following(tmp_path: Path) -> None:
    """A signal that another thread takes interrupts no wait of the main thread, like one just before the wait."""
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def interrupt(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        handler.server.over.wait(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.put(handler.server.over.wait(10))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with serving(tmp_path / "a", {}, interrupt), pytest.raises(KeyboardInterrupt):
            list(AdminClient(str(tmp_path / "a")).lines("/events", {}, follow=True))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.get(timeout=20)  # the server's thread may be the later one
