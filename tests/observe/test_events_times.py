"""How times are written."""

import pytest

from runtimeproxy.observe.events import rfc3339


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1e9 + 0.25, "2001-09-09T01:46:40.250Z"), (-1.5, "1969-12-31T23:59:58.500Z")],
)
def test_time_is_utc_with_milliseconds(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
