"""The base class of a hook: its methods are named like the hook points.

Invariant: a hook is registered for exactly the hook points whose methods it has.
"""

import argparse
import difflib
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runtimeproxy.model.fields import HookAnswer, HookRequest
from runtimeproxy.model.hookpoints import HOOK_POINTS, HookPoint, SubjectKind

from .context import ContainerContext, PodContext


def method_name(hook_point: HookPoint) -> str:
    """Return the method name of a hook point: "PreCreateContainer" becomes ``pre_create_container``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", hook_point.name).lower()


METHODS: Mapping[str, HookPoint] = {method_name(hook_point): hook_point for hook_point in HOOK_POINTS}
_NAMES: Mapping[str, str] = {hook_point.name: name for name, hook_point in METHODS.items()}
_CONTEXTS: Mapping[SubjectKind, Callable[[HookPoint, HookRequest], PodContext | ContainerContext]] = {
    SubjectKind.POD: PodContext,
    SubjectKind.CONTAINER: ContainerContext,
}
_PREFIXES = ("pre_", "post_")


def _normalised(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("hook")


_NORMALISED = frozenset(map(_normalised, METHODS))


def _naming_error(cls: type, name: str) -> str:
    """Return why an attribute that resembles a hook method would never be called; "" if it is valid. None in place of a
    method is valid: so a subclass omits a hook point of its parent."""
    value = getattr(cls, name, None)
    if name in METHODS:
        return "" if value is None else _signature_error(cls, name, value)
    if _normalised(name) not in _NORMALISED and not (name.startswith(_PREFIXES) and callable(value)):
        return ""
    nearest = difflib.get_close_matches(name.lower(), METHODS, 1)
    hint = f", did you mean {nearest[0]}?" if nearest else ":"
    return f"is not a hook point{hint} There are {', '.join(METHODS)}. Give a method of your own another name"


def _signature_error(cls: type, name: str, value: object) -> str:
    """Return why an attribute with a hook method's name cannot be called as one; "" if it can."""
    if not callable(value) or inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):
        return "must be a method, plain or async, and no generator"
    # The callable itself counts, not the wrapped one. Only for a function the called code is known.
    declared = inspect.getattr_static(cls, name)
    if not inspect.isfunction(declared) and not isinstance(declared, staticmethod | classmethod):
        return ""
    try:
        inspect.signature(value, follow_wrapped=False).bind(*([None, None] if inspect.isfunction(declared) else [None]))
    except ValueError:
        return ""  # a callable without a signature
    except TypeError:
        kind = METHODS[name].subject.value
        return f"must have one parameter: def {name}(self, {kind})"
    return ""


class Hook:
    """Base class of a hook: a subclass has methods named like hook points, plain or ``async``, each with one parameter.

    ``pre_run_pod_sandbox`` and ``post_stop_pod_sandbox`` are called with a PodContext, ``pre_create_container``,
    ``pre_start_container``, ``post_start_container``, ``pre_update_container_resources`` and ``post_stop_container``
    with a ContainerContext. The edits in it are the answer; the return value is ignored. Methods run in threads,
    concurrently for different calls.
    """

    name = ""
    """The hook's name in logs and file names; the class's name if empty."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in dir(cls):  # includes inherited attributes: not every parent is a Hook
            why = "" if name.startswith("_") else _naming_error(cls, name)
            if why:
                raise TypeError(f"{cls.__name__}.{name} {why}")

    @property
    def points(self) -> tuple[HookPoint, ...]:
        """Return the hook points that this hook has a method for."""
        return tuple(hook_point for name, hook_point in METHODS.items() if callable(getattr(self, name, None)))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Called before the command line is parsed: add the hook's own flags; none by default."""

    def configure(self, arguments: argparse.Namespace) -> None:
        """Called before the first call, with the flags' values. Raises ValueError with what to do about a wrong one."""


def hook_name(hook: Hook) -> str:
    """Return the hook's ``name``, or its class's name in lower case."""
    return hook.name or type(hook).__name__.lower()


def hook_points_of(hooks: Sequence[Hook]) -> tuple[HookPoint, ...]:
    """Return the hook points for which any hook has a method, in the table's order."""
    return tuple(hook_point for hook_point in HOOK_POINTS if any(hook_point in hook.points for hook in hooks))


def call_hooks(
    hooks: Sequence[Hook], hook_point: HookPoint, request: HookRequest, wait: Callable[[Awaitable[None]], None]
) -> HookAnswer:
    """Return the answer of several hooks: each gets the edits of earlier ones. ``wait`` runs an ``async`` method to its
    end. Raises the exception of a method, without calling later hooks."""
    context = _CONTEXTS[hook_point.subject](hook_point, request)
    name = _NAMES[hook_point.name]
    for hook in hooks:
        method = getattr(hook, name, None)
        if callable(method):
            waiting = method(context)
            if waiting is not None and inspect.isawaitable(waiting):
                wait(waiting)
    return context.answer()
