"""Editing Docker's bodies: json.loads shows the changes, compared bytes show no others (relay-rules B8)."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from runtimeproxy.docker import messages
from runtimeproxy.docker.messages import RESOURCE_TABLE, Driver, Update, driver, edit_update, to_cri, to_docker
from runtimeproxy.errors import WireError
from runtimeproxy.model.fields import NO_ADJUSTMENT, NO_RESOURCES, Adjustment, Resources, ResourceValue

GIB = 2**30

edit_pod, edit_container = partial(messages.edit_create, is_pod=True), partial(messages.edit_create, is_pod=False)

POD = (
    '{"Hostname":"web-0","Env":null,"Image":"pause:1","Labels":{"annotation.a":"1","app":"web",'
    '"io.kubernetes.docker.type":"podsandbox"},"HostConfig":{"NetworkMode":"none","ConsoleSize":[0,0],"CgroupParent":'
    '"/kubepods/pod1","OomScoreAdj":-998,"CpuShares":2,"Memory":0,"NanoCpus":0,"CpuPeriod":0,"CpuQuota":0,"CpusetCpus":"",'
    '"CpusetMems":"","MemorySwap":0,"Ulimits":null},"NetworkingConfig":null}\n'
)
CONTAINER = (
    '{"Env":["A=1","B=x=y","A=again","BARE"],"Labels":{"annotation.io.kubernetes.container.hash":"d4",'
    '"io.kubernetes.docker.type":"container"},"HostConfig":{"ShmSize":67108864,"OomScoreAdj":968,"CpuShares":512,'
    '"Memory":1073741824,"NanoCpus":0,"CgroupParent":"/kubepods/pod1","CpuPeriod":100000,"CpuQuota":50000,'
    '"CpusetCpus":"0-1","CpusetMems":"","MemorySwap":1073741824,"MemorySwappiness":null}}\n'
)
UPDATE = (
    '{"CpuShares":256,"Memory":0,"NanoCpus":0,"CgroupParent":"","CpuPeriod":0,"CpuQuota":0,"CpusetCpus":"0",'
    '"CpusetMems":"","MemorySwap":0,"PidsLimit":null,"RestartPolicy":{"Name":"","MaximumRetryCount":0}}\n'
)

ALL_RESOURCES: dict[str, ResourceValue] = {"cpu_period": 50000, "cpu_quota": -1, "cpu_shares": 1024}
ALL_RESOURCES |= {"memory_limit_in_bytes": 2 * GIB, "memory_swap_limit_in_bytes": -1, "oom_score_adj": -500}
ALL_RESOURCES |= {"cpuset_cpus": "2-3", "cpuset_mems": "1", "hugepage_limits": {"2MB": 1}, "unified": {"cpu.idle": "1"}}
ALL_SET = [('"CpuPeriod":0', '"CpuPeriod":50000'), ('"CpuQuota":0', '"CpuQuota":-1')]
ALL_SET += [('"Memory":0', '"Memory":2147483648')]
ALL_SET += [('"CpusetMems":""', '"CpusetMems":"1"'), ('"MemorySwap":0', '"MemorySwap":-1')]
"""The changes of the text of a pod's or an update's body."""
Limits = tuple[int | None, int | None]
"""Memory and swap limit, in GiB where they are above 0; None in changes means that no hook set it."""


def adjusted(**resources: ResourceValue) -> Adjustment:
    return Adjustment(resources=resources)


def host_after(body: Mapping[str, Any], **resources: ResourceValue) -> Any:
    """Return the edited HostConfig of a create with ``body`` as its HostConfig."""
    text = json.dumps({"HostConfig": body}).encode()
    result = edit_container(text, adjusted(**resources), None)
    assert edit_pod(text, adjusted(**resources), None) == result
    return json.loads(result)["HostConfig"]


def replaced(text: str, *changes: tuple[str, str]) -> bytes:
    """Return a body with these texts replaced, each of which must occur once."""
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text.encode()


def test_pod_create_is_edited() -> None:
    labels, annotations = {"new": "é", "app": "web2"}, {"a": "2", "b": "3"}
    adjustment = Adjustment(labels, annotations, {"E": "no"}, "/not/looked/at", ALL_RESOURCES)
    changes = [
        ('"annotation.a":"1"', '"annotation.a":"2"'),
        ('"app":"web"', '"app":"web2"'),
        ("-998", "-500"),
        *ALL_SET,
    ]
    changes += [('"podsandbox"}', '"podsandbox","annotation.b":"3","new":"é"}'), ("/kubepods/pod1", "/kubepods/x")]
    changes += [('"CpuShares":2', '"CpuShares":1024'), ('"CpusetCpus":""', '"CpusetCpus":"2-3"')]
    assert edit_pod(POD.encode(), adjustment, "/kubepods/x") == replaced(POD, *changes)


def test_container_create_is_edited() -> None:
    envs = {"Z": "1", "C": "", "A": "2", "BARE": "b", "B": "x=y"}
    resources: dict[str, ResourceValue] = {"cpuset_cpus": "", "oom_score_adj": 0, "cpu_quota": 20000}
    adjustment = Adjustment({"no": "label"}, {"n": "1"}, envs, None, resources)
    changes = [('"A=again","BARE"]', '"A=2","BARE=b","C=","Z=1"]'), ('"container"}', '"container","annotation.n":"1"}')]
    changes += [('"OomScoreAdj":968', '"OomScoreAdj":0'), ('"CpuQuota":50000', '"CpuQuota":20000')]
    changes += [('"CpusetCpus":"0-1"', '"CpusetCpus":""')]
    assert edit_container(CONTAINER.encode(), adjustment, None) == replaced(CONTAINER, *changes)


def test_envs_are_set_by_key() -> None:
    envs = [([], ["K=v"]), (None, ["K=v"]), (["K=1"], ["K=v"]), (["K=1", "K=2", "L=1"], ["K=1", "K=v", "L=1"])]
    envs += [(["K"], ["K=v"]), (["K", "K=1"], ["K", "K=v"]), (["K=1", "K"], ["K=1", "K=v"])]
    envs += [(["K=v", "K=1"], ["K=v", "K=v"]), (["KK=1", "k=1", "=K", "K "], ["KK=1", "k=1", "=K", "K ", "K=v"])]
    envs += [(["K=1", None, "x"], ["K=v", None, "x"])]
    for elements, after in envs:
        result = edit_container(json.dumps({"Env": elements}).encode(), Adjustment(envs={"K": "v"}), None)
        assert json.loads(result) == {"Env": after}


def test_missing_members_are_added() -> None:
    adjustment = Adjustment({"l": "1"}, {"a": "2"}, {"E": "3"}, None, {"cpu_shares": 4, "oom_score_adj": 0})
    expected = {"Labels": {"annotation.a": "2"}, "Env": ["E=3"], "HostConfig": {"CpuShares": 4, "CgroupParent": "p"}}
    for body in (b"{}", b'{"labels":null,"ENV":null,"hostConfig":null}'):
        result = json.loads(edit_container(body, adjustment, "p"))
        assert {key.lower(): value for key, value in result.items()} == {key.lower(): expected[key] for key in expected}
    assert edit_pod(b"{}", adjustment, None) == b'{"Labels":{"annotation.a":"2","l":"1"},"HostConfig":{"CpuShares":4}}'


def test_label_keys_are_case_sensitive_and_field_names_are_not() -> None:
    body = '{"LABELS":{"Annotation.a":"0","annotation.A":"0"%s},"hostconfig":{"CPUSHARE\u017f":%d,"Cpuset\u212a":""}}'
    adjustment = Adjustment(annotations={"a": "1"}, resources={"cpu_shares": 2})
    after = body % (',"annotation.a":"1"', 2)
    assert edit_container((body % ("", 1)).encode(), adjustment, None) == after.encode()


def test_unchanged_create_is_same_object() -> None:
    """A zero that a missing member means is no change; without any change the body is not even read."""
    body = CONTAINER.encode()
    for adjustment in (
        *(NO_ADJUSTMENT, adjusted(cpuset_mems=""), adjusted(hugepage_limits={"2MB": 1}, unified={"a": "b"})),
        Adjustment(annotations={"io.kubernetes.container.hash": "d4"}, envs={"A": "again", "B": "x=y"}),
        adjusted(memory_limit_in_bytes=GIB, cpu_quota=50000, cpuset_cpus="0-1"),
    ):
        for parent in (None, "/kubepods/pod1"):
            assert edit_container(body, adjustment, parent) is body
    for body in (b"{}", b'{"HostConfig":{}}', b'{"HostConfig":{"Memory":null}}'):
        assert edit_pod(body, adjusted(memory_limit_in_bytes=-1, cpuset_cpus="", cpu_quota=0), "") is body
    broken = b"\xff"
    assert edit_pod(broken, NO_ADJUSTMENT, None) is broken
    assert edit_container(broken, Adjustment(labels={"l": "1"}, cgroup_parent="/x"), None) is broken
    assert edit_update(broken, {}, NO_RESOURCES) == Update(broken, {}, ())


def test_unsupported_and_normalised_create_fields() -> None:
    assert messages.check_create_fields(ALL_RESOURCES) == (("hugepage_limits", "unified"), ())
    for memory, normalised in ((-1, ("memory_limit_in_bytes",)), (0, ()), (GIB, ())):
        changes: dict[str, ResourceValue] = {"memory_limit_in_bytes": memory, "cpu_quota": -1, "cpuset_cpus": ""}
        assert messages.check_create_fields(changes) == ((), normalised)


def in_bytes(limits: Limits) -> dict[str, ResourceValue]:
    set_by = zip(("memory_limit_in_bytes", "memory_swap_limit_in_bytes"), limits, strict=True)
    return {name: limit * GIB if limit > 0 else limit for name, limit in set_by if limit is not None}


def in_docker(limits: Limits) -> dict[str, ResourceValue]:
    return {RESOURCE_TABLE[name]: value for name, value in in_bytes(limits).items()}


def test_create_memory_and_swap() -> None:
    # The limits of a create, of its hooks, and of the request to the daemon. A container without swap stays without it.
    creates = [((1, 1), (2, None), (2, 2)), ((2, 2), (1, None), (1, 1)), ((0, 0), (1, None), (1, 1))]
    # Without a swap limit in the create the daemon's default, or unlimited swap, stays.
    creates += [((1, 0), (2, None), (2, 0)), ((1, -1), (2, None), (2, -1)), ((0, -1), (2, None), (2, -1))]
    # A swap limit of its own is only moved where the daemon would refuse it.
    creates += [((1, 3), (2, None), (2, 3)), ((1, 3), (4, None), (4, 4))]
    # Unlimited memory is 0 in a create, and a swap limit needs a memory limit.
    creates += [((1, swap), (-1, None), (0, 0)) for swap in (1, 3, 0)] + [((1, -1), (-1, None), (0, -1))]
    # A swap limit set by a hook is passed on unchecked, and so are invalid values: the daemon decides.
    creates += [((1, 1), (-1, 5), (0, 5)), ((1, 1), (2, 1), (2, 1)), ((1, 1), (2, -1), (2, -1))]
    creates += [((1, 1), (None, -1), (1, -1)), ((1, 1), (-5, None), (-5, -5))]
    for requested, changes, expected in creates:
        assert host_after(in_docker(requested), **in_bytes(changes)) == in_docker(expected)


def test_quota_and_period_replace_nano_cpus() -> None:
    for change in [{"cpu_quota": 20000}, {"cpu_quota": -1}, {"cpu_period": 50000}]:
        assert host_after({"NanoCpus": 1}, **change)["NanoCpus"] == 0
        assert "NanoCpus" not in host_after({}, **change)
        assert host_after({"nanocpus": 1}, cpu_shares=2)["nanocpus"] == 1
        assert json.loads(edit_update(b'{"NanoCpus": 1}', change, NO_RESOURCES).body)["NanoCpus"] == 0


def test_unreadable_body_raises() -> None:
    # The error, and the creates that have it; % is for limits, which are an update's body, too.
    unreadable = [("the body is not a JSON object", "[]"), ("the body is not a JSON object", "null"), ("not JSON", "{")]
    unreadable += [("HostConfig is not a JSON object", '{"HostConfig":[]}'), ("Env is not a list", '{"Env":"A=1"}')]
    unreadable += [("HostConfig twice", '{"HostConfig":{},"hostconfig":{}}'), ("Env twice", '{"Env":[],"ENV":[]}')]
    unreadable += [("annotation.a twice", '{"Labels":{"annotation.a":"1","annotation.a":"1"}}')]
    limits = [("Memory twice", '"Memory":1,"memory":1'), ("CpuShares twice", '"CpuShares":1,"cpushares":1')]
    limits += [("Memory is not a whole number", f'"Memory":{value}') for value in ('"1"', "[]")]
    limits += [("MemorySwap is not a whole number", f'"Memory":1,"MemorySwap":{value}') for value in ("1.0", "true")]
    unreadable += [(problem, f'{{"HostConfig":{{{members}}}}}') for problem, members in limits]
    unreadable_updates = [("the body is not a JSON object", "[]"), ("not JSON", "")]
    unreadable_updates += [(problem, f"{{{members}}}") for problem, members in limits if "Swap" not in problem]
    adjustment = Adjustment(annotations={"a": "s3cret"}, envs={"E": "s3cret"}, resources={"cpu_shares": 2})
    for problem, body in unreadable:
        with pytest.raises(WireError, match=problem) as caught:
            edit_container(body.encode(), adjustment, None)
        assert "s3cret" not in str(caught.value)
    for problem, body in unreadable_updates:
        with pytest.raises(WireError, match=problem):
            edit_update(body.encode(), {"cpu_shares": 2}, NO_RESOURCES)


def test_update_is_edited() -> None:
    changes = [('"CpuShares":256', '"CpuShares":1024'), ('"CpusetCpus":"0"', '"CpusetCpus":"2-3"'), *ALL_SET]
    resources = {name: ALL_RESOURCES[name] for name in RESOURCE_TABLE if name != "oom_score_adj"}
    expected = Update(replaced(UPDATE, *changes), resources, ("hugepage_limits", "oom_score_adj", "unified"))
    assert edit_update(UPDATE.encode(), ALL_RESOURCES, NO_RESOURCES) == expected


def test_unchanged_update_is_same_object() -> None:
    nothing_new = [({"memory_limit_in_bytes": limit, "cpu_quota": 0}, ("memory_limit_in_bytes",)) for limit in (-1, 0)]
    nothing_new += [({"cpuset_mems": "", "oom_score_adj": 5}, ("cpuset_mems", "oom_score_adj"))]
    nothing_new += [({"unified": {}, "hugepage_limits": {"2MB": 1}}, ("hugepage_limits", "unified"))]
    for changes, unsupported in [*nothing_new, ({"cpu_shares": 256, "cpuset_cpus": "0"}, ())]:
        body = UPDATE.encode()
        update = edit_update(body, changes, Resources(memory_limit_in_bytes=GIB, cpuset_mems="1"))
        assert update.body is body
        assert update.unsupported == unsupported
        assert update.resources == {name: value for name, value in changes.items() if value and name not in unsupported}


def test_cleared_fields_are_removed_from_update() -> None:
    reported = Resources(cpuset_cpus="1", cpu_shares=3)
    for current, unsupported in [(NO_RESOURCES, ()), (reported, ("cpu_shares", "cpuset_cpus"))]:
        update = edit_update(UPDATE.encode(), {"cpuset_cpus": "", "cpu_shares": 0, "cpu_quota": 0}, current)
        body = replaced(UPDATE, ('"CpuShares":256', '"CpuShares":0'), ('"CpusetCpus":"0"', '"CpusetCpus":""'))
        assert update == Update(body, {"cpuset_cpus": "", "cpu_shares": 0}, unsupported)


def test_update_swap() -> None:
    # The limits of an update, of the container, and of hooks, and the swap limit that the daemon gets.
    # A container without swap stays without it, whether the request or the container has no swap.
    updates = [((0, 0), (1, 1), (2, None), 2), ((0, 0), (2, 2), (1, None), 1), ((3, 0), (1, 1), (2, None), 2)]
    updates += [((3, 3), (1, 9), (2, None), 2), ((0, 0), (0, 0), (1, None), 1), ((0, 1), (1, 9), (2, None), 2)]
    # A swap limit of its own is only moved where the daemon would refuse it.
    updates += [((0, 0), (1, 3), (2, None), 3), ((0, 0), (1, 3), (4, None), 4), ((1, 3), (1, 1), (4, None), 4)]
    # At create the daemon set it to twice the memory; unlimited swap is repeated, as the daemon compares with -1.
    updates += [((0, 0), (2, 0), (3, None), 4), ((0, 0), (1, -1), (2, None), -1), ((0, -1), (1, 1), (2, None), -1)]
    # A swap limit set by a hook, and an update without one.
    updates += [((0, 0), (1, 1), (2, 1), 1), ((0, 0), (1, 1), (None, -1), -1), ((0, 0), (1, 1), (2, 0), 2)]
    # Updates without a memory limit; a container without a limit keeps none, and unchanged fields stay unchanged.
    updates += [((0, 0), (1, 1), (-1, None), 0), ((1, 1), (1, 1), (-1, None), 1), ((1, 1), (0, 0), (-1, None), 0)]
    updates += [((1, 1), (2, 2), (0, None), 0), ((0, 1), (1, 2), (0, None), 1)]
    for limits, current, change, swap in updates:
        requested, held, changes = in_docker(limits), Resources(**in_bytes(current)), in_bytes(change)
        update = edit_update(json.dumps(requested).encode(), changes, held)
        after = {
            "Memory": update.resources.get("memory_limit_in_bytes", requested["Memory"]),
            **in_docker((None, swap)),
        }
        assert json.loads(update.body) == after
        assert update.resources.get("memory_swap_limit_in_bytes", requested["MemorySwap"]) == after["MemorySwap"]
        unlimited = change[0] == -1 and not current[0]
        assert update.normalised == (("memory_limit_in_bytes",) if unlimited else ())
        if limits == (0, 0):
            alone = edit_update(b"{}", changes, held)
            assert json.loads(alone.body) == {key: value for key, value in after.items() if value}
            assert (alone.resources, alone.unsupported) == (update.resources, update.unsupported)


def test_cgroup_parent_is_converted() -> None:
    # Docker's form of a cgroup parent and CRI's, under systemd.
    slices = [("", ""), ("-.slice", "/"), ("system.slice", "/system.slice"), ("a.slice.slice", "/a.slice.slice")]
    slices += [("kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice")]
    slices += [("my.app-x.y.slice", "/my.app.slice/my.app-x.y.slice")]
    # Other paths are not changed.
    no_slices = ["/kubepods.slice/kubepods-besteffort.slice", "/kubepods/besteffort/podu-1", "kubepods/a-b.slice", "/"]
    no_slices += ["kubepods", "a-b", ".slice", "a--b.slice", "-a.slice", "a-.slice", "--.slice", "a-b.slice\n"]
    no_slices += ["a-b.Slice"]
    # Docker's form is the last name.
    paths = ["/kubepods.slice/kubepods-pod1.slice/", "kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice"]
    paths += ["/elsewhere.slice/kubepods-pod1.slice"]
    for docker, cri in slices:
        assert (to_cri(docker, Driver.SYSTEMD), to_docker(cri, Driver.SYSTEMD)) == (cri, docker)
        for value in (docker, cri, "/kubepods/besteffort/podu-1"):
            assert to_cri(value, Driver.CGROUPFS) == to_docker(value, Driver.CGROUPFS) == value
    assert [to_cri(parent, Driver.SYSTEMD) for parent in no_slices] == no_slices
    assert {to_docker(path, Driver.SYSTEMD) for path in paths} == {"kubepods-pod1.slice"}
    assert to_docker("//", Driver.SYSTEMD) == "-.slice"
    assert driver("systemd") is Driver.SYSTEMD
    assert {driver(text) for text in ("cgroupfs", "none", "", "Systemd")} == {Driver.CGROUPFS}
