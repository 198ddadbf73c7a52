"""Koordinator's JSON and quantities by Go's rules, and the node's settings: each key's rule, and the life of the file.

The formulas are shown by the tests of the hooks that use them.
"""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy_hooks.lib import koordinator
from runtimeproxy_hooks.lib import node as node_module
from runtimeproxy_hooks.lib.koordinator import DEVICE_ALLOCATED, MAX_INT64, Objects, member, milli, quantity, read_json
from runtimeproxy_hooks.lib.node import MAX_BYTES, GroupIdentities, Node, Pool, RdtClass, Settings, parse
from runtimeproxy_hooks.sdk import Malformed
from tests.hooks.nodes import tree

Log, Patch = pytest.LogCaptureFixture, pytest.MonkeyPatch
KINDS = {
    **{dict: "a JSON object", list: "a list", Objects: "a list of JSON objects", str: "a text", float: "a number"},
    **{int: "a whole number of 64 bits", bool: "true or false"},
}
SECRET = "canary"


def read(text: str, *kind: type) -> Any:
    return read_json({DEVICE_ALLOCATED: text}, DEVICE_ALLOCATED, kind or tuple(KINDS))


def read_member(text: str, kind: Any) -> Any:
    return member(read(f'{{"a": {text}}}'), "a", kind)


INVALID_JSON = (
    *("{", " ", SECRET, f'{{"{SECRET}": 1,}}', f"{{'{SECRET}': 1}}", '{"a": 1} {}', '\ufeff{"a": 1}', '{"a": "\x00"}'),
    *("NaN", '{"a": -Infinity}', '{"a": 1e999}', "1" * 5000, "[" * 200_000, '{"a":' * 200_000),
)


@pytest.mark.parametrize("text", INVALID_JSON, ids=lambda text: ascii(text[:20]))
def test_invalid_json_is_malformed_and_not_shown(text: str) -> None:
    with pytest.raises(Malformed, match=f"^annotation {DEVICE_ALLOCATED}: not JSON") as caught:
        read(text)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("spaces", [0, 5000])  # cached, and too long for the cache
def test_error_of_cached_text_names_its_annotation(spaces: int) -> None:
    text = '{"a": {"b": "x"}}' + " " * spaces
    for key in ("one", "two", "one"):
        value = read_json({key: text}, key)
        assert value == {"a": {"b": "x"}}
        with pytest.raises(Malformed, match=f"annotation {key}"):
            member(member(value, "a", dict), "b", int)
        with pytest.raises(Malformed, match=f"annotation {key}: not JSON, from character {len(text)} on"):
            read_json({key: text + "}"}, key)
    for number in range(100):
        assert read_json({"key": f"[{number}]"}, "key") == [number]
    assert koordinator._read.cache_info().currsize == koordinator._READ_TEXTS


MEMBERS = [
    *(('{"BUSid": "a"}', "a"), ('{"bu\u017fID": "a"}', "a"), ('{"busID": ""}', "")),
    *(('{"busID": "a", "BUSID": "b"}', "b"), ('{"busID": "a", "BUSID": "b", "busID": "c"}', "c")),
    *(('{"BUSID": "b", "busID": "a"}', "a"), ('{"busid": "b", "BUSID": null}', "b")),
    *((text, "default") for text in ('{"busID": null}', '{"b": 1}', "null", "")),
]


@pytest.mark.parametrize(("text", "expected"), MEMBERS)
def test_member_is_matched_as_in_go(text: str, expected: str) -> None:
    assert member(read(text), "busID", str, "default") == expected


TYPED: list[tuple[str, set[Any]]] = [
    *(("{}", {dict}), ("true", {bool}), ("[]", {list, Objects}), ('[{"b": 1}, null]', {list, Objects})),
    *(("[{}, []]", {list}), ('"\\ud83d\\ude00"', {str}), ('"x\\udfff"', set()), ("-1", {int, float})),
    *((str(MAX_INT64), {int, float}), (str(MAX_INT64 + 1), {float}), ("1e3", {float})),
]


@pytest.mark.parametrize(("text", "kinds"), TYPED)
def test_member_of_wrong_type_is_malformed(text: str, kinds: set[type]) -> None:
    for kind in KINDS:
        if kind in kinds:
            assert read_member(text, kind) == json.loads(text)
        else:
            with pytest.raises(Malformed, match=rf"^annotation {DEVICE_ALLOCATED}: a must be {KINDS[kind]}$"):
                read_member(text, kind)
    for other in ("[]", '"x"', "1.5", "true"):
        with pytest.raises(Malformed, match=r"^annotation .*: the value must be a JSON object$"):
            read(other, dict)
        with pytest.raises(Malformed, match=r"^what should hold gpu: must be a JSON object$"):
            member(read(other), "gpu", list)
    assert read("null", dict) is None


