"""The chart in a real cluster: Kubernetes' own API server, controllers and kubelet, containerd, and a real systemd.

The test follows docs/kubernetes.rst from the first installation to the removal, with its commands. A foreign pod runs
all the time; the kubelet probes it each second by an exec, through the proxy as soon as that listens.
"""

import hashlib
import json
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.settings.version import VERSION
from tests.documents import block, blocks
from tests.engines import cgroups
from tests.engines.images import BUSYBOX_IMAGE
from tests.machines import kubernetes
from tests.machines.kubernetes import NODE, Cluster
from tests.machines.machine import Machine, debian
from tests.machines.node import SOCKET
from tests.soak.conftest import MARKS, NEWER, Findings, built, contains

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

PAGE = "docs/kubernetes.rst"
IMAGE = "skopeo copy oci-archive:runtimeproxy_VERSION_image.tar docker://REGISTRY/runtimeproxy:VERSION"
RELEASE, NAMESPACE = "rp-canary", "kube-system"
NAME = f"{RELEASE}-runtimeproxy"
INSTALLER = f"{NAME}-installer"
DROP_INS = "/etc/systemd/system/kubelet.service.d"
DROP_IN, SICK = f"{DROP_INS}/90-runtimeproxy.conf", f"{DROP_INS}/10-sick.conf"
SKIP = "runtimeproxy.koordinator.sh/skip-hookserver"
STATE = "runtimeproxy.koordinator.sh/installer-state"
DEVICES = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 3}]})}
EXPORTER, PORT = "runtimeproxy-exporter", 9654
CHANGE_SECONDS = 300.0
"""Timeout of a change of the node: its kubelet is watched for a minute."""
_CERTIFICATES = f"""
cd /root
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=authority -days 2
for name in {EXPORTER} prometheus; do
    openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
    echo "subjectAltName=DNS:$name" >$name.ext
    openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out $name.crt -days 2 -extfile $name.ext
done
"""


