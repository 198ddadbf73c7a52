"""The pod's process: do the work once, report on the node how it went, and stay.

Owns the annotations, and when a work that failed is tried again.
Must not know: the steps.
Invariant: the work is never done without a place where it changes the node, and one that was rolled back is not done
again by itself: a kubelet would be restarted again and again.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from . import kubelet, wanted
from .api import Api, ApiError, in_cluster
from .errors import Failed, Refused, RolledBack, Stopped, words
from .node import Node
from .places import Places
from .work import Work

WANTED = Path("/etc/runtimeproxy-installer/wanted.json")
READY = Path("/run/runtimeproxy-installer/ready")
PREFIX = "runtimeproxy.koordinator.sh/installer-"
STATES: Mapping[type[Exception], str] = {
    Refused: "Refused",
    RolledBack: "RolledBack",
    Failed: "Failed",
    OSError: "Failed",
    Stopped: "Interrupted",
}
"""The state of a node by how the work ended; each but the second is done again by the next pod."""
WAIT_SECONDS = 30.0
"""Between two checks for a free place; each node waits more or less, so that a thousand do not query together."""
REPORT_CHECKS = 20
"""After so many looks a node reports again whom it waits for: each time is a write of its node."""
RENEW_SECONDS = 60.0
LONGEST = 400
"""Longest reason in an annotation, in characters."""


class Installer:
    """The work of a pod: on the node ``name``, as ``wants`` requests."""

    def __init__(
        self,
        api: Api,
        name: str,
        namespace: str,
        wants: wanted.Wanted,
        work: Callable[..., Work],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._name = name
        self._wants = wants
        self._work = work
        self._sleep = sleep
        self._places = Places(api, namespace, wants.pool, wants.parallel, name)

    def once(self) -> bool:
        """Do the work, unless it was rolled back before; report how it went; return whether the node is as wanted.

        Raises ApiError if the API server cannot be reached, or has no lease yet, before anything was done.
        """
        node = self._api.node(self._name)
        annotations: Mapping[str, str] = node["metadata"].get("annotations") or {}
        if (
            annotations.get(f"{PREFIX}wanted") == self._wants.fingerprint
            and annotations.get(f"{PREFIX}state") == STATES[RolledBack]
        ):
            self._places.take()
            log(f"this was rolled back before; to try it again remove the annotation {PREFIX}state, then this pod")
            return False
        try:
            version = self._done(kubelet.reported_by(node))
        except tuple(STATES) as error:
            state = next(state for kind, state in STATES.items() if isinstance(error, kind))
            self._report(state, words(error))
            if isinstance(error, Refused | Stopped):
                self._leave()
            else:
                self._hold()
            if isinstance(error, Stopped):
                raise
            return False
        self._report("Installed" if version else "Removed", "", version)
        self._leave()
        return True

    def stay(self) -> None:
        """Keep the place of a node that failed, until the pod ends."""
        while True:
            self._sleep(RENEW_SECONDS)
            with suppress(ApiError):
                self._places.renew()

    def _done(self, reported: kubelet.Kubelet) -> str | None:
        work = self._work(self._wants, reported, self._place, self._ready)
        if self._wants.action == wanted.INSTALL:
            return work.install()
        work.uninstall()
        return None

    def _place(self) -> None:
        """Wait until this node may change; a place that it has is renewed.

        After its first change a node continues without the API server.
        """
        try:
            if self._places.renew():
                return
        except ApiError:
            return
        waiting, looks = "", 0
        while holders := self._holders():
            if looks % REPORT_CHECKS == 0 and holders != waiting:
                self._report("Waiting", f"{holders} changes first")
                waiting = holders
            looks += 1
            self._sleep(WAIT_SECONDS * random.uniform(0.5, 1.5))
        self._report("Working", "")

    def _holders(self) -> str:
        try:
            return self._places.take()
        except ApiError as error:
            return f"nobody knows who ({error})"

    def _ready(self) -> bool:
        try:
            return kubelet.is_ready(self._api.node(self._name))
        except ApiError:
            return True  # the API server's trouble is not the kubelet's

    def _hold(self) -> None:
        """Keep a place, so that no other node fails in the same way."""
        with suppress(ApiError):
            if self._places.held is None:
                self._places.take()

    def _leave(self) -> None:
        try:
            self._places.leave()
        except ApiError as error:
            log(f"{error}: the place is free again when its time has expired")

    def _report(self, state: str, reason: str, version: str | None = "") -> None:
        """Annotate the node, and log. ``version`` is "" if it is not known to be another one, None if it is none."""
        reason = " ".join(reason.split())[:LONGEST]
        log(f"{state}: {reason}" if reason else state)
        reported: dict[str, str | None] = {
            f"{PREFIX}state": state,
            f"{PREFIX}reason": reason or None,
            f"{PREFIX}wanted": self._wants.fingerprint,
        }
        if version != "":
            reported[f"{PREFIX}version"] = version
        for _ in range(5):
            try:
                self._api.annotate(self._name, reported)
                return
            except ApiError as error:
                log(f"{error}: the node cannot be annotated")
                self._sleep(5.0)


def log(text: str) -> None:
    """Print a line with its time."""
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text, flush=True)


def stop(number: int, frame: FrameType | None) -> None:
    """End the work as if it had failed: what is half done is undone within the pod's grace period."""
    raise Stopped(f"the pod was requested to end by {signal.Signals(number).name}")


def main() -> int:
    """Do the work of the pod; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    READY.unlink(missing_ok=True)
    try:
        wants = wanted.read(WANTED)
        name, namespace = os.environ["NODE_NAME"], os.environ["POD_NAMESPACE"]
        api = in_cluster()

        def work(*arguments: Any) -> Work:
            return Work(Node(), *arguments)

        installer = Installer(api, name, namespace, wants, work)
        while True:
            try:
                good = installer.once()
                break
            except ApiError as error:
                log(str(error))
                time.sleep(5.0)
        if good:
            READY.touch()
        installer.stay()
    except Stopped as stopped:
        log(str(stopped))
        return 0
    except (Refused, ApiError, KeyError) as error:
        log(f"this pod cannot work: {error}")
    except Exception as error:  # its text may quote a value
        last = traceback.extract_tb(error.__traceback__)[-1]
        log(f"unexpected {type(error).__name__} at {last.filename}:{last.lineno}: report it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
