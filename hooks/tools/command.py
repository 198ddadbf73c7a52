"""The commands of ``runtimeproxy hook`` for authors of hook servers; none of them needs a running proxy.

Invariant: a mistake of the user is a click.ClickException; a hook server that refuses or fails is exit code 1.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.model.hookpoints import BY_NAME, HookPoint
from runtimeproxy.settings.config import parse_duration
from runtimeproxy.settings.options import SOCKET_FORMS

if TYPE_CHECKING:
    from runtimeproxy.model.fields import HookRequest

FAILED = 1
DEFAULT_POINT = "PreCreateContainer"

_COUNT = click.IntRange(min=1)
_ARGUMENTS = (
    f"SERVER is the hook server's socket ({SOCKET_FORMS}) or its registration file (*.json). "
    f"A POINT is one of {', '.join(BY_NAME)}, in any letter case. A DURATION is 500ms, 2s, 1m or a number of seconds."
)


class _Command(click.Command):
    """A command that turns ConfigError into a click.ClickException."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise click.ClickException(str(error)) from None


def _parse_hook_point(value: str) -> HookPoint:
    names = {name.lower(): name for name in BY_NAME}
    if value.lower() in names:
        return BY_NAME[names[value.lower()]]
    near = get_close_matches(value.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(BY_NAME)}"
    raise click.ClickException(f"POINT: {value!r} is not a hook point; {hint}")


def _request(path: str | None) -> "HookRequest":
    from runtimeproxy_hooks.tools import request

    return request.example() if path is None else request.read(path)


def _seconds(timeout: str | None, otherwise: float) -> float:
    return otherwise if timeout is None else parse_duration(timeout, "--timeout")


def _print_example(context: click.Context, parameter: click.Parameter, desired: bool) -> None:
    if desired:
        from runtimeproxy_hooks.tools import request

        click.echo(request.example_text(), nl=False)
        context.exit()


_server_argument = click.argument("server", metavar="SERVER")
_file_option = click.option(
    "-f",
    "--file",
    metavar="FILE",
    help="The request as YAML, - for standard input.  [default: an example, which `hook call --example` prints]",
)
_timeout_option = click.option(
    "--timeout", metavar="DURATION", help="How long to wait for an answer.  [default: the registration file's, or 2s]"
)
_example_option = click.option(
    "--example",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_example,
    help="Print a request to start from, and end.",
)


@click.command("call", cls=_Command, epilog=_ARGUMENTS, short_help="Call a hook server, show what its answer changes.")
@_server_argument
@click.argument("point", metavar="POINT", type=_parse_hook_point)
@_file_option
@_timeout_option
@_example_option
def call_command(server: str, point: HookPoint, file: str | None, timeout: str | None) -> None:
    """Call a hook server as the proxy does, and print what its answer changes.

    The output is YAML. "applied" is what the proxy would change, "without-effect" what cannot be changed at this hook
    point, "bad" the rules that the answer breaks, and "dropped" what is lost by that under the failure policy Ignore;
    under Fail the call would be refused. The exit code is 1 if the server refuses, fails or answers badly.
    """
    from runtimeproxy_hooks.tools import client as hook_client
    from runtimeproxy_hooks.tools import request

    hook_server = hook_client.find(server)
    given = request.at_hook_point(point, request.example()) if file is None else request.read(file)
    called = hook_client.call(hook_server, point, given, _seconds(timeout, hook_server.timeout_seconds))
    click.echo(called.text)
    if called.faults:
        raise RuntimeProxyError(f"{hook_server.endpoint}: {point.name}: bad answer: {called.faults[0]}")


@click.command("verify", cls=_Command, epilog=_ARGUMENTS, short_help="Check a hook server by the protocol's rules.")
@_server_argument
@click.option(
    "--point",
    "points",
    metavar="POINT",
    type=_parse_hook_point,
    multiple=True,
    help="A hook point that must be served; again for more.  [default: all that are served]",
)
@_file_option
@_timeout_option
@click.option("--restart-command", metavar="COMMAND", help="A shell command that restarts the server, to try that too.")
def verify_command(
    server: str, points: tuple[HookPoint, ...], file: str | None, timeout: str | None, restart_command: str | None
) -> int:
    """Check a hook server, in whatever language it is written, by the rules of the hook protocol.

    Prints a verdict on each rule; the exit code is 1 if one is broken. The server is called some hundred times about
    made-up pods, and connections to it are broken: do not try one that serves a node.
    """
    from runtimeproxy_hooks.tools import client as hook_client
    from runtimeproxy_hooks.tools.trials import TriedServer
    from runtimeproxy_hooks.tools.verify import verify

    hook_server = hook_client.find(server)
    seconds = _seconds(timeout, hook_server.timeout_seconds)
    passed = verify(TriedServer(hook_server.endpoint, _request(file), points, seconds, restart_command), click.echo)
    return 0 if passed else FAILED


@click.command("bench", cls=_Command, epilog=_ARGUMENTS, short_help="Measure how fast a hook server answers.")
@_server_argument
@click.option(
    "--point",
    metavar="POINT",
    type=_parse_hook_point,
    default=DEFAULT_POINT,
    help=f"The hook point to call.  [default: {DEFAULT_POINT}]",
)
@click.option(
    "-n", "--calls", metavar="NUMBER", type=_COUNT, default=1000, help="How many calls to make.  [default: 1000]"
)
@click.option(
    "--concurrency",
    metavar="NUMBER",
    type=_COUNT,
    default=1,
    help="How many at a time, on one connection as the proxy's are.  [default: 1]",
)
@_file_option
@_timeout_option
def bench_command(
    server: str, point: HookPoint, calls: int, concurrency: int, file: str | None, timeout: str | None
) -> int:
    """Measure how fast a hook server answers, after up to 100 calls to warm it up.

    The exit code is 1 if a call failed.
    """
    from runtimeproxy_hooks.tools import client as hook_client
    from runtimeproxy_hooks.tools import request

    hook_server = hook_client.find(server)
    body = request.encoded(point, _request(file))
    seconds = _seconds(timeout, hook_server.timeout_seconds)
    figures = hook_client.bench(hook_server, point, body, calls=calls, concurrency=concurrency, timeout_seconds=seconds)
    click.echo(f"{calls} calls of {point.name} at {hook_server.endpoint}, {concurrency} at a time")
    click.echo("\n".join(figures.lines))
    return FAILED if figures.failures else 0


@click.command("new", cls=_Command, short_help="Write a hook server to start from.")
@click.argument("name", metavar="NAME")
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where the folder is made.  [default: here]",
)
def new_command(name: str, directory: Path) -> None:
    """Write the folder NAME with a hook server of ten lines, its test, a systemd unit and its registration file."""
    from runtimeproxy_hooks.tools.new import new

    folder = new(name, directory)
    click.echo(f"{folder}: README.rst explains how to test, try and install it")
