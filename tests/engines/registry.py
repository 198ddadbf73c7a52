"""A private image registry on a free loopback port: Debian's docker-registry with an empty store of its own.

Nothing outside of its folder is written; the process is ended by its id.
"""

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.engines.containerd import EngineError

REGISTRY = "/usr/bin/docker-registry"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
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


class Registry:
    """A registry of our own; ``address`` is what image names begin with. Use as a context manager."""

    def __init__(self) -> None:
        self.address = ""
        self._folder = Path(tempfile.mkdtemp(prefix="rp-registry-"))
        self._log = self._folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        if shutil.which(REGISTRY) is None:
            raise EngineError(f"not found: {REGISTRY}; apt-get install docker-registry")
        config = self._folder / "config.yml"
        config.write_text(CONFIG.format(folder=self._folder))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [REGISTRY, "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={}
            )
        deadline = time.monotonic() + START_SECONDS
        while (said := LISTENING.search(self._log.read_text())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"{REGISTRY} does not listen; its log ends: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
        self.address = said[1]

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder)
