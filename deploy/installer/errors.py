"""The errors of the work on a node."""


class Refused(Exception):
    """The node is unsuitable, or a person must decide; nothing was changed."""


class Failed(Exception):
    """A step failed."""


class RolledBack(Exception):
    """A step failed, and the previous state was restored."""


class Stopped(Exception):
    """The pod received SIGTERM or SIGINT."""


def error_text(error: BaseException) -> str:
    """Return the text for the node's annotation."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
