"""The demo's own hook server: it notes which hook points are called, one JSON line per call, and changes nothing.

A line contains the time and names, never a value.
"""

import argparse
import json
import os
import time
from pathlib import Path

from runtimeproxy_hooks import ContainerContext, Hook, PodContext, main


class Notes(Hook):
    """Notes each call at every hook point."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--call-log", type=Path, required=True, metavar="FILE", help="file to append lines to")

    def configure(self, arguments: argparse.Namespace) -> None:
        self._log = os.open(arguments.call_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        self._note(pod.hook_point, pod.namespace, pod.name, "")

    post_stop_pod_sandbox = pre_run_pod_sandbox

    def pre_create_container(self, container: ContainerContext) -> None:
        self._note(container.hook_point, container.pod.namespace, container.pod.name, container.name)

    pre_start_container = post_start_container = pre_create_container
    pre_update_container_resources = post_stop_container = pre_create_container

    def _note(self, point: str, namespace: str, pod: str, container: str) -> None:
        entry = {"time": time.time(), "point": point, "pod": f"{namespace}/{pod}", "container": container}
        os.write(self._log, f"{json.dumps(entry)}\n".encode())  # one write: methods run in several threads


if __name__ == "__main__":
    main(Notes())
