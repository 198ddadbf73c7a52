"""The names that a shell completes: hook servers, pods and containers of the running proxy.

Owns the time that a shell waits for them.
Must not know: how a shell asks.
Invariant: whatever is wrong, nothing is offered, nothing is written, and the shell waits no longer.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, socket_path
from runtimeproxy.cli.shared.flags import flags_given

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECONDS = 0.3
_DISABLED = "disabled"
_FLAGS = ("admin_endpoint", "config")

Completion = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]
"""What click calls with the text that was begun."""


def _completion(names: Callable[[AdminClient, str], Iterable[str]]) -> Completion:
    """Return a completion by the names that a function gets from the proxy for the text that was begun."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem[str]]":
        from click.shell_completion import CompletionItem

        try:
            flags = flags_given({name: context.params.get(name) for name in _FLAGS})
            proxy = AdminClient(socket_path(flags, os.environ), SECONDS)
            return [CompletionItem(name) for name in sorted(names(proxy, begun)) if name.startswith(begun)]
        except Exception:  # a line that is being typed is no place for an error
            return []

    return complete


def _hook_servers(proxy: AdminClient, begun: str) -> Iterator[str]:
    told = proxy.get("/hooks")
    yield from (hook["name"] for hook in told["hooks"])
    yield from told["masked"]


def _enabled(proxy: AdminClient, begun: str) -> Iterator[str]:
    return (hook["name"] for hook in proxy.get("/hooks")["hooks"] if hook["state"] != _DISABLED)


def _disabled(proxy: AdminClient, begun: str) -> Iterator[str]:
    told = proxy.get("/hooks")
    yield from (hook["name"] for hook in told["hooks"] if hook["state"] == _DISABLED)
    yield from told["masked"]


def _pods(proxy: AdminClient, begun: str) -> Iterator[str]:
    return (subjects.pod_name(pod) for pod in subjects.records(proxy, {})[0])


def _subjects(proxy: AdminClient, begun: str) -> Iterator[str]:
    """Yield the pods; of a pod that is written out the containers; of an id that is begun those that go on so."""
    pods, containers = subjects.records(proxy, {})
    names = {pod["id"]: subjects.pod_name(pod) for pod in pods}
    yield from names.values()
    for container in containers:
        pod = names.get(container["podId"])
        if pod is not None and begun.startswith(f"{pod}/"):
            yield f"{pod}/{container['name']}"
    if begun:
        yield from (record["id"] for record in (*pods, *containers))


hook_servers = _completion(_hook_servers)
enabled_hook_servers = _completion(_enabled)
disabled_hook_servers = _completion(_disabled)
pods = _completion(_pods)
pods_and_containers = _completion(_subjects)
