"""File contents in, changes out."""

import json

from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.plugins.registration import parse
from runtimeproxy.plugins.registry import Change, ChangeKind, Content, Registry, Unreadable


def content(endpoint: str = "/run/a.sock", **more: object) -> bytes:
    return json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreCreateContainer"], **more}).encode()


GOOD = content()
OTHER = content("/run/b.sock")
HALF = GOOD[:20]


def names(registry: Registry) -> list[str]:
    return [registration.name for registration in registry.registrations]


def test_a_new_file_is_added() -> None:
    registry = Registry()
    assert registry.update("a.json", GOOD) == Change(ChangeKind.ADDED, "a.json", parse("a.json", GOOD))
    assert registry.registrations == (parse("a.json", GOOD),)


def test_the_same_content_is_no_change() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    assert registry.update("a.json", GOOD) is None


def test_another_spelling_of_the_same_is_no_change() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    assert registry.update("a.json", GOOD + b"\n") is None


def test_a_changed_file_is_changed() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    assert registry.update("a.json", OTHER) == Change(ChangeKind.CHANGED, "a.json", parse("a.json", OTHER))
    assert registry.registrations == (parse("a.json", OTHER),)


def test_a_file_that_is_gone_is_removed() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    assert registry.update("a.json", None) == Change(ChangeKind.REMOVED, "a.json", None)
    assert registry.registrations == ()
    assert registry.update("a.json", None) is None


def test_a_rejected_content_keeps_the_last_good_state_and_is_told_once() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    change = registry.update("a.json", HALF)
    assert change is not None
    assert (change.kind, change.registration) == (ChangeKind.REJECTED, parse("a.json", GOOD))
    assert "not JSON" in change.reason
    assert registry.update("a.json", HALF) is None
    assert registry.registrations == (parse("a.json", GOOD),)
    assert registry.invalid == 1


def test_another_rejected_content_is_told_again() -> None:
    registry = Registry()
    registry.update("a.json", HALF)
    change = registry.update("a.json", b"")
    assert change is not None
    assert (change.kind, change.registration) == (ChangeKind.REJECTED, None)


def test_a_file_that_recovers_is_told_even_if_it_says_what_it_said() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    registry.update("a.json", HALF)
    assert registry.update("a.json", GOOD) == Change(ChangeKind.RESTORED, "a.json", parse("a.json", GOOD))
    assert registry.invalid == 0
    assert registry.update("a.json", GOOD + b"\n") is None


def test_a_file_that_recovers_with_something_else_is_changed() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    registry.update("a.json", HALF)
    assert registry.update("a.json", OTHER) == Change(ChangeKind.CHANGED, "a.json", parse("a.json", OTHER))
    assert registry.invalid == 0


def test_a_file_that_was_never_good_is_added_when_it_is() -> None:
    registry = Registry()
    registry.update("a.json", HALF)
    assert registry.update("a.json", GOOD) == Change(ChangeKind.ADDED, "a.json", parse("a.json", GOOD))


def test_a_rejected_file_that_goes_leaves_nothing() -> None:
    registry = Registry()
    registry.update("a.json", HALF)
    assert registry.update("a.json", None) is None
    assert registry.invalid == 0
    assert registry.update("a.json", HALF) is not None


def test_an_unreadable_file_keeps_the_last_good_state() -> None:
    registry = Registry()
    registry.update("a.json", GOOD)
    change = registry.update("a.json", Unreadable("a.json: permission denied"))
    assert change == Change(ChangeKind.REJECTED, "a.json", parse("a.json", GOOD), "a.json: permission denied")
    assert registry.update("a.json", Unreadable("a.json: permission denied")) is None


def test_the_whole_directory_at_once() -> None:
    registry = Registry()
    registry.replace({"keep.json": GOOD, "go.json": GOOD, "alter.json": GOOD})
    changes = registry.replace({"new.json": GOOD, "alter.json": OTHER, "bad.json": b"", "keep.json": GOOD})
    assert [(change.name, change.kind) for change in changes] == [
        ("alter.json", ChangeKind.CHANGED),
        ("bad.json", ChangeKind.REJECTED),
        ("go.json", ChangeKind.REMOVED),
        ("new.json", ChangeKind.ADDED),
    ]
    assert names(registry) == ["alter.json", "keep.json", "new.json"]
    assert registry.names == {"alter.json", "bad.json", "keep.json", "new.json"}


def test_order_is_the_order_of_the_names() -> None:
    registry = Registry()
    for name in ("b.json", "10.json", "9.json", "B.json", "a.json"):
        registry.update(name, GOOD)
    assert names(registry) == ["10.json", "9.json", "B.json", "a.json", "b.json"]


_CONTENTS = st.sampled_from([GOOD, OTHER, HALF, b"", Unreadable("x"), None])


@given(st.lists(st.tuples(st.sampled_from(["a.json", "b.json"]), _CONTENTS)))
def test_what_counts_is_the_last_good_content_since_the_file_came(events: list[tuple[str, Content | None]]) -> None:
    registry = Registry()
    expected: dict[str, bytes] = {}
    for name, what in events:
        registry.update(name, what)
        if what is None:
            expected.pop(name, None)
        elif what in (GOOD, OTHER):
            expected[name] = what
        assert registry.registrations == tuple(parse(n, expected[n]) for n in sorted(expected))