QUANTITIES = [
    *((0, 0, 0), (-3, -3, -3000), (True + 1, 2, 2000), ("+5", 5, 5000), (" 5\n", 5, 5000), ("007", 7, 7000)),
    *(("1.", 1, 1000), (".5", 1, 500), ("500m", 1, 500), ("0.1m", 1, 1), ("-0.1m", -1, -1), ("-1.5", -2, -1500)),
    *((f"1{unit}", 1, least) for unit, least in (("n", 1), ("u", 1), ("m", 1), ("", 1000), ("e-3", 1))),
    *((f"1{unit}", 1000**n, 1000 ** (n + 1)) for n, unit in enumerate("kMGTP", 1)),
    *((f"1{unit}i", 1024**n, 1024**n * 1000) for n, unit in enumerate("KMGTP", 1)),
    *((text, 1000, 1_000_000) for text in ("1e3", "1E3", "1e+3", "1e0000003")),
    *(("9007199254740993", 9007199254740993, 9007199254740993000), ("0." + "0" * 61 + "1", 1, 1)),
    *(("0e999999999", 0, 0), ("0e-999999999", 0, 0), ("1e-999999999", 1, 1), ("-1e-999999999", -1, -1)),
    # A number of JSON keeps its text: a double cannot represent these.
    *((read("9007199254740993.0"), 9007199254740993, 9007199254740993000), (read("1.5"), 2, 1500)),
    (read("0.1000000000000000055511151231257827"), 1, 101),
]


@pytest.mark.parametrize(("value", "rounded", "thousandths"), QUANTITIES)
def test_quantity_is_exact_and_rounded_up(value: Any, rounded: int, thousandths: int) -> None:
    assert (quantity(value, "x"), milli(value, "x")) == (rounded, thousandths)


TOO_GREAT = [2**63, -(2**63), "9223372036854775808", "8Ei", "-10E", "1e19", "1e999999999", f"{MAX_INT64}.1"]
NO_QUANTITIES = [
    *("", " ", "-", ".", "Gi", "m", "e3", "1e", "1e+", "1 Gi", "1gi", "1K", "1Kim", "1e3Ki", "1_000", "1" * 65, "1,5"),
    *("1.2.3", "--1", "0x10", "1/2", "inf", "\u0663", "1\n1", SECRET, "1e" + "9" * 63, 10**70, float("nan"), True),
    *(None, [], {"a": 1}),
]


@pytest.mark.parametrize("value", [*TOO_GREAT, *NO_QUANTITIES])
def test_malformed_quantity_is_error_and_not_shown(value: Any) -> None:
    words = "^gpu-memory: beyond 64 bits" if value in TOO_GREAT else "^gpu-memory: not a quantity"
    for reads in (quantity, milli):
        with pytest.raises(Malformed, match=words) as caught:
            reads(value, "gpu-memory")
        assert SECRET not in str(caught.value)


# The node.

RDT = {"LSR": RdtClass(False, (0, 100), 100), "LS": RdtClass(False, (0, 100), 100), "BE": RdtClass(False, (0, 30), 100)}
IDENTITIES = GroupIdentities(enable=False, lsr=2, ls=2, be=-1)
DEFAULTS = Settings(1.0, "", (), (), False, "none", "", True, RDT, IDENTITIES)


TWO_POOLS = "shared-pools: [{socket: 0, node: 0, cpuset: '0-3'}, {socket: 1, node: 1, cpuset: '8,10-11'}]"
TWO_PARSED_POOLS = Pool(0, 0, "0-3"), Pool(1, 1, "8,10-11")
SWITCHES = (("be_cpu_manager", True), ("unset_cpu_quota", False), ("kubelet_cpu_manager_policy", "static"))
TWO_CLASSES = "rdt: {LSR: {enable: true, l3: [95, 100], mb: 90}, LS: {l3: [0, 1], mb: 1}}"
TWO_PARSED = {"LSR": RdtClass(True, (95, 100), 90), "LS": RdtClass(False, (0, 1), 1), "BE": RdtClass(l3=(0, 30))}
SETTINGS = [
    *((f"cpu-normalization-ratio: {text}", "cpu_normalization_ratio", float(text)) for text in ("2", ".5", "1.5e+1")),
    *((f"system-cpuset: {text}", "system_cpuset", text.strip("'")) for text in ("0-1", "010", "08,09", "''")),
    *((TWO_POOLS, "shared_pools", TWO_PARSED_POOLS), ("shared-pools: [{}]", "shared_pools", (Pool(0, 0, ""),))),
    ("be-shared-pools: [{node: 3, cpuset: 7}]", "be_shared_pools", (Pool(0, 3, "7"),)),
    *((f"{key.replace('_', '-')}: {str(value).lower()}", key, value) for key, value in SWITCHES),
    ("cpu-suppress-policy: cfsQuota", "cpu_suppress_policy", "cfsQuota"),
    *(("rdt: {BE: }", "rdt", RDT), (TWO_CLASSES, "rdt", TWO_PARSED)),
    ("group-identity: {enable: true, LSR: 1, LS: 0}", "group_identity", GroupIdentities(True, 1, 0, -1)),
]


