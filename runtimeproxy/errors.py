"""Exceptions of the project; the class names the party at fault.

Invariant: a text never holds the value of an env, label or annotation.
"""

from enum import Enum


class RuntimeProxyError(Exception):
    """Base of every error that the proxy raises on purpose."""


class ConfigError(RuntimeProxyError):
    """The user's mistake: a flag, an environment variable, a file or a path."""


class WireError(RuntimeProxyError):
    """A peer's fault: its bytes break the protocol."""


class BackendFailure(Enum):
    """How a call to the container runtime failed, whatever protocol it speaks."""

    UNAVAILABLE = "unavailable"
    """It could not be reached, or closed the connection early."""
    DEADLINE = "deadline"
    """It did not answer in time."""
    UNIMPLEMENTED = "unimplemented"
    """It does not know the call."""
    OTHER = "other"
    """It answered with an error, or its answer cannot be used."""


class BackendError(RuntimeProxyError):
    """The container runtime failed or is unavailable. ``not_done``: it surely did not do what was requested."""

    def __init__(
        self, message: str, kind: BackendFailure = BackendFailure.UNAVAILABLE, *, not_done: bool = False
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.not_done = not_done


class Reason(Enum):
    """Why a hook call failed (hook-api, "Failures"); the value is the metrics label."""

    UNREACHABLE = "unreachable"
    """Nothing listens at the hook server's socket."""
    DEADLINE = "deadline"
    """No answer arrived in time."""
    BROKEN_ANSWER = "broken_answer"
    """The connection or gRPC's framing broke before the answer was complete."""
    BAD_ANSWER = "bad_answer"
    """The answer is not a hook message, is too long, or sets a field to a value that no runtime accepts."""
    ERROR_STATUS = "error_status"
    """The hook server answered with a gRPC status that has no reason of its own."""
    REFUSED = "refused"
    """The hook server answered PERMISSION_DENIED: the call is refused under both policies."""
    UNIMPLEMENTED = "unimplemented"
    """The hook server does not serve a hook point that its registration lists."""
    DISABLED = "disabled"
    """An operator disabled the hook server during the call, which continues without it under both policies."""
    BREAKER_OPEN = "breaker_open"
    """The hook server failed too often; calls to it are suspended."""
    UNTRUSTED_SOCKET = "untrusted_socket"
    """Another user than root or the proxy's own could answer at the socket: it is not called."""
    RUNTIME_REJECTED = "runtime_rejected"
    """The runtime rejected the extra update that carries a PreStartContainer adjustment."""
    UNREADABLE = "unreadable"
    """The held message or its subject could not be read, so the plugin could not be called."""
    UNHOOKED = "unhooked"
    """The call creates and starts containers at no hook point, so the plugin could not be called."""
    INTERNAL = "internal"
    """The proxy itself failed before the call was released."""


class HookError(RuntimeProxyError):
    """One hook call failed: ``plugin`` at ``hook`` for ``reason``, with ``detail`` in the proxy's words.

    ``peer_text`` is the hook server's or the runtime's own text, which may repeat values: it is part of the error's
    text for the caller, while ``logged`` is the text without it.
    """

    def __init__(self, plugin: str, hook: str, reason: Reason, detail: str = "", peer_text: str = "") -> None:
        self.plugin = plugin
        self.hook = hook
        self.reason = reason
        self.detail = detail
        self.peer_text = peer_text
        text = f"hook server {plugin!r} at {hook}: {reason.value}"
        self.logged = f"{text}: {detail}" if detail else text
        super().__init__(f"{self.logged}: {peer_text}" if peer_text else self.logged)
