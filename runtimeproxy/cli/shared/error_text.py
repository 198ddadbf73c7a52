"""What a user is told about an error.

Owns what of an error may be shown.
Must not know: where it is shown.
Invariant: the text of a foreign exception, which may quote a value, is never in it.
"""

import traceback

from runtimeproxy.errors import RuntimeProxyError


def words(error: Exception) -> str:
    """Return the message about an error for the user. The text of a foreign exception may quote a value, so only its
    class and its place are shown."""
    if isinstance(error, RuntimeProxyError | OSError):
        return str(error)
    if isinstance(error, ImportError) and error.name:
        return f"the library {error.name} cannot be loaded: it is missing or damaged; install runtimeproxy again"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "; ".join(
        [f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}", *getattr(error, "__notes__", ())]
    )
