"""The SDK: a base class whose methods are named like the hook points, and ``main`` to serve it.

``hook`` has the class, ``context`` and ``edits`` the objects that its methods get. ``command`` runs a server, with
``flags``, ``socket_path``, ``registering`` (the file), ``serving`` (grpcio's server) and ``statuses``. Only serving
needs grpcio, which the extra ``hooks`` installs. ``testing`` is a tester without sockets, ``pytest_plugin`` its
fixture.
"""

from .command import main
from .context import ContainerContext, PodContext
from .errors import Malformed, NotSayable, Rejected, reject
from .hook import Hook

__all__ = ["ContainerContext", "Hook", "Malformed", "NotSayable", "PodContext", "Rejected", "main", "reject"]
