"""``runtimeproxy explain``: what became of a pod or container, from the Store and the events."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from runtimeproxy.cli.shared import subjects
from runtimeproxy.cli.shared.admin_client import AdminClient, ProxyCommand
from runtimeproxy.cli.shared.output import TABLE, output_option, row_text, structured_text
from runtimeproxy.cli.shared.subjects import FIELD_COLUMNS, ID_CHARACTERS, Event, Record, Subject, field_rows

_READ = """\
It was read from the runtime: it is older than the proxy, or an answer about it was lost.
Of a field "as requested" it is not known whether the kubelet requested it or a hook server set it."""


@click.command("explain", cls=ProxyCommand, short_help="Show what was changed of a pod or container, and by whom.")
@click.argument("subject", metavar="POD|CONTAINER", shell_complete=subjects.pods_and_containers)
@output_option()
def explain_command(proxy: AdminClient, subject: str, output: str) -> None:
    """Show what the kubelet requested for a pod or a container, what hook servers changed, and what the runtime got.

    Fields are shown by their names, without values; calls by the ids that their log lines have. POD is
    [NAMESPACE/]NAME, CONTAINER NAMESPACE/POD/NAME, and each the start of its id, if that is no other's.
    """
    started = proxy.call("version")["startedAt"]
    match = subjects.find(proxy, subject)
    # By its name: events before its create have no id.
    pod = subject if match is None or match.pod is None else subjects.pod_name(match.pod)
    events = [event for event in subjects.recent_events(proxy, pod=pod) if _is_about(event, match)]
    if match is None and not any(event["kind"] != "gap" for event in events):
        raise subjects.not_found(subject)
    if output == TABLE:
        click.echo("\n".join(_lines(match, events, started)))
    else:
        click.echo(structured_text(_structure(match, events, started), output))


def _is_about(event: Event, subject: Subject | None) -> bool:
    """Return whether an event is of this pod or container. A create that was refused has no id: its name decides."""
    if subject is None or event["kind"] == "gap":
        return True
    record, pod = subject.record, subject.pod
    return (
        subject.is_pod
        or (event.get("container") == record["name"] and event.get("containerId", record["id"]) == record["id"])
    ) and (pod is None or event.get("podId", pod["id"]) == pod["id"])


def _structure(subject: Subject | None, events: Sequence[Event], started: str) -> dict[str, Any]:
    pod, containers = None, []
    if subject is not None:
        pod, containers = subject.pod, list(subject.containers) if subject.is_pod else [subject.record]
    return {"unknownBefore": started, "pod": pod, "containers": containers, "events": list(events)}


def _lines(subject: Subject | None, events: Sequence[Event], started: str) -> Iterator[str]:
    if subject is None:
        yield "The proxy knows no such pod or container now; this is what it remembers of one."
    elif subject.is_pod:
        yield from _record_lines("Pod", subject, events)
        for container in subject.containers:
            yield from _record_lines("Container", Subject(container, subject.pod), events)
    else:
        yield from _record_lines("Container", subject, events)
    yield ""
    if events:
        rows: list[Mapping[str, str | None]] = [subjects.row(event) for event in events]
        yield row_text(rows, subjects.COLUMNS, TABLE, False)
    else:
        yield "No hook server changed, refused or failed a call of it, as far as is remembered."
    yield ""
    yield f"The proxy started at {started}. What happened before is unknown."


def _record_lines(kind: str, subject: Subject, events: Sequence[Event]) -> Iterator[str]:
    record = subject.record
    yield f"{kind} {subject.name}, id {record['id'][:ID_CHARACTERS]}"
    edits = (event for event in events if event["kind"] == "edited" and _is_of(event, record))
    setters = {field["field"]: field["hookServer"] for event in edits for field in event.get("fields", ())}
    rows = [*field_rows(record, setters), *_unused_rows(record, events)]
    yield row_text(rows, FIELD_COLUMNS, TABLE, False)
    if record["read"]:
        yield _READ


def _unused_rows(record: Record, events: Sequence[Event]) -> list[dict[str, str | None]]:
    """Return for each field that was set without effect the reason, and the last hook server that set it."""
    rows = {
        field["field"]: {"field": field["field"], "sent": event["text"], "set by": field["hookServer"]}
        for event in events
        if event["kind"] == "no_effect" and _is_of(event, record)
        for field in event["fields"]
    }
    return list(rows.values())


def _is_of(event: Event, record: Record) -> bool:
    """Return whether a call was about this record, and not about another one with its name."""
    return bool(record["id"] == event.get("containerId", None if "container" in event else event.get("podId")))
