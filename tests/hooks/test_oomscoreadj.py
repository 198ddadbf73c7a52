"""oomscoreadj: which annotation counts, what is taken, and what the log says of the rest."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy_hooks.koordinator import OOM_SCORE_ADJ as POD
from runtimeproxy_hooks.koordinator import OOM_SCORE_ADJ_SPEC as SPEC
from runtimeproxy_hooks.oomscoreadj import LEAST, MOST, OomScoreAdj, asked
from runtimeproxy_hooks.sdk import Malformed
from runtimeproxy_hooks.sdk.testing import HookTester
from tests.amounts import examples

LOGGER = "runtimeproxy_hooks.oomscoreadj"


@pytest.mark.parametrize(
    ("annotations", "value"),
    [
        ({SPEC: '{"main": -500, "other": 200}'}, -500),
        ({SPEC: '{"main": 200}', POD: "100"}, 200),
        ({SPEC: '{"other": 200}', POD: "100"}, 100),
        ({SPEC: '{"MAIN": 200}', POD: "100"}, 100),
        ({SPEC: '{"other": null}', POD: "100"}, 100),
        ({SPEC: "{}", POD: "100"}, 100),
        ({SPEC: "null", POD: "100"}, 100),
        ({SPEC: "", POD: "100"}, 100),
        ({SPEC: '{"main": 1000}'}, 1000),
        ({SPEC: '{"main": -1000}'}, -1000),
        ({POD: "1000"}, 1000),
        ({POD: "-1000"}, -1000),
        ({POD: "+7"}, 7),
        ({POD: "00000007"}, 7),
        ({POD: "-" + "0" * 5000 + "5"}, -5),
    ],
)
def test_what_is_asked_for_is_set(annotations: dict[str, str], value: int, caplog: pytest.LogCaptureFixture) -> None:
    for before in (None, {}, {"oom_score_adj": 968, "cpu_shares": 2}):
        changed = HookTester(OomScoreAdj()).pre_create_container(annotations=annotations, resources=before)
        assert changed.resources == {"oom_score_adj": value}
    assert not caplog.records


@pytest.mark.parametrize("annotations", [{}, {POD: ""}, {SPEC: ""}, {SPEC: '{"other": 5}'}])
def test_nothing_asked_for_is_nothing_changed(annotations: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    resources = {"oom_score_adj": 968}
    assert not HookTester(OomScoreAdj()).pre_create_container(annotations=annotations, resources=resources)
    assert not caplog.records


@pytest.mark.parametrize(
    ("annotations", "key"),
    [
        ({SPEC: "{"}, SPEC),
        ({SPEC: "[77123]"}, SPEC),
        ({SPEC: "77123"}, SPEC),
        ({SPEC: '{"main": 77123}'}, SPEC),
        ({SPEC: '{"main": 1001}', POD: "100"}, SPEC),
        ({SPEC: '{"main": -1001}', POD: "100"}, SPEC),
        ({SPEC: '{"main": "77123"}', POD: "100"}, SPEC),
        ({SPEC: '{"main": 77123.0}'}, SPEC),
        ({SPEC: '{"main": true}'}, SPEC),
        ({SPEC: '{"main": 1e2}'}, SPEC),
        ({SPEC: '{"main": 5, "other": "77123"}'}, SPEC),
        ({SPEC: '{"main": ' + "77123" * 2000 + "}"}, SPEC),
        ({SPEC: "[" * 100_000}, SPEC),
        ({POD: "1001"}, POD),
        ({POD: "-1001"}, POD),
        ({POD: "77123"}, POD),
        ({POD: "77123" * 2000}, POD),
        ({POD: "100.0"}, POD),
        ({POD: "1e2"}, POD),
        ({POD: " 100"}, POD),
        ({POD: "1_0"}, POD),
        ({POD: "٣"}, POD),
        ({POD: "-"}, POD),
        ({SPEC: '{"other": 5}', POD: "x77123"}, POD),
    ],
)
def test_what_cannot_be_read_is_logged_without_its_value(
    annotations: dict[str, str], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968}, pod="web")
    (record,) = caplog.records
    assert (record.name, record.levelno) == (LOGGER, logging.WARNING)
    assert f"default/web main keeps its oom_score_adj: annotation {key}: " in record.getMessage()
    assert "77123" not in caplog.text


@pytest.mark.parametrize("annotations", [{POD: "0"}, {POD: "-0"}, {SPEC: '{"main": 0}'}, {SPEC: '{"main": null}'}])
def test_0_cannot_be_said(annotations: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations)  # it is 0, or the runtime's own, as it stands
    assert not caplog.records
    for _ in range(2):
        assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968})
    assert caplog.messages == [
        "an oom_score_adj of 0 cannot be asked for on the wire, the kubelet's holds; said once only"
    ]


@given(st.integers(), st.integers())
@settings(max_examples=examples())
def test_a_number_is_taken_in_range_only(own: int, pods: int) -> None:
    for annotations, value in (({POD: f"{pods}"}, pods), ({SPEC: f'{{"main": {own}}}', POD: f"{pods}"}, own)):
        if LEAST <= value <= MOST:
            assert asked(annotations, "main") == value
        else:
            with pytest.raises(Malformed):
                asked(annotations, "main")


def test_only_create_is_hooked() -> None:
    assert [point.name for point in OomScoreAdj().points] == ["PreCreateContainer"]
