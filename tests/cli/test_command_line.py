"""The command line as a user meets it: in a process of its own, but for the tables of wrong ones."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runtimeproxy import app, cli
from runtimeproxy.cli.run import configuration
from runtimeproxy.errors import ConfigError
from runtimeproxy.options import OPTIONS
from runtimeproxy.version import VERSION

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "runtimeproxy", "run")
KOORD = ("-c", "import sys; from runtimeproxy.cli import koord_runtime_proxy; sys.exit(koord_runtime_proxy())")
HEAVY = ("grpc", "aiohttp", "uvloop", "google.protobuf", "yaml", "asyncio", "hpack", "runtimeproxy.app")

FAKE_APP = """
import logging, sys, types
from runtimeproxy.errors import BackendError, ConfigError

def run(config):
    {body}

app = types.ModuleType("runtimeproxy.app")
app.run = run
sys.modules["runtimeproxy.app"] = app
from runtimeproxy.cli import {entry}
sys.exit({entry}())
"""


def call(*arguments: str, environ: dict[str, str] | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python with ``arguments`` in an environment that holds nothing of ours but ``environ``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNTIMEPROXY_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def with_app(
    body: str, *arguments: str, entry: str = "koord_runtime_proxy", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an entry point with an application that does ``body`` in the place of the real one."""
    return call("-c", FAKE_APP.format(body=body, entry=entry), *arguments, environ=environ)


@pytest.mark.parametrize("program", [MODULE, KOORD], ids=["runtimeproxy run", "koord-runtime-proxy"])
def test_help_shows_every_flag_with_its_default(program: tuple[str, ...]) -> None:
    done = call(*program, "--help", environ={"COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    words = "".join(done.stdout.split())  # click breaks lines inside words with a hyphen
    for option in OPTIONS:
        assert f"\n  {option.flag} {option.metavar}" in done.stdout
        assert "".join(f"{option.help}[default:{option.shown_default}]".split()) in words
    assert "RUNTIMEPROXY_" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("-m", "runtimeproxy", "--version"), f"runtimeproxy {VERSION}\n"),
        ((*KOORD, "--version"), f"koord-runtime-proxy {VERSION}\n"),
    ],
)
def test_version(arguments: tuple[str, ...], out: str) -> None:
    done = call(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")


def test_runtimeproxy_lists_its_commands() -> None:
    done = call("-m", "runtimeproxy", "--help")
    assert done.returncode == 0
    assert re.search(r"\n  run +Run the proxy\.\n", done.stdout)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['runtimeproxy', *{arguments}]; from runtimeproxy.cli import main; code = main();"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules], 'code:', code)"
    )
    done = call("-c", code)
    assert done.stdout.splitlines()[-1] == "heavy: [] code: 0"


