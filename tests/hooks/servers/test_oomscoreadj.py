"""oomscoreadj: which annotation applies, which values are accepted, and what is logged of the others."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ as POD
from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ_SPEC as SPEC
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import HookTester
from runtimeproxy_hooks.servers.oomscoreadj import LEAST, MOST, OomScoreAdj, requested_score
from tests.amounts import examples

Log = pytest.LogCaptureFixture


ASKED = [
    *(({SPEC: '{"main": -500, "other": 200}'}, -500), ({SPEC: '{"main": 200}', POD: "100"}, 200)),
    *(({SPEC: spec, POD: "100"}, 100) for spec in ('{"other": 200}', '{"MAIN": 200}', '{"other": null}')),
    *(({SPEC: spec, POD: "100"}, 100) for spec in ("{}", "null", "")),
    *((none, None) for none in ({}, {POD: ""}, {SPEC: ""}, {SPEC: '{"other": 5}'})),
    *(({POD: "+7"}, 7), ({POD: "00000007"}, 7), ({POD: "-" + "0" * 5000 + "5"}, -5)),
]


@pytest.mark.parametrize(("annotations", "value"), ASKED)
def test_requested_value_is_set(annotations: dict[str, str], value: int | None, caplog: Log) -> None:
    for before in (None, {}, {"oom_score_adj": 968, "cpu_shares": 2}):
        changed = HookTester(OomScoreAdj()).pre_create_container(annotations=annotations, resources=before)
        assert changed.resources == ({} if value is None else {"oom_score_adj": value})
    assert not caplog.records


UNREADABLE = [
    *(({SPEC: text}, SPEC) for text in ("{", "[77123]", '{"main": 77123}', '{"main": 5, "other": "77123"}')),
    *(({SPEC: text, POD: "100"}, SPEC) for text in ('{"main": 1001}', '{"main": "77123"}')),
    *(({POD: text}, POD) for text in ("77123", "77123" * 2000, "100.0", "1e2", " 100", "1_0", "٣", "-")),
    ({SPEC: '{"other": 5}', POD: "x77123"}, POD),
]


@pytest.mark.parametrize(("annotations", "key"), UNREADABLE)
def test_unreadable_value_is_logged_and_not_shown(annotations: dict[str, str], key: str, caplog: Log) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968}, pod="web")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("runtimeproxy_hooks.servers.oomscoreadj", logging.WARNING)
    assert f"default/web main keeps its oom_score_adj: annotation {key}: " in record.getMessage()
    assert "77123" not in caplog.text


@pytest.mark.parametrize("annotations", [{POD: "0"}, {POD: "-0"}, {SPEC: '{"main": 0}'}, {SPEC: '{"main": null}'}])
def test_zero_cannot_be_requested(annotations: dict[str, str], caplog: Log) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations)  # it is 0, or the runtime's own, and stays so
    assert not caplog.records
    for _ in range(2):
        assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968})
    words = "an oom_score_adj of 0 cannot be requested on the wire, the kubelet's holds; said once only"
    assert caplog.messages == [words]


NUMBERS = st.integers() | st.sampled_from([LEAST - 1, LEAST, MOST, MOST + 1])


@given(NUMBERS, NUMBERS)
@settings(max_examples=examples())
def test_number_is_taken_in_range_only(own: int, pods: int) -> None:
    for annotations, value in (({POD: f"{pods}"}, pods), ({SPEC: f'{{"main": {own}}}', POD: f"{pods}"}, own)):
        if LEAST <= value <= MOST:
            assert requested_score(annotations, "main") == value
        else:
            with pytest.raises(Malformed):
                requested_score(annotations, "main")