@pytest.mark.parametrize(("text", "attribute", "expected"), SETTINGS)
def test_key_changes_only_its_setting(text: str, attribute: str, expected: Any) -> None:
    assert parse(text.encode(), "node.yaml") == replace(DEFAULTS, **{attribute: expected})
    for nothing in ("", "# nothing\n", "null", "{}", "rdt:\nshared-pools:\nsystem-cpuset: ~\n"):
        assert parse(nothing.encode(), "node.yaml") == Settings() == DEFAULTS


RATIO = "cpu-normalization-ratio must be a number above 0"
POLICY = "cpu-suppress-policy must be cfsQuota or cpuset; without the key the default holds"
MANAGER = "kubelet-cpu-manager-policy must be none or static; without the key the default holds"
CPUS = 'must be a list of CPUs, n and n-m with n <= m, like "0-3,8"'
PERCENTS = "rdt.BE.l3 must be [start, end] in whole percent, 0 <= start < end <= 100"
MB = "rdt.LS.mb must be a whole number from 1 to 100"
SETTINGS_KEYS = "cpu-normalization-ratio, cpu-suppress-policy, shared-pools, be-shared-pools, be-cpu-manager, "
SETTINGS_KEYS += "kubelet-cpu-manager-policy, system-cpuset, unset-cpu-quota, rdt, group-identity"
MAPPING = f"must be a mapping with some of the keys {SETTINGS_KEYS}"
NO_RATIOS = ("0", "-1", ".inf", ".nan", "x", "true", "[1]", "1:30.5", "1_0", "010", f"1{'0' * 400}")
NO_CPUSETS = ("0-", "[0]", "2024-01-01", '"0\\n"', "'\u0663'", "7-0", "0-12345678901", "1:30", "0_1", "0x1", "+1")
NO_PERCENTS = ("30", "[0, 5, 9]", "[a, b]", "[0, 3.0]", "[-1, 5]", "[5, 101]", "[5, 5]", "[false, 5]")
NO_MB = ("0", "101", "50.0", "'50'", "true", "050", "0:50")
INVALID = [
    *((f"cpu-normalization-ratio: {value}", RATIO) for value in NO_RATIOS),
    *((f"cpu-suppress-policy: {value}", POLICY) for value in ("CFSQuota", "1", "[]", "''")),
    ("kubelet-cpu-manager-policy: false", MANAGER),
    *((f"system-cpuset: {value}", f"system-cpuset {CPUS}") for value in NO_CPUSETS),
    *((f"rdt: {{BE: {{l3: {value}}}}}", PERCENTS) for value in NO_PERCENTS),
    *((f"rdt: {{LS: {{mb: {value}}}}}", MB) for value in NO_MB),
    ("be-cpu-manager: 1", "be-cpu-manager must be true or false"),
    ("shared-pools: {}", "shared-pools must be a list of socket, node, cpuset"),
    ("shared-pools: [0-3]", "shared-pools[0] must be a mapping with some of the keys socket, node, cpuset"),
    ("shared-pools: [{}, {cpuset: x}]", f"shared-pools[1].cpuset {CPUS}"),
    ("shared-pools: [{node: -1}]", f"shared-pools[0].node must be a whole number from 0 to {2**31 - 1}"),
    ("be-shared-pools: [{cpus: 1}]", "unknown key 'be-shared-pools[0].cpus'; did you mean cpuset?"),
    ("rdt: {BE: true}", "rdt.BE must be a mapping with some of the keys enable, l3, mb"),
    ("rdt: {be: {}}", "unknown key 'rdt.be'; did you mean BE?"),
    ("group-identity: {LS: 3}", "group-identity.LS must be a whole number from -1 to 2"),
    ("1: 1", f"unknown key '1'; there are {SETTINGS_KEYS}"),
    (f"{'z' * 900}: 1", f"unknown key '{'z' * 64}'; there are {SETTINGS_KEYS}"),
    ("rdt: {}\n\nrdt: {}", "'rdt' is in line 1 and in line 3: remove one"),
    ("&a [*a]", f"the file {MAPPING}"),
    ("[" * 50, "more than 10 levels deep; the settings have three"),
    ("#" * (MAX_BYTES + 1), f"longer than {MAX_BYTES} bytes; the settings are a few lines"),
]