WRONG = [
    (["--hook-timout=1s"], "No such option"),
    (["--hook-timeout"], "Option '--hook-timeout' requires an argument."),
    (["extra"], "Got unexpected extra argument (extra)"),
    (
        ["--backend-runtime-mode=cri-o"],
        "--backend-runtime-mode: 'cri-o' is no backend mode: write Containerd or Docker",
    ),
    (["--hook-timeout=soon"], "--hook-timeout: 'soon' is no duration"),
    (["--socket-mode=rw"], "--socket-mode: 'rw' is no file mode"),
    (["--remote-runtime-service-endpoint=tcp://1.2.3.4:5"], "--remote-runtime-service-endpoint: 'tcp://1.2.3.4:5' is"),
    (["--log-level=loud"], "--log-level: 'loud' is not one of"),
    (["--socket-group=no-such"], "--socket-group: there is no group 'no-such'; name another one or its number, or"),
    (["--socket-group=4294967295"], "--socket-group: '4294967295' is no group's number: the highest is 4294967294"),
    (["--config=/nowhere/x.yaml"], "/nowhere/x.yaml: the configuration file can not be read: No such file"),
    (["--config=/"], "/: the configuration file can not be read: Is a directory"),
]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The entry points in this process: an environment that holds nothing of ours, an application that must not run."""
    for name in [name for name in os.environ if name.startswith("RUNTIMEPROXY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(app, "run", lambda config: pytest.fail("it must not run"))
    return monkeypatch


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    bare: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    bare.setattr(sys, "argv", ["koord-runtime-proxy", *arguments])
    assert cli.koord_runtime_proxy() == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"koord-runtime-proxy: error: {words}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing command. (runtimeproxy --help lists what there is)"),
        (["walk"], "No such command 'walk'. (runtimeproxy --help lists what there is)"),
        (
            ["run", "--hook-timeout"],
            "Option '--hook-timeout' requires an argument. (runtimeproxy run --help lists what there is)",
        ),
        (["run", "extra"], "Got unexpected extra argument (extra) (runtimeproxy run --help lists what there is)"),
    ],
)
def test_a_wrong_command_of_runtimeproxy_is_one_line_and_exit_code_2(
    bare: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    bare.setattr(sys, "argv", ["runtimeproxy", *arguments])
    assert cli.main() == 2
    assert capfd.readouterr() == ("", f"runtimeproxy: error: {words}\n")


def test_a_wrong_variable_is_named() -> None:
    done = with_app("return 0", environ={"RUNTIMEPROXY_HOOK_BUDGET": "x"})
    assert done.returncode == 2
    assert done.stderr.startswith("koord-runtime-proxy: error: RUNTIMEPROXY_HOOK_BUDGET: 'x' is no duration")


def test_the_application_gets_the_configuration_and_gives_the_exit_code() -> None:
    body = "print(config.runtime_endpoint, config.image_endpoint, config.hook_budget_seconds); return 7"
    done = with_app(
        body,
        "--remote-runtime-service-endpoint=unix:///r",
        "--remote-image-service-endpoint",
        "/i",
        environ={"RUNTIMEPROXY_HOOK_BUDGET": "3s"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "/r /i 3.0\n", "")


def test_runtimeproxy_run_is_the_same_command() -> None:
    done = with_app("print(config.runtime_endpoint); return 0", "run", "--hook-timeout=1s", entry="main")
    assert (done.returncode, done.stdout) == (0, "/var/run/containerd/containerd.sock\n")


def test_warnings_of_the_configuration_are_logged_each() -> None:
    done = with_app("return 0", environ={"RUNTIMEPROXY_A": "canary", "RUNTIMEPROXY_B": "canary"})
    assert done.returncode == 0
    assert [line.partition(": ")[2].split()[0] for line in done.stderr.splitlines()] == [
        "RUNTIMEPROXY_A",
        "RUNTIMEPROXY_B",
    ]
    assert "canary" not in done.stderr


def test_the_log_is_set_up_as_the_flags_say() -> None:
    body = "logging.getLogger('runtimeproxy.x').debug('here %d', 1); return 0"
    done = with_app(body, "--log-level=debug", "--log-format=json")
    assert '"level": "debug", "logger": "runtimeproxy.x", "message": "here 1"' in done.stderr
    assert with_app(body).stderr == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("ConfigError('/run/x.sock: pid 7 listens there')", "/run/x.sock: pid 7 listens there"),
        ("BackendError('two\\nlines')", "two lines"),
        ("PermissionError(13, 'Permission denied', '/run/x')", "[Errno 13] Permission denied: '/run/x'"),
    ],
)
def test_what_fails_while_running_is_one_line_and_exit_code_1(error: str, line: str) -> None:
    done = with_app(f"raise {error}")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"koord-runtime-proxy: error: {line}\n")


@pytest.mark.parametrize(
    ("entry", "arguments", "name"),
    [("koord_runtime_proxy", (), "koord-runtime-proxy"), ("main", ("run",), "runtimeproxy")],
)
def test_a_surprise_is_one_line_without_values_and_exit_code_1(
    entry: str, arguments: tuple[str, ...], name: str
) -> None:
    done = with_app("raise ValueError('canary')", *arguments, entry=entry)
    assert done.returncode == 1
    line = rf"{name}: error: unexpected ValueError at <string>:\d+; --log-level=debug shows how it .*\n"
    assert re.fullmatch(line, done.stderr)
    assert "canary" not in done.stderr


def test_a_surprise_in_a_command_without_a_log_does_not_lead_to_one(
    bare: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bare.setattr(sys, "argv", ["runtimeproxy", "hook"])
    bare.setattr(click.Group, "invoke", lambda self, ctx: 1 / 0)
    assert cli.main() == 1
    assert re.fullmatch(r"runtimeproxy: error: unexpected ZeroDivisionError at .*:\d+\n", capfd.readouterr().err)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("ConfigError('/run/x.sock: pid 7 listens there')", r"/run/x\.sock: pid 7 listens there"),
        ("ValueError('canary')", r"unexpected ValueError at <string>:\d+; --log-level=debug shows how it came there"),
    ],
)
def test_with_a_json_log_what_fails_while_running_is_a_line_of_it(error: str, line: str) -> None:
    done = with_app(f"raise {error}", "--log-format=json")
    record = json.loads(done.stderr)
    assert (done.returncode, record["level"], record["logger"]) == (1, "error", "runtimeproxy.cli.run")
    assert re.fullmatch(line, record["message"])


@pytest.mark.parametrize("closed", [{0}, {1}, {2}, {0, 1, 2}], ids=str)
def test_closed_standard_files_are_open_when_the_program_runs(tmp_path: Path, closed: set[int]) -> None:
    body = (
        f"import os; open({str(tmp_path / 'seen')!r}, 'w').write("
        "' '.join(os.readlink(f'/proc/self/fd/{fd}') for fd in range(3))); return 0"
    )
    code = FAKE_APP.format(body=body, entry="koord_runtime_proxy")
    given = os.open(tmp_path / "given", os.O_RDWR | os.O_CREAT)
    try:
        shell = " ".join(f"{fd}>&-" if fd in closed else f"{fd}<&{given}" for fd in range(3))
        command = ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-c", code]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environ, pass_fds=[given], timeout=60, check=False)
    finally:
        os.close(given)
    seen = (tmp_path / "seen").read_text().split()
    assert done.returncode == 0
    assert seen == ["/dev/null" if fd in closed else str(tmp_path / "given") for fd in range(3)]


def test_at_debug_level_a_surprise_leaves_its_traceback_in_the_log() -> None:
    done = with_app("raise ValueError('canary')", "--log-level=debug")
    assert done.returncode == 1
    assert "DEBUG runtimeproxy.cli.run: Running failed: ValueError at <string>:" in done.stderr
    assert "canary" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("koord-runtime-proxy: error: unexpected ValueError")


def test_an_interrupt_is_no_traceback() -> None:
    done = with_app("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr.strip()) == (130, "koord-runtime-proxy: error: interrupted")


def test_the_default_file_is_read_if_it_is_there(tmp_path: Path) -> None:
    default = tmp_path / "config.yaml"
    assert configuration({}, {}, str(default)).hook_timeout_seconds == 2
    assert configuration({}, {}, str(default / "below-a-file-or-nothing")).hook_timeout_seconds == 2
    default.write_text("hook-timeout: 5s\n")
    assert configuration({}, {}, str(default)).hook_timeout_seconds == 5
    assert configuration({}, {}, str(default / "below-a-file")).hook_timeout_seconds == 2


def test_a_default_file_that_is_a_link_to_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"/config\.yaml: the configuration file can not be read: No such file"):
        configuration({}, {}, str(tmp_path / "config.yaml"))


def test_a_named_file_stands_in_the_default_files_place(tmp_path: Path) -> None:
    default, named = tmp_path / "default.yaml", tmp_path / "named.yaml"
    default.write_text("hook-timeout: 5s\nlog-level: debug\n")
    named.write_text("hook-timeout: 6s\n")
    loaded = configuration({}, {"RUNTIMEPROXY_CONFIG": str(named)}, str(default))
    assert (loaded.hook_timeout_seconds, loaded.log_level) == (6, "info")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\xff", "the configuration file can not be read: it is no UTF-8 text"), (b"hook-timeot: 1", "unknown key")],
)
def test_a_file_that_is_there_must_be_right_even_if_nobody_named_it(tmp_path: Path, content: bytes, words: str) -> None:
    default = tmp_path / "config.yaml"
    default.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        configuration({}, {}, str(default))
    assert str(caught.value).startswith(f"{default}: {words}")


def test_a_runtime_that_would_be_the_proxy_itself_is_refused_however_it_is_spelt(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    flags = {"koord-runtimeproxy-endpoint": f"{tmp_path}/a", "remote-runtime-service-endpoint": f"{tmp_path}/link//a"}
    with pytest.raises(ConfigError, match="--koord-runtimeproxy-endpoint and --remote-runtime-service-endpoint are"):
        configuration(flags, {}, str(tmp_path / "none"))
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="--koord-runtimeproxy-endpoint and --remote-runtime-service-endpoint are"):
        configuration(flags, {}, str(tmp_path / "config.yaml"))


def test_nothing_is_made_on_disk_by_a_wrong_command_line(tmp_path: Path) -> None:
    socket = tmp_path / "made" / "proxy.sock"
    done = call(*KOORD, f"--koord-runtimeproxy-endpoint={socket}", "--hook-timeout=x", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []
