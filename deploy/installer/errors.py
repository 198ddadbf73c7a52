"""How the work on a node can end otherwise than wanted."""


class Refused(Exception):
    """The node is not one for this, or something must be decided by a person; nothing was changed."""


class Failed(Exception):
    """A step failed."""


class RolledBack(Exception):
    """A step failed, and what was there before is there again."""


class Stopped(Exception):
    """The pod is to end."""


def words(error: BaseException) -> str:
    """Return what went wrong, as it may stand on a node."""
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