@pytest.mark.parametrize(("text", "error"), INVALID, ids=lambda value: value[:60].replace("[" * 50, "deep"))
def test_invalid_value_is_error_with_file_key_and_rule(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "/etc/node.yaml")
    assert str(caught.value) == f"/etc/node.yaml: {error}"


NO_YAML = [b"{", b"\xff\xfe\xfd", b"\x00", b"[" * 100_000, b"!!python/object/apply:os.getcwd []", b"rdt: *gone"]


@pytest.mark.parametrize("content", NO_YAML)
def test_invalid_yaml_is_error_of_one_line(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^node: this is not YAML: [^\n]+$"):
        parse(content, "node")


RATIO_IS = "cpu-normalization-ratio:"
LOADED, MISSING = ": node settings applied", " is not there: the default settings hold"
LIFE = [
    ("", 1, "INFO", " is empty: the default settings hold"),  # written in place, incomplete
    ("rdt: 7", 1, "ERROR", ": rdt must be a mapping with some of the keys LSR, LS, BE; the default settings hold"),
    (f"{RATIO_IS} 2", 2, "INFO", LOADED),
    (f"{RATIO_IS} 2.5", 2.5, "INFO", LOADED),
    ("", 2.5, "INFO", " is empty: the last good settings hold"),
    (f"{RATIO_IS} x", 2.5, "ERROR", f": {RATIO}; the last good settings hold"),
    ("3", 2.5, "ERROR", f": the file {MAPPING}; the last good settings hold"),
    ("{}", 1, "INFO", LOADED),
    (None, 1, "WARNING", MISSING),
    (f"{RATIO_IS} 3", 3, "INFO", LOADED),
]


ODD_FILES = [(True, os.mkfifo), (False, Path.mkdir), (False, lambda path: path.symlink_to(path))]


@pytest.mark.parametrize(("usual", "make"), ODD_FILES)
def test_each_change_of_file_is_logged_once(
    tmp_path: Path, caplog: Log, monkeypatch: Patch, usual: bool, make: Any
) -> None:
    file = tmp_path / "node.yaml"
    monkeypatch.setattr(node_module, "DEFAULT_FILE", file if usual else tmp_path / "unusual")
    caplog.set_level(logging.INFO)
    node = Node(file)
    for text, expected, level, words in [(None, 1, "INFO" if usual else "WARNING", MISSING), *LIFE]:
        if text is not None:
            file.write_text(text)
        elif file.exists():
            file.unlink()
        assert [node.settings.cpu_normalization_ratio for _ in range(3)] == [expected] * 3
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, f"{file}{words}")]
        caplog.clear()
    assert Node(None).settings == DEFAULTS
    assert not caplog.records
    file.unlink()
    make(file)
    assert node.settings == node.settings
    [message] = caplog.messages
    assert str(file) in message


def test_config_map_change_is_found_and_not_reverted(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    for version in ("1.5", "2.5"):
        [file] = tree(tmp_path, {f"{version}/node.yaml": f"{RATIO_IS} {version}"})
        os.utime(file, ns=(0, 0))
    (tmp_path / "..data").symlink_to("1.5")
    (tmp_path / "node.yaml").symlink_to("..data/node.yaml")
    node = Node(tmp_path / "node.yaml")
    assert node.settings.cpu_normalization_ratio == 1.5
    assert node.settings is node.settings
    (tmp_path / "new").symlink_to("2.5")
    (tmp_path / "new").rename(tmp_path / "..data")
    assert node.settings.cpu_normalization_ratio == 2.5
    seen, late = node_module._state, iter([None])  # a slow thread sees the state before the file existed
    monkeypatch.setattr(node_module, "_state", lambda path: next(late, seen(path)))
    caplog.set_level(logging.INFO)
    assert (node.settings.cpu_normalization_ratio, next(late, "used")) == (2.5, "used")
    assert not caplog.records
