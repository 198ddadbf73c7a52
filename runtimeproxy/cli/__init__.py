"""The command line: ``runtimeproxy COMMAND`` and ``koord-runtime-proxy``, which is ``runtimeproxy run``.

Owns the entry points, the exit codes and the one line that an error becomes.
Must not know: what a command does; each command is a file of its own and imports what is heavy when it runs.
Invariants: exit code 2 means that the command line, the environment or the file was wrong and nothing was opened;
1 means that running failed; no traceback reaches the user.
"""

import sys
import traceback

import click

from runtimeproxy.cli.hook import hook_group
from runtimeproxy.cli.run import run_command
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.version import VERSION

WRONG_USE = 2
FAILED = 1
INTERRUPTED = 130


def main() -> int:
    """Run ``runtimeproxy`` with the process's arguments and return its exit code."""
    group = click.Group(
        commands={"run": run_command(), "hook": hook_group()},
        help="A proxy between the kubelet and the container runtime that calls hook servers.",
        no_args_is_help=False,
    )
    return _guarded(group, "runtimeproxy")


def koord_runtime_proxy() -> int:
    """Run ``koord-runtime-proxy`` with the process's arguments and return its exit code."""
    return _guarded(run_command(), "koord-runtime-proxy")


def _guarded(command: click.Command, name: str) -> int:
    """Return the command's exit code; whatever it raises becomes one line on stderr."""
    click.version_option(VERSION, message="%(prog)s %(version)s")(command)
    try:
        return int(command.main(prog_name=name, standalone_mode=False) or 0)
    except click.UsageError as error:
        command_path = error.ctx.command_path if error.ctx else name
        return _fail(name, f"{error.format_message()} ({command_path} --help lists what there is)", WRONG_USE)
    except click.ClickException as error:
        return _fail(name, error.format_message(), WRONG_USE)
    except click.Abort:
        return _fail(name, "interrupted", INTERRUPTED)
    except (RuntimeProxyError, OSError) as error:
        return _fail(name, str(error), FAILED)
    except Exception as error:
        # The text of a foreign exception may quote a value, so only its class and its place are shown.
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}"
        return _fail(name, f"{what}; --log-level=debug shows how it came there", FAILED)


def _fail(name: str, text: str, code: int) -> int:
    print(f"{name}: error: {' '.join(text.split())}", file=sys.stderr)
    return code
