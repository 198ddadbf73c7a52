"""The chart in a real cluster: Kubernetes' own API server, controllers and kubelet, containerd, and a real systemd.

docs/kubernetes.rst is followed from the first installation to the removal, by its own commands where it has some. A pod
of somebody else runs all the while; the kubelet probes it each second by a command in it, through the proxy as soon as
it listens.
"""

import hashlib
import json
import re
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
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
from tests.machines.machine import Machine
from tests.machines.node import SOCKET
from tests.machines.tree import debian
from tests.soak import MARKS
from tests.soak.built import NEWER, built
from tests.soak.conftest import Findings, contains

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

PAGE = "docs/kubernetes.rst"
IMAGE = "skopeo copy oci-archive:runtimeproxy_VERSION_image.tar docker://REGISTRY/runtimeproxy:VERSION"
REPOSITORY = f"{kubernetes.REGISTRY}/runtimeproxy"
LOADED = "docker.io/library/runtimeproxy"
"""The image's repository where it was pulled from a registry, and where it was loaded into containerd."""
RELEASE, NAMESPACE = "rp-canary", "kube-system"
NAME = f"{RELEASE}-runtimeproxy"
DROP_INS = "/etc/systemd/system/kubelet.service.d"
DROP_IN, SICK = f"{DROP_INS}/90-runtimeproxy.conf", f"{DROP_INS}/10-sick.conf"
INSTALLER = f"{NAME}-installer"
SKIP = "runtimeproxy.koordinator.sh/skip-hookserver"
ANNOTATION = "runtimeproxy.koordinator.sh/installer"
DEVICES = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 3}]})}
ADMIN = "/run/koord-runtimeproxy/admin.sock"
PORT = 9654
NOT_YET = "FailedScheduling"
"""The reason of an event that a pod may have which is made at the moment when the node is ready."""
GOOD = ("Installed", "Removed")
CHANGE_SECONDS = 300.0
"""How long a change of the node may take: its kubelet is watched for a minute."""
INSTALL, NODES, EXPORTERS, SKIPPING = "helm install", "kubectl get nodes", "kubectl delete pods", "kubectl get pods -A"
DOCUMENTED = (INSTALL, NODES, EXPORTERS, SKIPPING)
"""How the page's blocks begin, each of which is run."""
_CERTIFICATES = """
cd /root
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=authority -days 2
for name in runtimeproxy-exporter prometheus; do
    openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name
    echo "subjectAltName=DNS:$name" >$name.ext
    openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out $name.crt -days 2 -extfile $name.ext
done
"""


def test_chart_is_rolled_out_and_removed(findings: Findings, tmp_path: Path) -> None:
    dist = built(tmp_path / "this", ["archive", "image", "chart"])
    newer = built(tmp_path / "newer", ["archive", "image"], NEWER)
    binds = {kubernetes.PROGRAMS: kubernetes.programs()}
    with Machine(debian(packages=kubernetes.TREE), tmp_path / "machine", binds) as machine:
        rollout = Rollout(Cluster(machine), dist, newer, findings)
        rollout.run_a_pod_of_somebody_else()
        rollout.install()
        rollout.recover_from_a_sick_kubelet()
        rollout.point_the_kubelet_at_it()
        rollout.restart_the_proxy()
        rollout.add_hook_servers_and_the_exporter()
        rollout.run_a_hooked_pod()
        rollout.resize_a_scaled_pod()
        rollout.scrape()
        rollout.limit_who_may_skip()
        rollout.limit_the_installer_to_its_node()
        rollout.refuse_a_bad_configuration()
        rollout.upgrade_and_downgrade()
        rollout.remove()


