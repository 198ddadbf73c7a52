"""values.schema.json: the five sets are taken, what is wrong is refused, the proxy's own keys and forms are known."""

import copy
from typing import Any

import jsonschema
import pytest

from runtimeproxy.settings.options import OPTIONS
from tests.deploy.charts import DEFAULTS, SCHEMA, SETS, given, merged

VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
CONFIG = SCHEMA["properties"]["nodeInstaller"]["properties"]["config"]["properties"]
EXAMPLES: dict[str, str] = {
    "backend-runtime-mode": "Docker",
    "remote-runtime-service-endpoint": "unix:///run/containerd/containerd.sock",
    "remote-image-service-endpoint": "/run/containerd/containerd.sock",
    "hook-timeout": "500ms",
    "hook-budget": "5s",
    "hook-answer-limit": "8MiB",
    "drain-timeout": "1m",
    "originals-dir": "none",
    "state-dir": "/var/lib/other",
    "log-level": "debug",
    "log-format": "json",
}
DIGEST = "sha256:" + "0" * 64


def faults(values: dict[str, Any]) -> list[str]:
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in VALIDATOR.iter_errors(values)]


@pytest.mark.parametrize("name", SETS)
def test_sets_of_values_are_taken(name: str) -> None:
    assert faults(merged(DEFAULTS, given(name))) == []


def test_what_must_be_given_is_not_guessed() -> None:
    places = {fault.partition(":")[0] for fault in faults(DEFAULTS)}
    assert places == {"image.repository", "image.digest", "nodeInstaller.sha256"}


BAD: dict[str, Any] = {
    "nodeInstaler": {},
    "image.tag": "1",
    "image.repository": "Registry.example.com/runtimeproxy:0.2.0",
    "image.digest": "sha256:1234",
    "image.pullPolicy": "Sometimes",
    "image.pullSecrets": ["a b"],
    "metricsGroupId": 0,
    "nodeInstaller.action": "remove",
    "nodeInstaller.sha256": "sha256:" + "0" * 64,
    "nodeInstaller.configureKubelet": "true",
    "nodeInstaller.healthzPort": 70000,
    "nodeInstaller.parallel": 0,
    "nodeInstaller.config.hook-timeot": "1s",
    "nodeInstaller.config.hook-timeout": 1,
    "nodeInstaller.config.remote-runtime-service-endpoint": "tcp://127.0.0.1:2375",
    "nodeInstaller.config.koord-runtimeproxy-endpoint": "/elsewhere.sock",
    # The policy guards one label, which is on the chart's own pods.
    "nodeInstaller.config.runtime-hook-server-key": "team/skip",
    "nodeInstaller.config.runtime-hook-server-val": "yes",
    "nodeInstaller.nodeSelector": {"pool": True},
    "nodeInstaller.tolerations": [{"operator": "Exists", "key": "a", "affect": "NoSchedule"}],
    "nodeInstaller.resources": {"requests": {"memory": "lots"}},
    "hookServers": [{"hooks": ["cpuset"]}],
    "hookServers.0.name": "Has_Underscores",
    "hookServers.0.hooks": ["cpusets"],
    "hookServers.0.command": ["python"],
    "hookServers.0.hookPoints": ["PreCreate"],
    "hookServers.0.failurePolicy": "fail",
    "hookServers.0.order": 100,
    "hookServers.0.timeout": "2 seconds",
    "hookServers.0.image": {"repository": "registry.example.com/a"},
    "hookServers.0.privileged": True,
    "hookServerPods.kubeletDir": "var/lib/kubelet",
    "exporter.listen": "10.0.0.1",
    "exporter.port": "9654",
    "exporter.podMonitor.interval": "often",
    "policy.skipLabelNamespaces": ["Kube_System"],
}


@pytest.mark.parametrize("place", BAD)
def test_a_bad_value_is_refused(place: str) -> None:
    values = copy.deepcopy(
        merged(merged(DEFAULTS, given("installer")), {"hookServers": [{"name": "a", "hooks": ["gpu"]}]})
    )
    assert faults(values) == []
    *folders, last = place.split(".")
    node: Any = values
    for folder in folders:
        node = node[int(folder)] if isinstance(node, list) else node[folder]
    node[last] = BAD[place]
    assert faults(values) != []


@pytest.mark.parametrize(
    "over",
    [
        {"exporter": {"enabled": True}},
        {"exporter": {"podMonitor": {"enabled": True}}},
        {"hookServers": [{"name": "own", "command": ["a"], "hookPoints": ["PreCreateContainer"]}]},
        {"hookServers": [{"name": "own", "image": {"repository": "a", "digest": DIGEST}}]},
    ],
    ids=[
        "an exporter without a certificate",
        "a monitor without one",
        "an own one without an image",
        "an own one alone",
    ],
)
def test_incomplete_values_are_refused(over: dict[str, Any]) -> None:
    assert faults(merged(merged(DEFAULTS, given("installer")), over)) != []


@pytest.mark.parametrize("key", CONFIG)
def test_keys_of_the_configuration_are_the_proxys(key: str) -> None:
    [option] = [option for option in OPTIONS if option.name == key]
    option.parse(EXAMPLES[key], key)
    values = merged(merged(DEFAULTS, given("installer")), {"nodeInstaller": {"config": {key: EXAMPLES[key]}}})
    assert faults(values) == []
