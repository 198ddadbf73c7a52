"""Turn an exception of a hook into a gRPC status for the caller and one line for the log.

Invariant: only a text for the caller is sent. No text of any other exception is stored or logged: it may quote a value.
"""

import logging
import traceback
from collections.abc import Sequence
from concurrent.futures import CancelledError
from types import FrameType

from runtimeproxy.model.fields import HookRequest
from runtimeproxy.model.hookpoints import HookPoint
from runtimeproxy.wire import grpc

from .errors import Malformed, NotSayable, Rejected
from .hook import Hook, call_hooks, hook_name

log = logging.getLogger(__name__)

_Frame = tuple[FrameType, int]
"""A frame and its line number."""

MAX_TEXT = 500
"""Largest number of characters of a status text: the client drops a status with a longer one, even a refusal."""

_OWN_TEXT: Sequence[tuple[type[Exception], int]] = (
    (Rejected, grpc.PERMISSION_DENIED),
    (Malformed, grpc.INVALID_ARGUMENT),
)
"""The exceptions whose own text is returned; any other is INTERNAL."""


def status(error: BaseException, server: str, hook_point: HookPoint, request: HookRequest) -> tuple[int, str]:
    """Log an exception at a hook point, and return its status code and text. ``server`` is named in place of a hook if
    encoding the answer raised it."""
    hook, frames = _running_hook(list(traceback.walk_tb(error.__traceback__)))
    name = hook_name(hook) if hook else server
    _log(error, f"{name} at {hook_point.name}", request.name, _place(hook, frames))
    for kind, code in _OWN_TEXT:
        if isinstance(error, kind):
            text = str(error).encode(errors="replace").decode()
            return code, text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return grpc.INTERNAL, f"{name} at {hook_point.name} raised {type(error).__name__}; its log shows where"


def _running_hook(frames: Sequence[_Frame]) -> tuple[Hook | None, Sequence[_Frame]]:
    """Return the hook that was running, None if none was, and the frames from there on."""
    for index, (frame, _) in enumerate(frames):
        if frame.f_code is call_hooks.__code__:
            return frame.f_locals.get("hook"), frames[index:]
    return None, frames


def _place(hook: Hook | None, frames: Sequence[_Frame]) -> str:
    """Return the innermost line in the hook's own module, or else the innermost of all."""
    own = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") == type(hook).__module__]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}:{line}"


def _log(error: BaseException, hook: str, subject: str, place: str) -> None:
    match error:
        case Rejected():
            log.info("%s rejected %s", hook, subject)
        case Malformed():
            log.warning("%s: cannot read %s of %s: %s", hook, error.what, subject, error.why)
        case CancelledError():
            log.warning("%s: canceled, because the caller no longer waits: %s", hook, subject)
        case NotSayable():
            log.error("%s: at %s: %s", hook, place, error)
        case _:
            log.error("%s: %s at %s for %s", hook, type(error).__name__, place, subject)
            log.debug("%s", "".join(traceback.format_tb(error.__traceback__)))  # places and code, no values
