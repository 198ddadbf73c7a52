"""The flags of a hook server: what they give, and the one line for what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.config import parse_duration
from runtimeproxy.errors import ConfigError
from runtimeproxy_hooks.sdk.flags import parser


def test_defaults_hold_without_flags() -> None:
    assert vars(parser("gpu").parse_args([])) == {
        "endpoint": "/var/run/runtimeproxy-hooks/gpu.sock",
        "register_dir": "/etc/runtime/hookserver.d",
        "failure_policy": "Ignore",
        "unregister": False,
        "order": None,
        "timeout": None,
        "log_level": "info",
    }


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((f"--endpoint={scheme}/run/a.sock", "/run/a.sock") for scheme in ("", "unix:", "unix://")),
        *(("--register-dir=", ""), ("--register-dir=/a", "/a"), ("--failure-policy=Fail", "Fail")),
        *(("--order=0", 0), ("--order=07", 7), ("--order=99", 99), ("--unregister", True)),
        *((f"--timeout={text}", text) for text in ("500ms", "1.5s", "2")),
        ("--log-level=debug", "debug"),
    ],
)
def test_flag_gives_its_value(flag: str, value: object) -> None:
    name = flag.partition("=")[0].removeprefix("--").replace("-", "_")
    assert vars(parser("gpu").parse_args([flag]))[name] == value


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--endpoint=a.sock"], "--endpoint: 'a.sock' is no unix socket: write /path, unix:/path or "),
        (["--failure-policy=fail"], "argument --failure-policy: invalid choice: 'fail' (choose from "),
        *(
            ([f"--order={text}"], f"argument --order: '{text}' is no place: write a number from 0 to 99")
            for text in ("100", "-1", "\N{SUPERSCRIPT TWO}")
        ),
        (["--timeout=0s"], "--timeout: '0s' is no time limit: write one above zero, like 500ms, 2s or 1m"),
        (["--timeout=1h"], "--timeout: '1h' is no duration: write one like 500ms, 2s, 1m, or a number of seconds"),
        (["--log-level=trace"], "argument --log-level: invalid choice: 'trace' (choose from "),
        (["--log=debug"], "unrecognized arguments: --log=debug"),
        (["gpu"], "unrecognized arguments: gpu"),
        (["--order"], "argument --order: expected one argument"),
    ],
)
def test_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str], flags: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as exited:
        parser("gpu").parse_args(flags)
    assert exited.value.code == 2
    said, empty = capsys.readouterr().err.split("\n")
    assert not empty
    assert said.startswith(f"gpu: error: {line}")
    assert said.endswith("; --help lists the flags")


def test_help_names_every_flag_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parser("gpu").parse_args(["--help"])
    assert not exited.value.code
    said = " ".join(capsys.readouterr().out.split())
    flags = ("--endpoint SOCKET", "--register-dir FOLDER", "--order NUMBER", "--timeout TIME", "--unregister remove")
    for words in (*flags, "--log-level", "gpu.sock)", "hookserver.d); ", "(default Ignore)", "0 to 99", "default info"):
        assert words in said


_PARTS = st.sampled_from(["0", "1", "9", "000000000", "1234567890", ".", "ms", "s", "m", "h", "", "-", "1e3", "٣"])


# argparse takes "--" for the end of the flags, wherever it stands, before any type sees it.
@given(st.lists(_PARTS, max_size=5).map("".join).filter(lambda text: text != "--"))
def test_timeout_is_taken_just_when_the_proxy_reads_it(text: str) -> None:
    try:
        parse_duration(text, "")
        read = True
    except ConfigError:
        read = False
    try:
        parser("gpu").parse_args([f"--timeout={text}"])
        taken = True
    except SystemExit:
        taken = False
    assert taken == read
