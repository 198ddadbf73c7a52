"""What each kind of bad hook server costs under each policy, how it shows, and the ways back.

The table of docs/fleets.rst, "A bad hook server": test_blast_radius.py tries each row, test_docs.py compares the page.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from runtimeproxy.errors import Reason
from runtimeproxy.observe.events import EventKind
from runtimeproxy.plugins.registration import FailurePolicy

BACK_SECONDS = 5.0
"""Each way back has its effect within so many seconds, also on a busy machine."""
MOVE, DISABLE, REPLACE = "move its file", "hook disable", "replace it"


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
    """A kind of bad hook server; ``lost`` is by policy, and ``reason`` that of the failed hook calls.

    ``waits``: each create waits for its timeout. ``opens``: the breaker opens after the fifth failure. ``checks``: the
    check of ``status`` that is not ok, by policy.
    """

    name: str
    does: str
    lost: Mapping[FailurePolicy, Lost]
    reason: Reason | None = None
    waits: bool = False
    opens: bool = False
    checks: Mapping[FailurePolicy, str] = {}

    def signs(self, policy: FailurePolicy) -> Signs:
        return REFUSAL if self.reason is Reason.REFUSED else SIGNS[self.lost[policy]]


IGNORE, FAIL = FailurePolicy.IGNORE, FailurePolicy.FAIL
BY_POLICY = {IGNORE: Lost.HOOK, FAIL: Lost.CALL}
BREAKERS = dict.fromkeys(FailurePolicy, "breakers")
TIME, REFUSED, CONTAINER, VALUE = (
    dict.fromkeys(FailurePolicy, lost) for lost in (Lost.TIME, Lost.CALL, Lost.CONTAINER, Lost.VALUE)
)

_HUNG, _ABORTING = "accepts calls and never answers", "aborts the connection in each answer"
_BAD_FIELD = "sets a value that no runtime accepts, next to a good one"
KINDS = (
    Kind("hung", _HUNG, BY_POLICY, Reason.DEADLINE, waits=True, opens=True, checks=BREAKERS),
    Kind("slow", "answers late, within its timeout", TIME),
    Kind("breaking off", _ABORTING, BY_POLICY, Reason.BROKEN_ANSWER, opens=True, checks=BREAKERS),
    Kind("crashing", "dies at each call and is started again", BY_POLICY, Reason.BROKEN_ANSWER),
    Kind(
        "vanished",
        "is gone, and its registration file stays",
        BY_POLICY,
        Reason.UNREACHABLE,
        checks={IGNORE: "plugins", FAIL: "fail_plugins"},
    ),
    Kind("wrong: no message", "answers what is no hook message", BY_POLICY, Reason.BAD_ANSWER),
    Kind("wrong: an error", "answers each call with a gRPC error", BY_POLICY, Reason.ERROR_STATUS),
    Kind("wrong: unserved", "does not serve a hook point of its file", BY_POLICY, Reason.UNIMPLEMENTED),
    Kind("wrong: impossible", _BAD_FIELD, {IGNORE: Lost.FIELD, FAIL: Lost.CALL}, Reason.BAD_ANSWER),
    Kind("wrong: refusing", "refuses each call (PERMISSION_DENIED)", REFUSED, Reason.REFUSED),
    Kind("wrong: not here", "sets a value that this machine lacks, as a CPU", CONTAINER),
    Kind("wrong: unwanted", "sets a valid value that nobody wants", VALUE),
)
