"""The flags of a hook server, and the rules of their values.

Invariant: an error is one line that names the flag and what to write.
"""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import MAX_PATH_BYTES
from runtimeproxy.settings.options import LOG_LEVELS, parse_duration, parse_endpoint

from .registering import FAIL, IGNORE, LAST_ORDER, ORDER_FLAG, POLICIES, UNREGISTER_FLAG
from .registering import FLAG as REGISTER_FLAG
from .socket_path import FLAG as ENDPOINT_FLAG

SOCKETS = "/var/run/runtimeproxy-hooks"
_SOCKET = f"{SOCKETS}/{{}}.sock"
_LONGEST_NAME = MAX_PATH_BYTES - len(_SOCKET.format(""))
REGISTRATIONS = "/etc/runtime/hookserver.d"
TIMEOUT_FLAG = "--timeout"
USE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """Reports an error in a command line on one line, and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        self.refuse(f"{message}; --help lists the flags")

    def refuse(self, message: str) -> NoReturn:
        """Exit for any other error in the command line or the call of ``main``."""
        self.exit(USE_ERROR, f"{self.prog}: error: {' '.join(message.split())}\n")


def server_name(hooks: Sequence[str]) -> str:
    """Return the name of a server with several hooks: their names joined by "-". Each is cut to its share if the
    socket's default path would be too long."""
    joined = "-".join(hooks)
    if len(joined) <= _LONGEST_NAME:
        return joined
    share = (_LONGEST_NAME + 1) // len(hooks) - 1
    return "-".join(hook[:share] for hook in hooks)


def parser(name: str) -> Parser:
    made = Parser(prog=name, description=f"The hook server {name} of a runtimeproxy.", allow_abbrev=False)
    made.add_argument(
        ENDPOINT_FLAG,
        type=_endpoint,
        default=_SOCKET.format(name),
        metavar="SOCKET",
        help="unix socket to listen on (default %(default)s)",
    )
    made.add_argument(
        REGISTER_FLAG,
        default=REGISTRATIONS,
        metavar="FOLDER",
        help='directory that the proxy watches (default %(default)s); "" to register nowhere',
    )
    made.add_argument(
        "--failure-policy",
        choices=POLICIES,
        default=IGNORE,
        help="whether a pod starts all the same when this server fails or is unavailable (default %(default)s)",
    )
    made.add_argument(
        UNREGISTER_FLAG,
        action="store_true",
        help=f"remove the registration file at the end under policy {FAIL}, too, where it stays otherwise, so that no "
        "pod starts while this server is restarted",
    )
    made.add_argument(
        ORDER_FLAG,
        type=_order,
        metavar="NUMBER",
        help=f"place among the hook servers, 0 to {LAST_ORDER}; it becomes part of the registration file's name",
    )
    made.add_argument(
        TIMEOUT_FLAG,
        type=_timeout,
        metavar="TIME",
        help="how long the proxy waits for an answer, like 500ms or 2s (default: what the proxy is set to)",
    )
    made.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default %(default)s")
    return made


def _endpoint(text: str) -> str:
    try:
        return parse_endpoint(text, ENDPOINT_FLAG)
    except ConfigError as error:
        raise argparse.ArgumentError(None, str(error)) from None


def _order(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > LAST_ORDER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a place: write a number from 0 to {LAST_ORDER}")
    return int(text)


def _timeout(text: str) -> str:
    try:
        parse_duration(text, TIMEOUT_FLAG)
    except ConfigError as error:
        raise argparse.ArgumentError(None, str(error)) from None
    return text
