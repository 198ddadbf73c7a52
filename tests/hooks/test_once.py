"""What is said once."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimeproxy_hooks.once import Once


def test_a_trouble_is_told_the_first_time_only(caplog: pytest.LogCaptureFixture) -> None:
    once = Once(logging.getLogger("hook"))
    for number in (1, 2):
        once.warn("file", "%s is not there, time %d", "x", number)
        once.warn(("file", None), "100 % of it is gone")
    assert [each.getMessage() for each in caplog.records] == [
        "x is not there, time 1; said once only",
        "100 % of it is gone; said once only",
    ]


def test_it_is_told_once_whichever_threads_meet_it(caplog: pytest.LogCaptureFixture) -> None:
    once = Once(logging.getLogger("hook"))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: once.warn(number % 2, "trouble"), range(200)))
    assert len(caplog.records) == 2


def test_each_hook_says_it_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("one", "two"):
        Once(logging.getLogger(name)).warn("file", "it is not there")
    assert [each.name for each in caplog.records] == ["one", "two"]
