"""The registry takes file contents and returns changes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.plugins.registration import Change, ChangeKind, Content, Registry, UnreadableFile, parse


def content(endpoint: str) -> bytes:
    return json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreCreateContainer"]}).encode()


GOOD, OTHER = content("/run/a.sock"), content("/run/b.sock")
RESPELT = GOOD + b"\n"
HALF = GOOD[:20]
UNREADABLE = UnreadableFile("a.json: permission denied")
ADDED, CHANGED, RESTORED = ChangeKind.ADDED, ChangeKind.CHANGED, ChangeKind.RESTORED
REMOVED, REJECTED = ChangeKind.REMOVED, ChangeKind.REJECTED


@pytest.mark.parametrize(
    ("contents", "kind", "good"),
    [
        ([GOOD], ADDED, GOOD),
        ([GOOD, GOOD], None, GOOD),
        ([GOOD, RESPELT], None, GOOD),
        ([GOOD, OTHER], CHANGED, OTHER),
        ([GOOD, None], REMOVED, None),
        ([GOOD, None, None], None, None),
        ([GOOD, HALF], REJECTED, GOOD),
        ([GOOD, HALF, HALF], None, GOOD),
        ([HALF, b""], REJECTED, None),
        ([GOOD, HALF, GOOD], RESTORED, GOOD),
        ([GOOD, HALF, GOOD, RESPELT], None, GOOD),
        ([GOOD, HALF, OTHER], CHANGED, OTHER),
        ([HALF, GOOD], ADDED, GOOD),
        ([HALF, None], None, None),
        ([HALF, None, HALF], REJECTED, None),
        ([GOOD, UNREADABLE], REJECTED, GOOD),
        ([GOOD, UNREADABLE, UNREADABLE], None, GOOD),
    ],
)
def test_content_makes_this_change(contents: list[Content | None], kind: ChangeKind | None, good: bytes | None) -> None:
    registry = Registry()
    change = [registry.update("a.json", what) for what in contents][-1]
    registration = None if good is None else parse("a.json", good)
    if kind is None:
        assert change is None
    else:
        assert change is not None
        assert (change.kind, change.name, change.registration) == (kind, "a.json", registration)
        assert bool(change.reason) == (kind is REJECTED)
    assert registry.registrations == (() if registration is None else (registration,))
    assert len(registry.rejected) == (contents[-1] in (HALF, b"", UNREADABLE))


def test_whole_directory_at_once_in_the_order_of_the_names() -> None:
    registry = Registry()
    registry.replace({"keep.json": GOOD, "go.json": GOOD, "alter.json": GOOD, "9.json": GOOD})
    changes = registry.replace(
        {"new.json": GOOD, "B.json": GOOD, "10.json": GOOD, "alter.json": OTHER, "bad.json": HALF, "keep.json": GOOD}
        | {"a.json": UNREADABLE}
    )
    assert [(change.name.removesuffix(".json"), change.kind) for change in changes] == [
        *(("10", ADDED), ("9", REMOVED), ("B", ADDED), ("a", REJECTED), ("alter", CHANGED), ("bad", REJECTED)),
        *(("go", REMOVED), ("new", ADDED)),
    ]
    registered = ["10.json", "B.json", "alter.json", "keep.json", "new.json"]
    assert [entry.name for entry in registry.registrations] == registered
    assert registry.names == {*registered, "a.json", "bad.json"}
    assert changes[3] == Change(REJECTED, "a.json", None, UNREADABLE.reason)
    assert "not JSON" in changes[5].reason


_CONTENTS = st.sampled_from([GOOD, OTHER, HALF, b"", UnreadableFile("x"), None])


@given(st.lists(st.tuples(st.sampled_from(["a.json", "b.json"]), _CONTENTS)))
def test_last_good_content_since_the_file_came_counts(events: list[tuple[str, Content | None]]) -> None:
    registry = Registry()
    expected: dict[str, bytes] = {}
    for name, what in events:
        registry.update(name, what)
        if what is None:
            expected.pop(name, None)
        elif what in (GOOD, OTHER):
            expected[name] = what
        assert registry.registrations == tuple(parse(n, expected[n]) for n in sorted(expected))
