"""oomscoreadj: which annotation applies, which values are accepted, and what is logged of invalid ones."""

import pytest

from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ as POD
from runtimeproxy_hooks.lib.koordinator import OOM_SCORE_ADJ_SPEC as SPEC
from runtimeproxy_hooks.sdk.testing import HookTester
from runtimeproxy_hooks.servers.oomscoreadj import LEAST, MOST, OomScoreAdj

Log = pytest.LogCaptureFixture

REQUESTED = [
    *(({SPEC: '{"main": -500, "b": 200}'}, -500), ({SPEC: '{"main": 200}', POD: "100"}, 200)),
    *(({SPEC: spec, POD: "100"}, 100) for spec in ('{"b": 200}', '{"MAIN": 200}', '{"b": null}', "null", "")),
    *((none, None) for none in ({}, {POD: ""}, {SPEC: '{"b": 5}'})),
    *(({POD: "+7"}, 7), ({POD: "-" + "0" * 5000 + "5"}, -5), ({POD: f"{LEAST}"}, LEAST), ({POD: f"{MOST}"}, MOST)),
]


@pytest.mark.parametrize(("annotations", "value"), REQUESTED)
def test_requested_score_is_set(annotations: dict[str, str], value: int | None, caplog: Log) -> None:
    for before in (None, {"oom_score_adj": 968, "cpu_shares": 2}):
        changed = HookTester(OomScoreAdj()).pre_create_container(annotations=annotations, resources=before)
        assert changed.resources == ({} if value is None else {"oom_score_adj": value})
    assert not caplog.records


MALFORMED = [
    *(({SPEC: text}, SPEC) for text in ("{", "[77123]", '{"main": 77123}', '{"main": 5, "b": "77123"}')),
    *(({POD: text}, POD) for text in (f"{LEAST - 1}", f"{MOST + 1}", "77123" * 2000, "1e2", " 100", "1_0", "٣", "-")),
    *(({SPEC: '{"main": 1001}', POD: "100"}, SPEC), ({SPEC: '{"b": 5}', POD: "x77123"}, POD)),
]


@pytest.mark.parametrize(("annotations", "key"), MALFORMED)
def test_malformed_score_is_logged_without_the_value(annotations: dict[str, str], key: str, caplog: Log) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968}, pod="web")
    [record] = caplog.records
    assert (record.name, record.levelname) == ("runtimeproxy_hooks.servers.oomscoreadj", "WARNING")
    assert f"default/web main keeps its oom_score_adj: annotation {key}: " in record.getMessage()
    assert "77123" not in caplog.text


@pytest.mark.parametrize("annotations", [{POD: "0"}, {POD: "-0"}, {SPEC: '{"main": 0}'}, {SPEC: '{"main": null}'}])
def test_score_of_zero_cannot_be_requested(annotations: dict[str, str], caplog: Log) -> None:
    tester = HookTester(OomScoreAdj())
    assert not tester.pre_create_container(annotations=annotations)  # it is 0, or the runtime's default, already
    for _ in range(2):
        assert not tester.pre_create_container(annotations=annotations, resources={"oom_score_adj": 968})
    words = "an oom_score_adj of 0 cannot be requested on the wire, the kubelet's holds; said once only"
    assert caplog.messages == [words]
