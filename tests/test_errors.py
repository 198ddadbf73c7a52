"""The text of a hook's failure: the log has no text of the hook server."""

import pytest

from runtimeproxy.errors import BackendError, BackendFailure, HookError, Reason


def test_unavailable_runtime_is_usual_error() -> None:
    assert (BackendError("away").kind, BackendError("away").not_done) == (BackendFailure.UNAVAILABLE, False)


@pytest.mark.parametrize(("detail", "logged"), [("", ""), ("2s are over", ": 2s are over")])
@pytest.mark.parametrize(("text", "added"), [("", ""), ("PASSWORD=secret", ": PASSWORD=secret")])
def test_hook_error_logs_no_foreign_text(detail: str, logged: str, text: str, added: str) -> None:
    error = HookError("koordlet", "PreRunPodSandbox", Reason.DEADLINE, detail, text)
    assert error.logged == f"hook server 'koordlet' at PreRunPodSandbox: deadline{logged}"
    assert str(error) == error.logged + added
