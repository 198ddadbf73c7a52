"""Tests of the errors: whose fault each is, and what a hook's failure says."""

import pytest

from runtimeproxy.errors import BackendError, ConfigError, HookError, Reason, RuntimeProxyError, WireError


@pytest.mark.parametrize("kind", [ConfigError, WireError, BackendError])
def test_every_error_is_one_of_the_proxys_own(kind: type[RuntimeProxyError]) -> None:
    error = kind("what was wrong")
    assert isinstance(error, RuntimeProxyError)
    assert str(error) == "what was wrong"


@pytest.mark.parametrize(("error", "code"), [(BackendError("away"), 14), (BackendError("not there", 5), 5)])
def test_a_runtime_that_is_away_is_unavailable(error: BackendError, code: int) -> None:
    assert error.code == code


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        ("", "hook server 'koordlet' at PreRunPodSandbox: deadline"),
        ("2s are over", "hook server 'koordlet' at PreRunPodSandbox: deadline: 2s are over"),
    ],
)
def test_a_hook_error_names_plugin_hook_point_and_reason(detail: str, text: str) -> None:
    error = HookError("koordlet", "PreRunPodSandbox", Reason.DEADLINE, detail)
    assert isinstance(error, RuntimeProxyError)
    assert str(error) == text
    assert (error.plugin, error.hook, error.reason, error.detail) == (
        "koordlet",
        "PreRunPodSandbox",
        Reason.DEADLINE,
        detail,
    )


@pytest.mark.parametrize("detail", ["", "gRPC status 2"])
def test_what_others_said_is_for_the_caller_and_not_for_the_log(detail: str) -> None:
    error = HookError("koordlet", "PreRunPodSandbox", Reason.ERROR_STATUS, detail, said="PASSWORD=secret")
    assert str(error) == f"{error.logged}: PASSWORD=secret"
    assert error.logged == str(HookError("koordlet", "PreRunPodSandbox", Reason.ERROR_STATUS, detail))


def test_reasons_are_metric_labels() -> None:
    values = [reason.value for reason in Reason]
    assert len(set(values)) == len(values) == 12
    assert all(value.replace("_", "").isalpha() and value.islower() for value in values)