class Rollout:
    """The life of a release of the chart; each method is a part of it."""

    def __init__(self, cluster: Cluster, dist: Path, newer: Path, findings: Findings) -> None:
        self._cluster, self._findings = cluster, findings
        self._machine = cluster.machine
        self._old, self._new = self._put_image(dist, VERSION), self._put_image(newer, NEWER)
        [chart] = dist.glob("*.tgz")
        self._chart = f"/root/{chart.name}"
        self._machine.copy(chart, self._chart)
        self._values: dict[str, Any] = {**self._old}

    def _put_image(self, dist: Path, version: str) -> dict[str, Any]:
        """Put a version's image into the registry, and into containerd; return the values that name it."""
        [image], [archive] = dist.glob("*.tar"), dist.glob("*.tar.gz")
        self._machine.copy(image, f"/root/{image.name}")
        text = block("docs/release.rst", IMAGE).text
        self._cluster.shell("sh", "-ec", text.replace("VERSION", version).replace("REGISTRY", kubernetes.REGISTRY))
        return {
            "image": {"repository": REPOSITORY, "digest": digest(image)},
            "nodeInstaller": {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        }

    def run_a_pod_of_somebody_else(self) -> None:
        self._apply(_pod("web", probe=True))
        self._cluster.until(lambda: self._is_ready("web"), "the pod")
        self._process = self._start_of_its_process()

    def install(self) -> None:
        self._write_values()
        self._cluster.shell("sh", "-ec", _documented(INSTALL))
        self._wait_for("Installed")
        contains(self._machine.run("runtimeproxy", "in-use"), "nobody uses")

    def recover_from_a_sick_kubelet(self) -> None:
        """A kubelet that does not start with the proxy's drop-in gets its old configuration back, until it is tried
        again as the page says."""
        self._machine.write(SICK, f"[Service]\nExecStartPre=/usr/bin/test ! -e {DROP_IN}\n")
        self._machine.run("systemctl", "daemon-reload")
        self._upgrade(nodeInstaller={"configureKubelet": True})
        self._wait_for("RolledBack", "kubelet")
        self._cluster.until(lambda: self._cluster.ready() == "True", "the node to be ready")
        self._untouched("a kubelet that did not start with the proxy")
        self._machine.run("rm", SICK)
        self._machine.run("systemctl", "daemon-reload")

    def point_the_kubelet_at_it(self) -> None:
        self._cluster.kubectl("annotate", "node", NODE, f"{ANNOTATION}-state-")
        [pod] = self._pods("node-installer")
        self._cluster.kubectl("delete", "pod", pod["metadata"]["name"], f"--namespace={NAMESPACE}")
        self._wait_for("Installed")
        contains(self._machine.show("kubelet.service", "ExecStart"), SOCKET.removeprefix("/run"))
        contains(self._machine.run("runtimeproxy", "in-use", check=False), "kubelet", "connection")
        self._untouched("pointing the kubelet at the proxy")

    def restart_the_proxy(self) -> None:
        for words in (["restart"], ["kill", "--signal=KILL"], ["restart"], ["kill", "--signal=KILL"]):
            self._machine.run("systemctl", *words, "runtimeproxy.service")
            time.sleep(5)  # some of the kubelet's probes
        self._untouched("2 restarts and 2 kills of the proxy")

    def add_hook_servers_and_the_exporter(self) -> None:
        self._machine.run("sh", "-ec", _CERTIFICATES)
        self._cluster.shell(
            *("kubectl", "create", "secret", "generic", "exporter", f"--namespace={NAMESPACE}", "--from-file=ca.crt"),
            *("--from-file=tls.crt=runtimeproxy-exporter.crt", "--from-file=tls.key=runtimeproxy-exporter.key"),
        )
        loaded = {"repository": LOADED, "digest": self._values["image"]["digest"]}
        hook_servers = [
            {"name": "gpu", "hooks": ["gpu"], "failurePolicy": "Fail"},
            {
                "name": "limits",
                "hooks": ["batchresource", "cpunormalization"],
                "image": loaded,
                "node": {"cpu-normalization-ratio": 2},
            },
        ]
        self._upgrade(hookServers=hook_servers, exporter={"enabled": True, "tlsSecret": "exporter"})
        for part in ("hook-gpu", "hook-limits", "exporter"):
            self._rolled_out(f"{NAME}-{part}")
        self._machine.until(lambda: "limits" in self._machine.run("runtimeproxy", "hook", "ls"), "both hook servers")

    def run_a_hooked_pod(self) -> None:
        """Its exec and its forwarded port bypass the proxy: the runtime's answers name another address."""
        serve = "env; env >/tmp/env; exec /bin/busybox httpd -f -p 8080 -h /tmp"
        self._apply(_pod("hooked", annotations=DEVICES, command=["/bin/sh", "-c", serve]))
        self._cluster.until(lambda: self._is_ready("hooked"), "the hooked pod")
        forward = ("kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "port-forward", "pod/hooked", "18080:8080")
        self._machine.run("systemd-run", "--unit=forwarded", *forward)
        fetch = ("curl", "--silent", "http://127.0.0.1:18080/env")
        self._cluster.until(lambda: self._machine.run(*fetch, check=False), "the forwarded port")
        found_in = [self._cluster.kubectl("exec", "hooked", "--", "env"), self._cluster.kubectl("logs", "hooked")]
        found_in.append(self._machine.run(*fetch))
        found = [gpu for text in found_in for gpu in re.findall("^NVIDIA_VISIBLE_DEVICES=(.*)$", text, re.MULTILINE)]
        self._findings.equal(
            "GPU of a hooked pod, by exec, in its log and by a forwarded port", ", ".join(found), "3, 3, 3"
        )
        self._machine.run("systemctl", "stop", "forwarded.service")
        self._cluster.kubectl("delete", "pod", "hooked", "--grace-period=1")

    def resize_a_scaled_pod(self) -> None:
        """Resize a pod in place whose CPU quota a hook server halves. The kubelet reads the runtime's value as what
        is in effect, and must not try again for ever."""
        self._apply(_pod("scaled", resources=_cpu("200m", "400m")))
        self._cluster.until(lambda: self._is_ready("scaled"), "the scaled pod")
        before = self._quota("scaled")
        patch = {"spec": {"containers": [{"name": "main", "resources": _cpu("300m", "600m")}]}}
        self._cluster.kubectl("patch", "pod", "scaled", "--subresource=resize", f"--patch={json.dumps(patch)}")
        self._cluster.until(lambda: self._quota("scaled") != before and not self._resizes("scaled"), "the resize")
        self._findings.equal(
            "CPU quota that is halved, and after a resize", f"{before}, {self._quota('scaled')}", "20000, 30000"
        )
        [status] = self._pod("scaled")["status"]["containerStatuses"]
        shown = f"{status['resources']['limits']['cpu']}, restarts: {status['restartCount']}"
        self._findings.equal("the CPU limit of 600m as kubectl get pod shows it then", shown, "300m, restarts: 0")
        self._cluster.kubectl("delete", "pod", "scaled", "--grace-period=1")

    def _quota(self, name: str) -> cgroups.Value:
        """Return the CPU quota that a pod's container sees."""
        content = self._cluster.kubectl("exec", name, "--", "cat", cgroups.inside_file("cpu_quota"))
        return cgroups.parse("cpu_quota", content)

    def _resizes(self, name: str) -> bool:
        """Return whether a resize of a pod is not completed."""
        conditions = self._pod(name)["status"].get("conditions", ())
        return any(each["type"].startswith("PodResize") for each in conditions)

    def scrape(self) -> None:
        [pod] = self._pods("exporter")
        mine = ("--cert", "prometheus.crt", "--key", "prometheus.key")
        self._findings.equal("status of a scrape without a certificate", self._scraped(pod), "000")
        self._findings.equal("status of a scrape", self._scraped(pod, *mine), "200")
        text = _documented(EXPORTERS).replace("NODE", NODE, 1)
        self._cluster.shell("sh", "-ec", text)
        self._rolled_out(f"{NAME}-exporter")
        [pod] = self._pods("exporter")
        self._findings.equal("status of a scrape of the next pod", self._scraped(pod, *mine), "200")

    def _scraped(self, pod: Mapping[str, Any], *credentials: str) -> str:
        """Return the status of a scrape as the PodMonitor's Prometheus makes it; 000 if it had none."""
        name = "runtimeproxy-exporter"
        address = pod["status"]["podIP"]
        return self._cluster.shell(
            *("curl", "--silent", "--output", "/root/metrics", "--write-out", "%{http_code}", "--cacert", "ca.crt"),
            *(*credentials, "--resolve", f"{name}:{PORT}:{address}", f"https://{name}:{PORT}/metrics"),
            check=False,
        )

    def limit_who_may_skip(self) -> None:
        refused = self._cluster.shell(
            *("kubectl", "apply", "-f", "-"), input=json.dumps(_pod("skips", labels={SKIP: "true"})), check=False
        )
        contains(refused, "takes a pod away from every hook server", NAMESPACE)
        refused = self._cluster.kubectl("label", "pod", "web", f"{SKIP}=true", check=False)
        contains(refused, "takes a pod away from every hook server")
        self._apply(_pod("skips", labels={SKIP: "true"}, namespace=NAMESPACE))
        found = self._cluster.shell("sh", "-ec", _documented(SKIPPING))
        contains(found, "skips", INSTALLER)
        self._cluster.kubectl("delete", "pod", "skips", f"--namespace={NAMESPACE}", "--grace-period=1")

    def limit_the_installer_to_its_node(self) -> None:
        other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}
        self._apply(other)
        [pod] = self._pods("node-installer")
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}")
        of_the_pod = self._cluster.kubectl("create", "token", INSTALLER, f"--namespace={NAMESPACE}", *bound).strip()
        of_nobody = self._cluster.kubectl("create", "token", INSTALLER, f"--namespace={NAMESPACE}").strip()
        label, annotation = {"metadata": {"labels": {"a": "b"}}}, {"metadata": {"annotations": {"a": "b"}}}
        for token, node, patch, words in (
            (of_the_pod, NODE, annotation, "patched"),
            (of_the_pod, "other", annotation, "changes the node of its own pod only"),
            (of_the_pod, NODE, label, "changes annotations only"),
            (of_nobody, NODE, annotation, "changes the node of its own pod only"),
        ):
            # --kubeconfig: the administrator's token would win.
            command = ["patch", "node", node, "--type=merge", f"--patch={json.dumps(patch)}", f"--token={token}"]
            server = ["--kubeconfig=/dev/null", f"--server=https://{kubernetes.SERVICE}"]
            authority = ["--certificate-authority=/etc/kubernetes/pki/apiserver.crt"]
            contains(self._cluster.kubectl(*command, *server, *authority, check=False), words)
        self._cluster.kubectl("delete", "node", "other")

    def refuse_a_bad_configuration(self) -> None:
        """A configuration that names no runtime changes nothing, and helm takes it back."""
        good = {"configureKubelet": True, "config": {"hook-timeout": "3s"}}
        self._upgrade(nodeInstaller=good)
        self._wait_for("Installed")
        self._untouched("a new configuration")
        before = self._values.copy()
        self._upgrade(nodeInstaller={"config": {"remote-runtime-service-endpoint": "/run/nobody.sock"}})
        self._wait_for("Refused", "/run/nobody.sock")
        contains(self._machine.run("cat", "/etc/runtimeproxy/config.yaml"), "hook-timeout")
        self._untouched("a bad configuration")
        self._cluster.shell("helm", "rollback", RELEASE, f"--namespace={NAMESPACE}")
        self._values = before
        self._wait_for("Installed")

    def upgrade_and_downgrade(self) -> None:
        """An older version must be allowed."""
        self._upgrade(**self._new)
        self._wait_for("Installed")
        self._findings.equal("the version that answers after the upgrade", self._version(), NEWER)
        self._untouched("an upgrade")
        self._cluster.shell("helm", "rollback", RELEASE, f"--namespace={NAMESPACE}")
        self._wait_for("Refused", "allowDowngrade")
        self._upgrade(image=self._old["image"], nodeInstaller={**self._old["nodeInstaller"], "allowDowngrade": True})
        self._wait_for("Installed")
        self._findings.equal("the version that answers after the downgrade", self._version(), VERSION)
        self._untouched("a downgrade")

    def _version(self) -> str:
        """Return the version of the running process."""
        return str(AdminClient(str(self._machine.path(ADMIN))).call("version")["version"])

    def remove(self) -> None:
        self._upgrade(nodeInstaller={"action": "uninstall"}, hookServers=[], exporter={})
        self._wait_for("Removed")
        self._cluster.shell("helm", "uninstall", RELEASE, f"--namespace={NAMESPACE}")
        started = self._machine.show("kubelet.service", "ExecStart")
        self._findings.equal(
            "the proxy's socket in the kubelet's command", f"{started.count('koord-runtimeproxy')} times", "0 times"
        )
        places = "/opt/runtimeproxy* /etc/systemd/system/*runtimeproxy* /etc/systemd/system/kubelet.service.d/*"
        left = self._machine.run("sh", "-c", f"ls -d {places} 2>/dev/null || true")
        self._findings.equal("files left on the node", " ".join(left.split()) or "none", "none")
        self._cluster.until(lambda: not self._left(), "the cluster to have nothing of it")
        self._untouched("the removal")

    def _left(self) -> list[str]:
        """Return what the cluster has of the release."""
        kinds = "all,leases,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies"
        found = self._cluster.kubectl("get", kinds, "--all-namespaces", "--output=name")
        return [line for line in found.split() if RELEASE in line]

    # ---- what they need

    def _upgrade(self, **values: Any) -> None:
        """Upgrade the release with other values."""
        for name, value in values.items():
            self._values[name] = {**self._values.get(name, {}), **value} if isinstance(value, dict) else value
        self._write_values()
        self._cluster.shell("helm", "upgrade", RELEASE, self._chart, f"--namespace={NAMESPACE}", "--values=canary.yaml")

    def _write_values(self) -> None:
        self._machine.write("/root/canary.yaml", yaml.safe_dump(self._values))

    def _wait_for(self, state: str, reason: str = "") -> None:
        """Wait until the node's annotations have a state, by the page's command; a good one by its own pod."""
        if state in GOOD:
            self._rolled_out(INSTALLER)

        def is_annotated() -> bool:
            _, line = self._cluster.shell("sh", "-ec", _documented(NODES)).splitlines()
            return re.fullmatch(rf"{NODE} +{state} +.*{reason}.*", line) is not None

        self._cluster.until(is_annotated, f"the node to be {state}", CHANGE_SECONDS)

    def _rolled_out(self, name: str) -> None:
        limit = f"--timeout={CHANGE_SECONDS:.0f}s"
        self._cluster.kubectl("rollout", "status", f"daemonset/{name}", f"--namespace={NAMESPACE}", limit)

    def _untouched(self, what: str) -> None:
        """See that the pod of somebody else runs as before, no probe of it failed, and the node is ready."""
        same = f"the pod's process to be the same after {what}"  # a kubelet that has just begun knows no pod yet
        self._cluster.until(lambda: self._start_of_its_process() == self._process, same)
        [status] = self._pod("web")["status"]["containerStatuses"]
        events = [each for each in self._cluster.json("events")["items"] if each["involvedObject"]["name"] == "web"]
        wrong = [each["message"] for each in events if each["type"] != "Normal" and each["reason"] != NOT_YET]
        warnings = "; ".join(wrong) or "none"
        seen = f"restarts: {status['restartCount']}, warnings: {warnings}, node ready: {self._cluster.ready()}"
        self._findings.equal(f"another pod after {what}", seen, "restarts: 0, warnings: none, node ready: True")

    def _start_of_its_process(self) -> str:
        """Return when the process of somebody else's pod began, in the kernel's ticks; "" if exec does not work."""
        stat = self._cluster.kubectl("exec", "web", "--", "cat", "/proc/1/stat", check=False)
        return stat.split()[21] if stat.startswith("1 ") else ""

    def _pods(self, component: str) -> list[dict[str, Any]]:
        found = self._cluster.json(
            "pods", f"--namespace={NAMESPACE}", f"--selector=app.kubernetes.io/component={component}"
        )
        return list(found["items"])

    def _pod(self, name: str) -> dict[str, Any]:
        return dict(self._cluster.json("pod", name))

    def _is_ready(self, name: str) -> bool:
        conditions = self._pod(name)["status"].get("conditions", ())
        return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

    def _apply(self, made: Mapping[str, Any]) -> None:
        self._cluster.kubectl("apply", "-f", "-", input=json.dumps(made))


def digest(image: Path) -> str:
    """Return the digest by which a registry and charts know an OCI image."""
    with tarfile.open(image) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        [manifest] = json.load(index)["manifests"]
    return str(manifest["digest"])


def _documented(start: str) -> str:
    """Return the page's block that begins so."""
    [found] = [each.text for each in blocks(PAGE) if each.first.startswith(start)]
    return found


def _pod(
    name: str,
    *,
    probe: bool = False,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
    command: list[str] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    probes = {"livenessProbe": {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1}} if probe else {}
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": command or ["/bin/sleep", "36000"],
        "resources": resources or {},
        **probes,
    }
    about = {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [container]}}


def _cpu(request: str, limit: str) -> dict[str, Any]:
    return {"requests": {"cpu": request}, "limits": {"cpu": limit}}