class Rollout:
    """The life of a release of the chart; each method is a step."""

    def __init__(self, cluster: Cluster, dist: Path, newer: Path, findings: Findings) -> None:
        self._cluster, self._machine, self._findings = cluster, cluster.machine, findings
        self._old, self._new = self._put_image(dist, VERSION), self._put_image(newer, NEWER)
        [chart] = dist.glob("*.tgz")
        self._chart = f"/root/{chart.name}"
        self._machine.copy(chart, self._chart)
        self._values: dict[str, Any] = {**self._old}

    def _put_image(self, dist: Path, version: str) -> dict[str, Any]:
        """Push a version's image to the registry and to containerd; return its values."""
        [image], [archive] = dist.glob("*.tar"), dist.glob("*.tar.gz")
        self._machine.copy(image, f"/root/{image.name}")
        text = block("docs/release.rst", IMAGE).text
        self._cluster.shell("sh", "-ec", text.replace("VERSION", version).replace("REGISTRY", kubernetes.REGISTRY))
        index = subprocess.run(["tar", "-xOf", image, "index.json"], capture_output=True, check=True).stdout
        [manifest] = json.loads(index)["manifests"]
        return {
            "image": {"repository": f"{kubernetes.REGISTRY}/runtimeproxy", "digest": manifest["digest"]},
            "nodeInstaller": {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        }

    def install_next_to_a_pod(self) -> None:
        self._run_pod("web", livenessProbe={"exec": {"command": ["/bin/true"]}, "periodSeconds": 1})
        self._process = self._start_of_its_process()
        self._machine.write("/root/canary.yaml", yaml.safe_dump(self._values))
        self._documented("helm install")
        self._wait_for("Installed")
        contains(self._machine.run("runtimeproxy", "in-use"), "nobody uses")

    def recover_unhealthy_kubelet_and_configure_it(self) -> None:
        """A kubelet that fails with the proxy's drop-in gets its old configuration back, until the page's retry."""
        self._machine.write(SICK, f"[Service]\nExecStartPre=/usr/bin/test ! -e {DROP_IN}\n")
        self._machine.run("systemctl", "daemon-reload")
        self._upgrade(nodeInstaller={"configureKubelet": True, "config": {"hook-timeout": "3s"}})
        self._wait_for("RolledBack", "kubelet")
        self._cluster.until(lambda: self._cluster.ready() == "True", "the node to be ready")
        self._check_undisturbed("a kubelet that did not start with the proxy")
        self._machine.run("rm", SICK)
        self._machine.run("systemctl", "daemon-reload")
        self._cluster.kubectl("annotate", "node", NODE, f"{STATE}-")
        [pod] = self._pods("node-installer")
        self._cluster.kubectl("delete", "pod", pod["metadata"]["name"], f"--namespace={NAMESPACE}")
        self._wait_for("Installed")
        contains(self._machine.show("kubelet.service", "ExecStart"), SOCKET.removeprefix("/run"))
        contains(self._machine.run("runtimeproxy", "in-use", check=False), "kubelet", "connection")
        self._check_undisturbed("pointing the kubelet at the proxy")

    def restart_proxy(self) -> None:
        for words in (["restart"], ["kill", "--signal=KILL"]) * 2:
            self._machine.run("systemctl", *words, "runtimeproxy.service")
            time.sleep(5)  # some of the kubelet's probes
        self._check_undisturbed("2 restarts and 2 kills of the proxy")

    def add_hook_servers_and_exporter(self) -> None:
        self._machine.run("sh", "-ec", _CERTIFICATES)
        files = ("ca.crt", f"tls.crt={EXPORTER}.crt", f"tls.key={EXPORTER}.key")
        secret = ("create", "secret", "generic", "exporter", f"--namespace={NAMESPACE}")
        self._cluster.kubectl(*secret, *(f"--from-file={file}" for file in files))
        gpu = {"name": "gpu", "hooks": ["gpu"], "failurePolicy": "Fail"}
        limits: dict[str, Any] = {"name": "limits", "hooks": ["batchresource", "cpunormalization"]}
        limits |= {"node": {"cpu-normalization-ratio": 2}}
        # An image that was loaded into containerd, not pulled from a registry.
        limits |= {"image": self._old["image"] | {"repository": "docker.io/library/runtimeproxy"}}
        self._upgrade(hookServers=[gpu, limits], exporter={"enabled": True, "tlsSecret": "exporter"})
        for part in ("hook-gpu", "hook-limits", "exporter"):
            self._rolled_out(f"{NAME}-{part}")
        self._machine.until(lambda: "limits" in self._machine.run("runtimeproxy", "hook", "ls"), "both hook servers")

    def run_hooked_pod(self) -> None:
        """Its exec and port-forward bypass the proxy, since the runtime's answers contain another address."""
        serve = "env; env >/tmp/env; exec /bin/busybox httpd -f -p 8080 -h /tmp"
        self._run_pod("hooked", {"annotations": DEVICES}, command=["/bin/sh", "-c", serve])
        forward = ("kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "port-forward", "pod/hooked", "18080:8080")
        self._machine.run("systemd-run", "--unit=forwarded", *forward)
        fetch = ("curl", "--silent", "http://127.0.0.1:18080/env")
        self._cluster.until(lambda: self._machine.run(*fetch, check=False), "the forwarded port")
        texts = [self._cluster.kubectl("exec", "hooked", "--", "env"), self._cluster.kubectl("logs", "hooked")]
        texts.append(self._machine.run(*fetch))
        devices = [gpu for text in texts for gpu in re.findall("^NVIDIA_VISIBLE_DEVICES=(.*)$", text, re.MULTILINE)]
        self._findings.equal("GPU of a hooked pod, by exec, in its log and by a forwarded port", devices, ["3"] * 3)
        self._machine.run("systemctl", "stop", "forwarded.service")
        self._cluster.kubectl("delete", "pod", "hooked", "--grace-period=1")

    def resize_scaled_pod(self) -> None:
        """Resize a pod in place whose CPU quota a hook server halves.

        The kubelet reads the runtime's value as the effective one, and must not retry forever.
        """

        def quota() -> cgroups.Value:
            file = cgroups.inside_file("cpu_quota")
            return cgroups.parse("cpu_quota", self._cluster.kubectl("exec", "scaled", "--", "cat", file))

        def is_resized() -> bool:
            conditions = self._cluster.json("pod", "scaled")["status"].get("conditions", ())
            return quota() != before and not any(each["type"].startswith("PodResize") for each in conditions)

        self._run_pod("scaled", resources={"requests": {"cpu": "200m"}, "limits": {"cpu": "400m"}})
        before, larger = quota(), {"requests": {"cpu": "300m"}, "limits": {"cpu": "600m"}}
        patch = json.dumps({"spec": {"containers": [{"name": "main", "resources": larger}]}})
        self._cluster.kubectl("patch", "pod", "scaled", "--subresource=resize", f"--patch={patch}")
        self._cluster.until(is_resized, "the resize")
        self._findings.equal("CPU quota that is halved, and after a resize", (before, quota()), (20000, 30000))
        [status] = self._cluster.json("pod", "scaled")["status"]["containerStatuses"]
        shown = f"{status['resources']['limits']['cpu']}, restarts: {status['restartCount']}"
        self._findings.equal("the CPU limit of 600m as kubectl get pod shows it then", shown, "300m, restarts: 0")
        self._cluster.kubectl("delete", "pod", "scaled", "--grace-period=1")

    def scrape(self) -> None:
        """Scrape as the PodMonitor's Prometheus does; the status is 000 without an answer."""

        def status(*credentials: str) -> str:
            [pod] = self._pods("exporter")
            at, curl = f"{EXPORTER}:{PORT}", ("curl", "--silent", "--output", "/root/metrics")
            server = ("--cacert", "ca.crt", "--resolve", f"{at}:{pod['status']['podIP']}", f"https://{at}/metrics")
            return self._cluster.shell(*curl, "--write-out", "%{http_code}", *credentials, *server, check=False)

        credentials = ("--cert", "prometheus.crt", "--key", "prometheus.key")
        self._findings.equal("status of a scrape without a certificate", status(), "000")
        self._findings.equal("status of a scrape", status(*credentials), "200")
        self._documented("kubectl delete pods")
        self._rolled_out(f"{NAME}-exporter")
        self._findings.equal("status of a scrape of the next pod", status(*credentials), "200")

    def limit_who_may_skip(self) -> None:
        skips, apply = _pod("skips", {"labels": {SKIP: "true"}}), ("kubectl", "apply", "-f", "-")
        refused = self._cluster.shell(*apply, input=json.dumps(skips), check=False)
        contains(refused, "takes a pod away from every hook server", NAMESPACE)
        refused = self._cluster.kubectl("label", "pod", "web", f"{SKIP}=true", check=False)
        contains(refused, "takes a pod away from every hook server")
        skips["metadata"]["namespace"] = NAMESPACE
        self._cluster.shell(*apply, input=json.dumps(skips))
        contains(self._documented("kubectl get pods -A"), "skips", INSTALLER)
        self._cluster.kubectl("delete", "pod", "skips", f"--namespace={NAMESPACE}", "--grace-period=1")

    def upgrade_and_downgrade(self) -> None:
        """A configuration without a runtime, and an older version unless allowed, change nothing."""
        admin = AdminClient(str(self._machine.path("/run/koord-runtimeproxy/admin.sock")))
        good = self._values["nodeInstaller"]
        self._upgrade(nodeInstaller={"config": {"remote-runtime-service-endpoint": "/run/nobody.sock"}})
        self._wait_for("Refused", "/run/nobody.sock")
        contains(self._machine.run("cat", "/etc/runtimeproxy/config.yaml"), "hook-timeout")
        self._upgrade(image=self._new["image"], nodeInstaller=good | self._new["nodeInstaller"])
        self._wait_for("Installed")
        version = admin.with_new_deadline().call("version")["version"]
        self._findings.equal("the version that answers after the upgrade", version, NEWER)
        self._check_undisturbed("a bad configuration and an upgrade")
        self._cluster.shell("helm", "rollback", RELEASE, f"--namespace={NAMESPACE}")
        self._wait_for("Refused", "allowDowngrade")
        self._upgrade(image=self._old["image"], nodeInstaller={**self._old["nodeInstaller"], "allowDowngrade": True})
        self._wait_for("Installed")
        version = admin.with_new_deadline().call("version")["version"]
        self._findings.equal("the version that answers after the downgrade", version, VERSION)
        self._check_undisturbed("a downgrade")

    def remove(self) -> None:
        self._upgrade(nodeInstaller={"action": "uninstall"}, hookServers=[], exporter={})
        self._wait_for("Removed")
        self._cluster.shell("helm", "uninstall", RELEASE, f"--namespace={NAMESPACE}")
        assert "koord-runtimeproxy" not in self._machine.show("kubelet.service", "ExecStart")
        places = f"/opt/runtimeproxy* /etc/systemd/system/*runtimeproxy* {DROP_INS}/*"
        leftovers = self._machine.run("sh", "-c", f"ls -d {places} 2>/dev/null || true")
        self._findings.equal("files left on the node", leftovers.split(), [])
        kinds = "all,leases,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies"
        everything = ("get", kinds, "--all-namespaces", "--output=name")
        self._cluster.until(lambda: RELEASE not in self._cluster.kubectl(*everything), "the cluster to have no part")
        self._check_undisturbed("the removal")

    def _upgrade(self, **values: Any) -> None:
        """Upgrade the release with other values."""
        for name, value in values.items():
            self._values[name] = {**self._values.get(name, {}), **value} if isinstance(value, dict) else value
        self._machine.write("/root/canary.yaml", yaml.safe_dump(self._values))
        self._cluster.shell("helm", "upgrade", RELEASE, self._chart, f"--namespace={NAMESPACE}", "--values=canary.yaml")

    def _documented(self, start: str) -> str:
        """Run the page's block that begins with this text."""
        [text] = [block.text for block in blocks(PAGE) if block.first.startswith(start)]
        return self._cluster.shell("sh", "-ec", text.replace("NODE", NODE, 1) if "delete" in start else text)

    def _wait_for(self, state: str, reason: str = "") -> None:
        """Wait until the page's command shows a state of the node; a good one must come from the current pod."""
        if state in ("Installed", "Removed"):
            self._rolled_out(INSTALLER)
        shown = re.compile(rf".*\n{NODE} +{state} +.*{reason}.*\n?")
        self._cluster.until(
            lambda: shown.fullmatch(self._documented("kubectl get nodes")), f"the node to be {state}", CHANGE_SECONDS
        )

    def _rolled_out(self, name: str) -> None:
        limit = f"--timeout={CHANGE_SECONDS:.0f}s"
        self._cluster.kubectl("rollout", "status", f"daemonset/{name}", f"--namespace={NAMESPACE}", limit)

    def _check_undisturbed(self, what: str) -> None:
        """Check that the foreign pod still runs, none of its probes failed, and the node is ready."""
        same = f"the pod's process to be the same after {what}"  # a kubelet that has just begun knows no pod yet
        self._cluster.until(lambda: self._start_of_its_process() == self._process, same)
        [status] = self._cluster.json("pod", "web")["status"]["containerStatuses"]
        events = [event for event in self._cluster.json("events")["items"] if event["involvedObject"]["name"] == "web"]
        # FailedScheduling: possible for a pod that is created while the node becomes ready.
        wrong = [e["message"] for e in events if e["type"] != "Normal" and e["reason"] != "FailedScheduling"]
        actual = {"restarts": status["restartCount"], "warnings": wrong, "ready": self._cluster.ready()}
        self._findings.equal(f"another pod after {what}", actual, {"restarts": 0, "warnings": [], "ready": "True"})

    def _start_of_its_process(self) -> str:
        """Return the start time of the foreign pod's process in the kernel's ticks; "" if exec fails."""
        stat = self._cluster.kubectl("exec", "web", "--", "cat", "/proc/1/stat", check=False)
        return stat.split()[21] if stat.startswith("1 ") else ""

    def _pods(self, component: str) -> list[dict[str, Any]]:
        selector = f"--selector=app.kubernetes.io/component={component}"
        return list(self._cluster.json("pods", f"--namespace={NAMESPACE}", selector)["items"])

    def _run_pod(self, name: str, metadata: Mapping[str, Any] = MappingProxyType({}), **container: Any) -> None:
        """Create a pod, and wait until it is ready."""
        self._cluster.kubectl("apply", "-f", "-", input=json.dumps(_pod(name, metadata, **container)))

        def is_ready() -> bool:
            conditions = self._cluster.json("pod", name)["status"].get("conditions", ())
            return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)

        self._cluster.until(is_ready, f"the pod {name}")


def _pod(name: str, metadata: Mapping[str, Any], **container: Any) -> dict[str, Any]:
    main = {"name": "main", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sleep", "36000"]}
    about = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [main | container]}}


def test_chart_is_rolled_out_and_removed(findings: Findings, tmp_path: Path) -> None:
    dist = built(tmp_path / "this", ["archive", "image", "chart"])
    newer = built(tmp_path / "newer", ["archive", "image"], NEWER)
    binds = {kubernetes.PROGRAMS: kubernetes.programs()}
    with Machine(debian(packages=kubernetes.TREE), tmp_path / "machine", binds) as machine:
        rollout = Rollout(Cluster(machine), dist, newer, findings)
        rollout.install_next_to_a_pod()
        rollout.recover_unhealthy_kubelet_and_configure_it()
        rollout.restart_proxy()
        rollout.add_hook_servers_and_exporter()
        rollout.run_hooked_pod()
        rollout.resize_scaled_pod()
        rollout.scrape()
        rollout.limit_who_may_skip()
        rollout.upgrade_and_downgrade()
        rollout.remove()
