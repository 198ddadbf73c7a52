"""The command line: ``runtimeproxy COMMAND`` and ``koord-runtime-proxy``, which is ``runtimeproxy run``.

Invariants: exit code 2 means that the command line, the environment or the file was wrong and nothing was opened;
1 means that running failed, or that a check found something; 3 that no proxy answers; no traceback reaches the user.
"""

import io
import os
import sys
from contextlib import suppress

import click

from runtimeproxy.cli.commands.run import run_command
from runtimeproxy.cli.commands.table import PROGRAM, command_group
from runtimeproxy.cli.shared.admin_client import NoProxy
from runtimeproxy.cli.shared.output import FAILED, INTERRUPTED, NO_PROXY, WRONG_USE, error_text


def main() -> int:
    return _guarded(command_group(), PROGRAM)


def koord_runtime_proxy() -> int:
    return _guarded(run_command(), "koord-runtime-proxy")


def _guarded(command: click.Command, name: str) -> int:
    """Run the command and return its exit code; an exception becomes one line on stderr."""
    _fill_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in some locales names cannot be written as they are
    about = "Show the versions and exit."
    command.params.append(
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help=about)
    )
    try:
        return int(command.main(prog_name=name, standalone_mode=False) or 0)
    except click.UsageError as error:
        command_path = error.ctx.command_path if error.ctx else name
        return _fail(name, f"{error.format_message()} ({command_path} --help lists what there is)", WRONG_USE)
    except click.ClickException as error:
        return _fail(name, error.format_message(), WRONG_USE)
    except NoProxy as error:
        return _fail(name, str(error), NO_PROXY)
    except click.Abort:
        return _fail(name, "interrupted", INTERRUPTED)
    except Exception as error:
        return _fail(name, error_text(error), FAILED)


def _show_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from runtimeproxy.settings.version import version_text  # slow to import, and no other command needs it

        click.echo(version_text(context.find_root().info_name or PROGRAM))
        context.exit()


def _fill_standard_files() -> None:
    """Open /dev/null for each of the file descriptors 0 to 2 that is closed: a later open would get its number. If the
    event loop's epoll descriptor were number 0, closing the loop would end the process by SIGABRT."""
    with suppress(OSError):  # no /dev/null: nothing can be done about it here
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(opened)


def _drop_unwritten_output() -> None:
    """Redirect standard output to /dev/null if it accepts no more: else Python writes an error of its own at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(name: str, text: str, code: int) -> int:
    _drop_unwritten_output()
    print(f"{name}: error: {' '.join(text.split())}", file=sys.stderr)
    return code
