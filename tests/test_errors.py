"""The exceptions: which party is at fault, and the text of a hook's failure."""

import pytest

from runtimeproxy.errors import (
    BackendError,
    BackendFailure,
    ConfigError,
    HookError,
    Reason,
    RuntimeProxyError,
    WireError,
)


def test_every_error_is_one_of_the_proxys_own() -> None:
    assert {kind.__base__ for kind in (ConfigError, WireError, BackendError, HookError)} == {RuntimeProxyError}


def test_runtime_that_is_away_is_unavailable() -> None:
    assert BackendError("away").kind is BackendFailure.UNAVAILABLE
    assert (BackendError("away").not_done, BackendError("busy", not_done=True).not_done) == (False, True)


@pytest.mark.parametrize(("detail", "told"), [("", ""), ("2s are over", ": 2s are over")])
@pytest.mark.parametrize(("said", "added"), [("", ""), ("PASSWORD=secret", ": PASSWORD=secret")])
def test_hook_error_tells_the_log_no_words_of_others(detail: str, told: str, said: str, added: str) -> None:
    error = HookError("koordlet", "PreRunPodSandbox", Reason.DEADLINE, detail, said)
    assert error.logged == f"hook server 'koordlet' at PreRunPodSandbox: deadline{told}"
    assert str(error) == error.logged + added
    assert (error.plugin, error.hook, error.reason) == ("koordlet", "PreRunPodSandbox", Reason.DEADLINE)
    assert (error.detail, error.said) == (detail, said)
