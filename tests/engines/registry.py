"""A private image registry on a free loopback port: Debian's docker-registry with an empty store of its own.

Nothing outside of its folder is written; the process is ended by its id.
"""

import re
from typing import Self

from tests.engines.engine import Daemon

REGISTRY = "/usr/bin/docker-registry"
# The kernel chooses the port; the log says which one.
CONFIG = """
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/store
http:
  addr: 127.0.0.1:0
  secret: one
"""
LISTENING = re.compile(r'msg="listening on (127\.0\.0\.1:\d+)"')


class Registry(Daemon):
    """A private registry; ``address`` is the beginning of image names."""

    def __init__(self) -> None:
        super().__init__("registry")
        self.address = ""

    def start(self) -> Self:
        self._require_programs()
        config = self.base / "config.yml"
        config.write_text(CONFIG.format(folder=self.base))
        self._run([REGISTRY, "serve", str(config)], self._listens, {})
        return self

    def _listens(self) -> bool:
        said = LISTENING.search(self.log_file.read_text())
        self.address = said[1] if said else ""
        return said is not None
