"""The process of a hook server: flags, start, wait, clean end.

Invariant: a clean end removes the socket and the registration file. Under policy Fail without --unregister the file
stays, so that no call bypasses the hooks during a restart. Otherwise it exists only while the server listens.
"""

import argparse
import logging
import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from runtimeproxy.errors import ConfigError
from runtimeproxy.settings.imports import import_or_exit

from .flags import parser, server_name
from .hook import METHODS, Hook, hook_name, hook_points_of
from .registering import FAIL, Registration, entry, file_name

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

SERVING_ERROR = 1
CHECK_SECONDS = 0.5
"""Seconds between two checks of the registration file."""
DEREGISTER_SECONDS = 0.5
"""Seconds that calls are still accepted after the file was removed: the proxy may notice it so late (hook-api)."""
GRACE_SECONDS = 1.0
"""Seconds that running calls then have to end."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def main(
    *hooks: Hook,
    name: str = "",
    argv: Sequence[str] | None = None,
    interceptors: "Sequence[grpc.ServerInterceptor]" = (),
    prepare: "Callable[[grpc.Server], object]" = lambda server: None,
) -> NoReturn:
    """Serve ``hooks``, each call in this order, as the command line sets, until SIGTERM or SIGINT.

    ``name`` is the server's name in file names; if empty, the hooks' names joined by "-", cut to fit the socket's path.
    ``interceptors`` get each call before the hooks; ``prepare`` is called with grpcio's server before it starts, for
    reflection or more services. Exits with code 0 after a clean end, 2 for a wrong command line, 1 if grpcio is missing
    or the socket or the file cannot be created: one line on stderr has the reason.
    """
    name = name or server_name([hook_name(hook) for hook in hooks])
    made = parser(name)
    if fault := _fault(hooks, name):
        made.refuse(fault)
    try:
        for hook in hooks:
            hook.add_arguments(made)
    except argparse.ArgumentError as error:
        made.refuse(f"two hooks, or a hook and the SDK, have the same flag: {error}; rename one")
    arguments = made.parse_args(argv)
    _log_to_stderr(hooks, arguments.log_level)
    try:
        for hook in hooks:
            hook.configure(arguments)
    except (ValueError, OSError) as error:
        made.refuse(str(error))
    try:
        _serve(hooks, name, arguments, interceptors, prepare)
    except ConfigError as error:
        made.exit(SERVING_ERROR, f"{name}: error: {error}\n")
    sys.exit(0)


def _fault(hooks: Sequence[Hook], name: str) -> str:
    """Return the error in the arguments of ``main``; "" if there is none."""
    for hook in hooks:
        if not isinstance(hook, Hook):
            return f"{hook!r} is not a hook; give main instances of subclasses of Hook: main(MyHook())"
        if not hook.points:
            return f"{type(hook).__name__} has no method named like a hook point; there are {', '.join(METHODS)}"
    if not hooks:
        return "there is no hook to serve; give main one: main(MyHook())"
    if not _NAME.fullmatch(name):
        return f"{name!r} cannot be in a file's name; use letters, digits, '.', '_' and '-' in the hook's name"
    return ""


def _log_to_stderr(hooks: Sequence[Hook], level: str) -> None:
    """Log the lines of the SDK and the hooks at ``level``, others at warning: their debug lines contain values."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for module in (__name__, *(type(hook).__module__ for hook in hooks)):
        logging.getLogger(module.partition(".")[0]).setLevel(level.upper())


def _serve(
    hooks: Sequence[Hook],
    name: str,
    arguments: argparse.Namespace,
    interceptors: "Sequence[grpc.ServerInterceptor]",
    prepare: "Callable[[grpc.Server], object]",
) -> None:
    try:
        import_or_exit(f"{__package__}.serving")
        from .serving import HookServer  # imported here, so that a test of a hook needs no gRPC
    except ModuleNotFoundError as missing:
        why = f"the Python package {missing.name} is missing, which serves gRPC"
        raise ConfigError(f"{why}; install runtimeproxy with its extra: 'runtimeproxy[hooks]'") from None
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may be called in a signal handler
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))
    registration = None
    if arguments.register_dir:
        content = entry(arguments.endpoint, hook_points_of(hooks), arguments.failure_policy, arguments.timeout)
        registration = Registration(arguments.register_dir, file_name(name, arguments.order), content)
    server = HookServer(hooks, name, interceptors, prepare)
    try:
        server.start(arguments.endpoint)
        if registration:
            registration.write()
        names = ", ".join(hook_point.name for hook_point in hook_points_of(hooks))
        where = f"registered in {registration.path}" if registration else "not registered"
        log.info("%s serves %s on %s, %s", name, names, arguments.endpoint, where)
        while True:
            try:
                received = signals.get(timeout=CHECK_SECONDS)
                break
            except queue.Empty:
                if registration:
                    registration.watch()
        log.info("%s: ending", signal.Signals(received).name)
        if registration and arguments.failure_policy == FAIL and not arguments.unregister:
            registration.leave()
        elif registration:
            registration.remove()
            time.sleep(DEREGISTER_SECONDS)
    finally:
        abandoned = server.stop(GRACE_SECONDS)
    if abandoned:  # end without them: Python would wait for their threads, forever if they hang
        log.warning("calls that did not end in time and are abandoned: %d", abandoned)
        logging.shutdown()
        os._exit(0)
