"""The pod's process: do the work once, report the result on the node, and run until the pod ends.

Owns the annotations, and when failed work is repeated.
Must not know: the steps.
Invariant: a node changes only while it holds a place. Work that was rolled back is not repeated without a person, since
each attempt restarts the kubelet.
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

from . import desired, kubelet
from .api import Api, ApiError, in_cluster
from .errors import Failed, Refused, RolledBack, Stopped, error_text
from .node import Node
from .places import Places
from .work import Work

DESIRED_FILE = Path("/etc/runtimeproxy-installer/wanted.json")
READY = Path("/run/runtimeproxy-installer/ready")
PREFIX = "runtimeproxy.koordinator.sh/installer-"
STATES: Mapping[type[Exception], str] = {
    Refused: "Refused",
    RolledBack: "RolledBack",
    Failed: "Failed",
    OSError: "Failed",
    Stopped: "Interrupted",
}
"""The state of a node by the error of its work. The next pod repeats the work after each but the second."""
POLL_SECONDS = 30.0
"""Between two checks for a free place. The wait is random, so that a thousand nodes do not query at the same time."""
REPORT_CHECKS = 20
"""Checks between two reports of the holder that a node waits for; each report writes the node object."""
RENEW_SECONDS = 60.0
MAX_REASON_LENGTH = 400
"""Longest reason in an annotation, in characters."""


class Installer:
    """The work of a pod on the node ``name``."""

    def __init__(
        self,
        api: Api,
        name: str,
        namespace: str,
        desired_state: desired.DesiredState,
        work: Callable[..., Work],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._name = name
        self._desired = desired_state
        self._work = work
        self._sleep = sleep
        self._places = Places(api, namespace, desired_state.pool, desired_state.parallel, name)

    def run(self) -> bool:
        """Do the work, unless it was rolled back before; report the result; return whether the state was reached.

        Raises ApiError, before the first change, if the API server is unreachable or has no lease yet.
        """
        node = self._api.node(self._name)
        annotations: Mapping[str, str] = node["metadata"].get("annotations") or {}
        if (
            annotations.get(f"{PREFIX}wanted") == self._desired.fingerprint
            and annotations.get(f"{PREFIX}state") == STATES[RolledBack]
        ):
            self._places.acquire()
            log(f"this was rolled back before; to try it again remove the annotation {PREFIX}state, then this pod")
            return False
        try:
            version = self._work_on_node(kubelet.reported_by(node))
        except tuple(STATES) as error:
            state = next(state for kind, state in STATES.items() if isinstance(error, kind))
            self._report(state, error_text(error))
            if isinstance(error, Refused | Stopped):
                self._release_place()
            else:
                self._keep_place()
            if isinstance(error, Stopped):
                raise
            return False
        self._report("Installed" if version else "Removed", "", version)
        self._release_place()
        return True

    def hold_until_stopped(self) -> None:
        """Renew the lease of a node that failed, until the pod ends."""
        while True:
            self._sleep(RENEW_SECONDS)
            with suppress(ApiError):
                self._places.renew()

    def _work_on_node(self, reported: kubelet.Kubelet) -> str | None:
        work = self._work(self._desired, reported, self._acquire_place, self._ready)
        if self._desired.action == desired.INSTALL:
            return work.install()
        work.uninstall()
        return None

    def _acquire_place(self) -> None:
        """Wait until this node may change, or renew the place that it holds.

        After its first change a node continues without the API server.
        """
        try:
            if self._places.renew():
                return
        except ApiError:
            return
        reported, checks = "", 0
        while holders := self._blocking_holders():
            if checks % REPORT_CHECKS == 0 and holders != reported:
                self._report("Waiting", f"{holders} changes first")
                reported = holders
            checks += 1
            self._sleep(POLL_SECONDS * random.uniform(0.5, 1.5))
        self._report("Working", "")

    def _blocking_holders(self) -> str:
        try:
            return self._places.acquire()
        except ApiError as error:
            return f"an unknown node ({error})"

    def _ready(self) -> bool:
        try:
            return kubelet.is_ready(self._api.node(self._name))
        except ApiError:
            return True  # a failure of the API server is none of the kubelet

    def _keep_place(self) -> None:
        """Hold a place, so that no other node fails in the same way."""
        with suppress(ApiError):
            if self._places.held is None:
                self._places.acquire()

    def _release_place(self) -> None:
        try:
            self._places.release()
        except ApiError as error:
            log(f"{error}: the place was not released, and is free when its lease expires")

    def _report(self, state: str, reason: str, version: str | None = "") -> None:
        """Annotate the node, and log. ``version`` "" keeps the annotation, None removes it."""
        reason = " ".join(reason.split())[:MAX_REASON_LENGTH]
        log(f"{state}: {reason}" if reason else state)
        reported: dict[str, str | None] = {
            f"{PREFIX}state": state,
            f"{PREFIX}reason": reason or None,
            f"{PREFIX}wanted": self._desired.fingerprint,
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
    """Print a line with the time."""
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text, flush=True)


def stop(number: int, frame: FrameType | None) -> None:
    """End the work as if it had failed: incomplete changes are undone within the pod's grace period."""
    raise Stopped(f"the pod was requested to end by {signal.Signals(number).name}")


def main() -> int:
    """Do the work of the pod; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    READY.unlink(missing_ok=True)
    try:
        desired_state = desired.read(DESIRED_FILE)
        name, namespace = os.environ["NODE_NAME"], os.environ["POD_NAMESPACE"]
        api = in_cluster()

        def work(*arguments: Any) -> Work:
            return Work(Node(), *arguments)

        installer = Installer(api, name, namespace, desired_state, work)
        while True:
            try:
                succeeded = installer.run()
                break
            except ApiError as error:
                log(str(error))
                time.sleep(5.0)
        if succeeded:
            READY.touch()
        installer.hold_until_stopped()
    except Stopped as stopped:
        log(str(stopped))
        return 0
    except (Refused, ApiError, KeyError) as error:
        log(f"this pod cannot work: {error}")
    except Exception as error:  # its text may quote a value
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log(f"unexpected {type(error).__name__} at {frame.filename}:{frame.lineno}: report it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
