"""What each kind of bad hook server costs under each policy, and how it shows: docs/fleets.rst, "A bad hook server".

test_policy_exact.py and test_engines_hooked.py try each row, test_docs.py compares the page.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from runtimeproxy.errors import Reason
from runtimeproxy.observe.events import EventKind
from runtimeproxy.plugins.registration import FailurePolicy

WAYS_BACK = ("move its file", "hook disable", "replace it")


class Lost(Enum):
    """The part of a create that is lost."""

    TIME = "nothing but time"
    HOOK = "what it would have set"
    FIELD = "the bad field alone"
    CALL = "the create: it is refused"
    CONTAINER = "the container: the runtime fails its start (containerd) or its create (dockerd)"
    VALUE = "the right value: the container runs with the wrong one"


class Signs(NamedTuple):
    """How a loss shows; ``alert`` is "" where there is none."""

    event: EventKind
    metric: str
    alert: str = ""


SIGNS: Mapping[Lost, Signs] = {
    Lost.TIME: Signs(EventKind.EDITED, "hook_call_duration_seconds", "RuntimeProxyHookSlow"),
    Lost.HOOK: Signs(EventKind.FAILED_OPEN, "hook_fail_open", "RuntimeProxyFailingOpen"),
    Lost.FIELD: Signs(EventKind.FAILED_OPEN, "hook_fail_open", "RuntimeProxyFailingOpen"),
    Lost.CALL: Signs(EventKind.REFUSED, "hook_fail_closed", "RuntimeProxyRefusedByPolicy"),
    Lost.CONTAINER: Signs(EventKind.FAILED, "calls"),
    Lost.VALUE: Signs(EventKind.EDITED, "hook_fields_changed"),
}
REFUSAL = Signs(EventKind.REFUSED, "hook_refusals")
"""The signs of a refusal on purpose."""


class Kind(NamedTuple):
    """A kind of bad hook server; ``reason`` is that of the failed hook calls, ``checks`` the check of ``status``."""

    name: str
    does: str
    lost: Mapping[FailurePolicy, Lost]
    reason: Reason | None = None
    checks: Mapping[FailurePolicy, str] = {}

    def signs(self, policy: FailurePolicy) -> Signs:
        return REFUSAL if self.reason is Reason.REFUSED else SIGNS[self.lost[policy]]


IGNORE, FAIL = FailurePolicy.IGNORE, FailurePolicy.FAIL
BY_POLICY = {IGNORE: Lost.HOOK, FAIL: Lost.CALL}
BREAKERS = dict.fromkeys(FailurePolicy, "breakers")
TIME, REFUSED, CONTAINER, VALUE = (
    dict.fromkeys(FailurePolicy, lost) for lost in (Lost.TIME, Lost.CALL, Lost.CONTAINER, Lost.VALUE)
)
GONE, FIELD = {IGNORE: "plugins", FAIL: "fail_plugins"}, {IGNORE: Lost.FIELD, FAIL: Lost.CALL}
_BAD_FIELD = "sets a value that no runtime accepts, next to a good one"
KINDS = (
    Kind("hung", "accepts calls and never answers", BY_POLICY, Reason.DEADLINE, BREAKERS),
    Kind("slow", "answers late, within its timeout", TIME),
    Kind("breaking off", "aborts the connection in each answer", BY_POLICY, Reason.BROKEN_ANSWER, BREAKERS),
    Kind("crashing", "dies at each call and is started again", BY_POLICY, Reason.BROKEN_ANSWER),
    Kind("vanished", "is gone, and its registration file stays", BY_POLICY, Reason.UNREACHABLE, GONE),
    Kind("wrong: no message", "answers what is no hook message", BY_POLICY, Reason.BAD_ANSWER),
    Kind("wrong: an error", "answers each call with a gRPC error", BY_POLICY, Reason.ERROR_STATUS),
    Kind("wrong: unserved", "does not serve a hook point of its file", BY_POLICY, Reason.UNIMPLEMENTED),
    Kind("wrong: impossible", _BAD_FIELD, FIELD, Reason.BAD_ANSWER),
    Kind("wrong: refusing", "refuses each call (PERMISSION_DENIED)", REFUSED, Reason.REFUSED),
    Kind("wrong: not here", "sets a value that this machine lacks, as a CPU", CONTAINER),
    Kind("wrong: unwanted", "sets a valid value that nobody wants", VALUE),
)
