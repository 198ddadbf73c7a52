"""``runtimeproxy store``: the pods and containers that the proxy knows, with names of fields and no values."""

from collections.abc import Sequence

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.output import row_options, row_text
from runtimeproxy.cli.shared.subjects import FIELD_COLUMNS, ID_CHARACTERS, Record, field_rows, pod_name

COLUMNS = ("id", "kind", "attempt", "set by", "name")


@click.command("ls", cls=ProxyCommand, short_help="List pods and containers.")
@click.option(
    "--pod",
    metavar="POD",
    help="Only this pod: NAME, NAMESPACE/NAME, or the start of its id.",
    shell_complete=subjects.pods,
)
@row_options
def _ls(proxy: AdminClient, pod: str | None, output: str, no_headers: bool) -> None:
    """List the pods and containers that the proxy knows, with the hook servers that set containers' resources."""
    pods, containers = subjects.records(proxy, pod=pod)
    data = {"pods": pods, "containers": containers}
    click.echo(row_text(_rows(pods, containers), COLUMNS, output, no_headers, data))


@click.command("get", cls=ProxyCommand, short_help="Show what became of the fields of a pod or container.")
@click.argument("subject", metavar="POD|CONTAINER", shell_complete=subjects.pods_and_containers)
@row_options
def _get(proxy: AdminClient, subject: str, output: str, no_headers: bool) -> None:
    """Show the fields of a pod or a container that the kubelet requested or that the runtime got.

    SET BY is known of containers' resources alone; `explain` has it from the events for all fields.
    POD is [NAMESPACE/]NAME, CONTAINER NAMESPACE/POD/NAME, and each the start of its id, if that is no other's.
    """
    match = subjects.find(proxy, subject)
    if match is None:
        raise subjects.not_found(subject)
    click.echo(row_text(field_rows(match.record), FIELD_COLUMNS, output, no_headers, match.record))


def _rows(pods: Sequence[Record], containers: Sequence[Record]) -> list[dict[str, str | None]]:
    """Return a row for each pod, with those of its containers below it; containers without a known pod come last."""
    by_pod: dict[str, list[Record]] = {pod["id"]: [] for pod in pods}
    for container in containers:
        by_pod.setdefault(container["podId"], []).append(container)
    pod_of = {pod["id"]: pod for pod in pods}
    rows: list[dict[str, str | None]] = []
    for pod_id, inside in by_pod.items():
        pod = pod_of.get(pod_id)
        rows += [] if pod is None else [_row("pod", pod, pod_name(pod))]
        rows += [_row("container", container, f"{pod_name(pod)}/{container['name']}") for container in inside]
    return rows


def _row(kind: str, record: Record, name: str) -> dict[str, str | None]:
    return {
        "id": record["id"][:ID_CHARACTERS],
        "kind": kind,
        "name": name,
        "attempt": str(record["attempt"]) if "attempt" in record else None,
        "set by": ",".join(sorted(set(record["owners"].values()))) or None,
    }


store_group = click.Group(
    "store",
    commands=[_ls, _get],
    help="Show the pods and containers that the running proxy knows, with names of fields and no values.",
    short_help="Show the pods and containers that the proxy knows.",
    no_args_is_help=False,
)
