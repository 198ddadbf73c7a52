"""A hook server for tests, in this process or one of its own: its hooks do what the pod's annotation DO says."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping

from runtimeproxy_hooks.sdk import ContainerContext, Hook, PodContext, main, reject

DO = "do"
BEGAN = "reported to wait"
"""Printed to stderr when a method begins to wait."""
SECRET = "canary-4711"
"""Used in annotations and in texts of foreign exceptions, and must not be repeated anywhere."""


def hang() -> None:
    print(BEGAN, file=sys.stderr, flush=True)
    time.sleep(3600)


ACTIONS: Mapping[str, Callable[[ContainerContext], None]] = {
    "": lambda container: None,
    "refuse": lambda container: reject("not on my node"),
    "leave": lambda container: sys.exit(SECRET),
    "hang": lambda container: hang(),
}


class Obedient(Hook):
    """Does what is requested, then sets a mark in the environment."""

    def pre_create_container(self, container: ContainerContext) -> None:
        ACTIONS[container.pod.annotations.get(DO, "")](container)
        container.env["MARKS"] = container.env.get("MARKS", "") + "o"


class Dreamy(Hook):
    """The same, on the event loop; what is requested may take a while."""

    name = "dreamy"
    mark = "d"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--mark", default="d")

    def configure(self, arguments: argparse.Namespace) -> None:
        if len(arguments.mark) != 1:
            raise ValueError("--mark: write\none letter")
        self.mark = arguments.mark

    async def pre_create_container(self, container: ContainerContext) -> None:
        await asyncio.sleep(0.001)
        ACTIONS[container.pod.annotations.get(DO, "")](container)
        container.env["MARKS"] = container.env.get("MARKS", "") + self.mark

    async def post_stop_pod_sandbox(self, pod: PodContext) -> None:
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    main(Obedient(), Dreamy())
