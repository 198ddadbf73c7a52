"""What tests of hook servers share."""

import logging
from collections.abc import Iterator

import pytest

LOGGERS = ("", "runtimeproxy_hooks", "tests")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back how a hook server that runs inside a test sets up its log."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels, handlers = [logger.level for logger in loggers], list(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in set(loggers[0].handlers).difference(handlers):
        loggers[0].removeHandler(handler)
