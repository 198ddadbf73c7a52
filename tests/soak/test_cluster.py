"""The chart in a real cluster: Kubernetes' own API server, controllers and kubelet, containerd, and a real systemd.

The cluster has one node, a machine. The programs are Kubernetes' own, built once from its Go modules (a quarter of an
hour on two cores) and cached. There is no kube-proxy: the only service, the API's, is an address of the node.

The test follows docs/kubernetes.rst from the first installation to the removal, with its commands. A foreign pod runs
all the time; the kubelet probes it each second by an exec, through the proxy as soon as that listens.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from runtimeproxy.cli.shared.admin_client import AdminClient
from runtimeproxy.settings.version import VERSION
from tests.docs import block, blocks
from tests.engines.containerd import CONFIG
from tests.engines.images import BUSYBOX_IMAGE, PAUSE_IMAGE, archive
from tests.machines.machine import SOCKET, Machine, MachineError, cached_directory, debian, fit
from tests.soak.conftest import MARKS, NEWER, Findings, built, contains

pytestmark = [*MARKS, pytest.mark.engine, pytest.mark.trees, pytest.mark.release]

KUBERNETES, ETCD, HELM = "1.34.4", "v3.6.14", "v3.19.5"
"""1.34 is the last release whose kubelet starts on a node with cgroup v1 by default."""
REGISTRIES = ("docker-registry", "skopeo")
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
TREE = ("systemd", "containerd", "containernetworking-plugins", "curl", "iproute2", "openssl", *REGISTRIES)
PROGRAMS = "/opt/kubernetes"
NODE, ADDRESS, SERVICE = "machine", "10.0.0.2", "10.96.0.1"
"""The node's name and address, and the address of the API's service."""
SECONDS, COMMAND_SECONDS = 120.0, 400.0
"""The timeouts for the cluster, and for a command that waits."""
CONTAINERD, REGISTRY = "/run/containerd/containerd.sock", "localhost:5000"
"""The runtime's socket, and a registry without users, on the node."""

USERS = {"admin": ("admin", "system:masters"), "kubelet": (f"system:node:{NODE}", "system:nodes")}
"""Names and groups by the file with their token."""
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "https://{address}", certificate-authority: {authority}}}}}]
users: [{{name: {user}, user: {{token: {user}-token}}}}]
contexts: [{{name: it, context: {{cluster: it, user: {user}}}}}]
current-context: it
"""
AUTHORITY = "/etc/kubernetes/pki/apiserver.crt"
KUBELET = f"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
failSwapOn: false
containerRuntimeEndpoint: unix://{CONTAINERD}
resolvConf: ""
clusterDNS: [10.96.0.10]
"""
PODS = """
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
  "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}
"""
# The kubelet reads the kernel's log, and sets machine-wide sysctls: these files replace both.
PREPARE = f"""
ln -s /dev/null /dev/kmsg
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \\
    kernel/keys/root_maxbytes; do
    mkdir -p "/run/kernel/${{name%/*}}"
    cat "/proc/sys/$name" >"/run/kernel/$name"
    mount --bind "/run/kernel/$name" "/proc/sys/$name"
done
ip link add node type bridge
ip addr add {ADDRESS}/24 dev node
ip link set node up
ip route add default via 10.0.0.1
ip addr add {SERVICE}/32 dev lo
openssl genrsa -out /etc/kubernetes/accounts.key 2048
sed -i '/^auth:/,/^health:/{{/^health:/!d}}' /etc/docker/registry/config.yml
systemctl restart docker-registry.service
ln -s {PROGRAMS}/kubectl {PROGRAMS}/helm /usr/local/bin
"""
OWN_REGISTRY = f'[[registry]]\nlocation = "{REGISTRY}"\ninsecure = true\n'
UNITS = {
    "etcd": "--data-dir=/var/lib/etcd --unsafe-no-fsync",
    "kube-apiserver": "--etcd-servers=http://127.0.0.1:2379 --allow-privileged=true --secure-port=443"
    f" --advertise-address={ADDRESS} --cert-dir=/etc/kubernetes/pki --service-cluster-ip-range=10.96.0.0/16"
    " --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=/etc/kubernetes/accounts.key"
    " --service-account-signing-key-file=/etc/kubernetes/accounts.key --token-auth-file=/etc/kubernetes/tokens.csv"
    " --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction"
    " --kubelet-preferred-address-types=InternalIP",
    "kube-controller-manager": "--kubeconfig=/etc/kubernetes/admin.conf --leader-elect=false"
    " --service-account-private-key-file=/etc/kubernetes/accounts.key"
    " --root-ca-file=/etc/kubernetes/pki/apiserver.crt --use-service-account-credentials",
    "kube-scheduler": "--kubeconfig=/etc/kubernetes/admin.conf --leader-elect=false",
    "kubelet": "--config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf"
    f" --node-ip={ADDRESS} --hostname-override={NODE}",
}
"""The programs' flags by unit (the program's name), in the order of their start."""

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
CHANGE_SECONDS = 300.0
"""Timeout of a change of the node: its kubelet is watched for a minute."""


def built_programs(work: Path) -> Path:
    """Build Kubernetes' programs, etcd and helm; return their directory. Raises MachineError."""
    programs = work / "bin"
    programs.mkdir()
    _go(work, "install", "-ldflags=-s -w", f"helm.sh/helm/v3/cmd/helm@{HELM}", GOBIN=str(programs))
    etcd = _source(work, "go.etcd.io/etcd/server/v3", ETCD)
    _go(etcd, "build", "-mod=mod", "-ldflags=-s -w", "-o", programs / "etcd", ".")
    source, (major, minor, _) = _source(work, "k8s.io/kubernetes", f"v{KUBERNETES}"), KUBERNETES.split(".")
    about = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in about.items())
    _go(source, "build", "-mod=mod", f"-ldflags={flags}", "-o", programs, *(f"./cmd/{name}" for name in COMMANDS))
    return programs


def _source(work: Path, module: str, version: str) -> Path:
    """Return a copy of a module's source that can be built.

    Its go.mod replaces modules of the same repository by directories that the module lacks: the copy gets them from the
    module proxy.
    """
    downloaded = json.loads(_go(work, "mod", "download", "-json", f"{module}@{version}"))
    source = work / module.partition("/")[0]
    desired = shutil.ignore_patterns("vendor", "go.work*", "test")
    shutil.copytree(downloaded["Dir"], source, ignore=desired, copy_function=shutil.copyfile)
    subprocess.run(["chmod", "-R", "u+w", source], check=True)
    described = json.loads(_go(source, "mod", "edit", "-json"))
    unversioned = {required["Path"] for required in described["Require"] if required["Version"] == "v0.0.0"}
    for path in (replaced["Old"]["Path"] for replaced in described["Replace"]):
        release = [f"-require={path}@v0{version.removeprefix('v1')}"] if path in unversioned else []
        _go(source, "mod", "edit", f"-dropreplace={path}", *release)
    return source


def _go(folder: Path, *arguments: str | Path, **env: str) -> str:
    if not shutil.which("go"):
        raise MachineError("there is no go, which builds Kubernetes: install Go 1.24 or newer")
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", **env}
    done = subprocess.run(["go", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"go {arguments[0]} failed; it wrote: {done.stderr[-2000:]}")
    return done.stdout


class Cluster:
    """The cluster in a booted machine; its node is ready, and has the tests' images."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        tokens = "".join(f'{user}-token,{name},{user},"{group}"\n' for user, (name, group) in USERS.items())
        config = CONFIG.format(base="/var/lib/containerd", socket=CONTAINERD, pause=PAUSE_IMAGE)
        files = {f"kubernetes/{u}.conf": KUBECONFIG.format(user=u, address=SERVICE, authority=AUTHORITY) for u in USERS}
        files |= {"kubernetes/tokens.csv": tokens, "kubernetes/kubelet.yaml": KUBELET, "hosts": "127.0.0.1 localhost"}
        files |= {"cni/net.d/10-pods.conflist": PODS, "containers/registries.conf.d/local.conf": OWN_REGISTRY}
        files["containerd/config.toml"] = config.replace("/var/lib/containerd/cni", "/etc/cni/net.d")
        for unit, flags in UNITS.items():
            service = f"[Service]\nExecStart={PROGRAMS}/{unit} {flags}\nRestart=always\nRestartSec=1\n"
            files[f"systemd/system/{unit}.service"] = service
        for name, text in files.items():
            machine.write(f"/etc/{name}", text)
        machine.run("sh", "-ec", PREPARE)
        fit(machine, "containerd.service", machine.path("/lib/systemd/system/containerd.service"))
        machine.run("systemctl", "restart", "containerd.service")
        machine.path("/root/images.tar").write_bytes(archive(Path("/usr/bin/busybox")))
        machine.run("ctr", "--namespace=k8s.io", "images", "import", "--snapshotter=native", "/root/images.tar")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", *UNITS)
        self.until(lambda: self.kubectl("get", "--raw=/readyz", check=False) == "ok", "the API server")
        self.until(lambda: self.ready() == "True", "the node")
        account = ("get", "serviceaccount", "default")  # which pods need
        self.until(lambda: "Error" not in self.kubectl(*account, check=False), "the service account of pods")

    def kubectl(self, *arguments: str, input: str = "", check: bool = True) -> str:
        """Run kubectl as the cluster's administrator; return its output. Raises MachineError if it fails."""
        return self.shell("kubectl", *arguments, input=input, check=check)

    def shell(self, *command: str, input: str = "", check: bool = True) -> str:
        """Run a command in /root with the administrator's kubeconfig."""
        env = {"HOME": "/root", "KUBECONFIG": "/etc/kubernetes/admin.conf"}
        words = ("sh", "-c", 'cd /root && exec "$@"', "sh", *command)
        return self.machine.run(*words, input=input, check=check, env=env, seconds=COMMAND_SECONDS)

    def json(self, *arguments: str) -> Any:
        """Return the JSON of ``kubectl get``."""
        return json.loads(self.kubectl("get", "--output=json", *arguments))

    def ready(self) -> str:
        """Return the node's condition Ready; "" if it has none."""
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", NODE, f"--output={path}", check=False)

    def until(self, condition: Callable[[], object], description: str, seconds: float = SECONDS) -> None:
        """Wait until a condition holds. Raises MachineError after that time, with the cluster's events."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                events = self.kubectl("get", "events", "--all-namespaces", check=False)[-3000:]
                raise MachineError(f"waited {seconds:.0f} s for {description}; the last events: {events}")
            time.sleep(0.5)


class Rollout(Cluster):
    """The life of a release of the chart; each method is a step."""

    def __init__(self, machine: Machine, dist: Path, newer: Path, findings: Findings) -> None:
        super().__init__(machine)
        self._findings = findings
        self._old, self._new = self._put_image(dist, VERSION), self._put_image(newer, NEWER)
        [chart] = dist.glob("*.tgz")
        self._chart = f"/root/{chart.name}"
        self.machine.copy(chart, self._chart)
        self._values: dict[str, Any] = {**self._old}

    def _put_image(self, dist: Path, version: str) -> dict[str, Any]:
        """Push a version's image to the registry and to containerd; return its values."""
        [image], [packed] = dist.glob("*.tar"), dist.glob("*.tar.gz")
        self.machine.copy(image, f"/root/{image.name}")
        text = block("docs/release.rst", IMAGE).text
        self.shell("sh", "-ec", text.replace("VERSION", version).replace("REGISTRY", REGISTRY))
        index = subprocess.run(["tar", "-xOf", image, "index.json"], capture_output=True, check=True).stdout
        [manifest] = json.loads(index)["manifests"]
        return {
            "image": {"repository": f"{REGISTRY}/runtimeproxy", "digest": manifest["digest"]},
            "nodeInstaller": {"sha256": hashlib.sha256(packed.read_bytes()).hexdigest()},
        }

    def install_next_to_a_pod(self) -> None:
        self._run_pod("web", livenessProbe={"exec": {"command": ["/bin/true"]}, "periodSeconds": 1})
        self._process = self._start_of_its_process()
        self.machine.write("/root/canary.yaml", yaml.safe_dump(self._values))
        self._documented("helm install")
        self._wait_for("Installed")
        contains(self.machine.run("runtimeproxy", "in-use"), "nobody uses")

    def recover_unhealthy_kubelet_and_configure_it(self) -> None:
        """A kubelet that fails with the proxy's drop-in gets its old configuration back, until the page's retry."""
        self.machine.write(SICK, f"[Service]\nExecStartPre=/usr/bin/test ! -e {DROP_IN}\n")
        self.machine.run("systemctl", "daemon-reload")
        self._upgrade(nodeInstaller={"configureKubelet": True, "config": {"hook-timeout": "3s"}})
        self._wait_for("RolledBack", "kubelet")
        self.until(lambda: self.ready() == "True", "the node to be ready")
        self._check_undisturbed("a kubelet that did not start with the proxy")
        self.machine.run("rm", SICK)
        self.machine.run("systemctl", "daemon-reload")
        self.kubectl("annotate", "node", NODE, f"{STATE}-")
        pods = f"--namespace={NAMESPACE} --selector=app.kubernetes.io/component=node-installer".split()
        self.kubectl("delete", "pods", *pods)
        self._wait_for("Installed")
        contains(self.machine.show("kubelet.service", "ExecStart"), SOCKET.removeprefix("/run"))
        contains(self.machine.run("runtimeproxy", "in-use", check=False), "kubelet", "connection")
        self._check_undisturbed("pointing the kubelet at the proxy")

    def restart_proxy(self) -> None:
        for words in (["restart"], ["kill", "--signal=KILL"]) * 2:
            self.machine.run("systemctl", *words, "runtimeproxy.service")
            time.sleep(5)  # some of the kubelet's probes
        self._check_undisturbed("2 restarts and 2 kills of the proxy")

    def add_hook_servers(self) -> None:
        gpu = {"name": "gpu", "hooks": ["gpu"], "failurePolicy": "Fail"}
        limits: dict[str, Any] = {"name": "limits", "hooks": ["batchresource", "cpunormalization"]}
        limits |= {"node": {"cpu-normalization-ratio": 2}}
        # An image that was loaded into containerd, not pulled from a registry.
        limits |= {"image": self._old["image"] | {"repository": "docker.io/library/runtimeproxy"}}
        self._upgrade(hookServers=[gpu, limits])
        for part in ("hook-gpu", "hook-limits"):
            self._rolled_out(f"{NAME}-{part}")
        self.machine.until(lambda: "limits" in self.machine.run("runtimeproxy", "hook", "ls"), "both hook servers")

    def run_hooked_pod(self) -> None:
        """Its exec and port-forward bypass the proxy, since the runtime's answers contain another address."""
        serve = "env; env >/tmp/env; exec /bin/busybox httpd -f -p 8080 -h /tmp"
        self._run_pod("hooked", {"annotations": DEVICES}, command=["/bin/sh", "-c", serve])
        forward = ("kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "port-forward", "pod/hooked", "18080:8080")
        self.machine.run("systemd-run", "--unit=forwarded", *forward)
        fetch = ("curl", "--silent", "http://127.0.0.1:18080/env")
        self.until(lambda: self.machine.run(*fetch, check=False), "the forwarded port")
        texts = [self.kubectl("exec", "hooked", "--", "env"), self.kubectl("logs", "hooked")]
        texts.append(self.machine.run(*fetch))
        devices = [gpu for text in texts for gpu in re.findall("^NVIDIA_VISIBLE_DEVICES=(.*)$", text, re.MULTILINE)]
        self._findings.equal("GPU of a hooked pod, by exec, in its log and by a forwarded port", devices, ["3"] * 3)
        self.machine.run("systemctl", "stop", "forwarded.service")
        self.kubectl("delete", "pod", "hooked", "--grace-period=1")

    def limit_who_may_skip(self) -> None:
        skips, apply = _pod("skips", {"labels": {SKIP: "true"}}), ("kubectl", "apply", "-f", "-")
        refused = self.shell(*apply, input=json.dumps(skips), check=False)
        contains(refused, "takes a pod away from every hook server", NAMESPACE)
        refused = self.kubectl("label", "pod", "web", f"{SKIP}=true", check=False)
        contains(refused, "takes a pod away from every hook server")
        skips["metadata"]["namespace"] = NAMESPACE
        self.shell(*apply, input=json.dumps(skips))
        contains(self._documented("kubectl get pods -A"), "skips", INSTALLER)
        self.kubectl("delete", "pod", "skips", f"--namespace={NAMESPACE}", "--grace-period=1")

    def upgrade_and_downgrade(self) -> None:
        """A configuration without a runtime, and an older version unless allowed, change nothing."""
        admin = AdminClient(str(self.machine.path("/run/koord-runtimeproxy/admin.sock")))
        good = self._values["nodeInstaller"]
        self._upgrade(nodeInstaller={"config": {"remote-runtime-service-endpoint": "/run/nobody.sock"}})
        self._wait_for("Refused", "/run/nobody.sock")
        contains(self.machine.run("cat", "/etc/runtimeproxy/config.yaml"), "hook-timeout")
        self._upgrade(image=self._new["image"], nodeInstaller=good | self._new["nodeInstaller"])
        self._wait_for("Installed")
        version = admin.with_new_deadline().call("version")["version"]
        self._findings.equal("the version that answers after the upgrade", version, NEWER)
        self._check_undisturbed("a bad configuration and an upgrade")
        self.shell("helm", "rollback", RELEASE, f"--namespace={NAMESPACE}")
        self._wait_for("Refused", "allowDowngrade")
        self._upgrade(image=self._old["image"], nodeInstaller={**self._old["nodeInstaller"], "allowDowngrade": True})
        self._wait_for("Installed")
        version = admin.with_new_deadline().call("version")["version"]
        self._findings.equal("the version that answers after the downgrade", version, VERSION)
        self._check_undisturbed("a downgrade")

    def remove(self) -> None:
        self._upgrade(nodeInstaller={"action": "uninstall"}, hookServers=[])
        self._wait_for("Removed")
        self.shell("helm", "uninstall", RELEASE, f"--namespace={NAMESPACE}")
        assert "koord-runtimeproxy" not in self.machine.show("kubelet.service", "ExecStart")
        places = f"/opt/runtimeproxy* /etc/systemd/system/*runtimeproxy* {DROP_INS}/*"
        leftovers = self.machine.run("sh", "-c", f"ls -d {places} 2>/dev/null || true")
        self._findings.equal("files left on the node", leftovers.split(), [])
        kinds = "all,leases,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies"
        everything = ("get", kinds, "--all-namespaces", "--output=name")
        self.until(lambda: RELEASE not in self.kubectl(*everything), "the cluster to have no part")
        self._check_undisturbed("the removal")

    def _upgrade(self, **values: Any) -> None:
        """Upgrade the release with other values."""
        for name, value in values.items():
            self._values[name] = {**self._values.get(name, {}), **value} if isinstance(value, dict) else value
        self.machine.write("/root/canary.yaml", yaml.safe_dump(self._values))
        self.shell("helm", "upgrade", RELEASE, self._chart, f"--namespace={NAMESPACE}", "--values=canary.yaml")

    def _documented(self, start: str) -> str:
        """Run the page's block that begins with this text."""
        [text] = [block.text for block in blocks(PAGE) if block.first.startswith(start)]
        return self.shell("sh", "-ec", text)

    def _wait_for(self, state: str, reason: str = "") -> None:
        """Wait until the page's command shows a state of the node; a good one must come from the current pod."""
        if state in ("Installed", "Removed"):
            self._rolled_out(INSTALLER)
        shown, nodes = re.compile(rf".*\n{NODE} +{state} +.*{reason}.*\n?"), "kubectl get nodes"
        self.until(lambda: shown.fullmatch(self._documented(nodes)), f"the node to be {state}", CHANGE_SECONDS)

    def _rolled_out(self, name: str) -> None:
        limit = f"--timeout={CHANGE_SECONDS:.0f}s"
        self.kubectl("rollout", "status", f"daemonset/{name}", f"--namespace={NAMESPACE}", limit)

    def _check_undisturbed(self, what: str) -> None:
        """Check that the foreign pod still runs, none of its probes failed, and the node is ready."""
        same = f"the pod's process to be the same after {what}"  # a kubelet that has just begun knows no pod yet
        self.until(lambda: self._start_of_its_process() == self._process, same)
        [status] = self.json("pod", "web")["status"]["containerStatuses"]
        events = [event for event in self.json("events")["items"] if event["involvedObject"]["name"] == "web"]
        # FailedScheduling: possible for a pod that is created while the node becomes ready.
        wrong = [e["message"] for e in events if e["type"] != "Normal" and e["reason"] != "FailedScheduling"]
        actual = {"restarts": status["restartCount"], "warnings": wrong, "ready": self.ready()}
        self._findings.equal(f"another pod after {what}", actual, {"restarts": 0, "warnings": [], "ready": "True"})

    def _start_of_its_process(self) -> str:
        """Return the start time of the foreign pod's process in the kernel's ticks; "" if exec fails."""
        stat = self.kubectl("exec", "web", "--", "cat", "/proc/1/stat", check=False)
        return stat.split()[21] if stat.startswith("1 ") else ""

    def _run_pod(self, name: str, metadata: Mapping[str, Any] = MappingProxyType({}), **container: Any) -> None:
        """Create a pod, and wait until it is ready."""
        self.kubectl("apply", "-f", "-", input=json.dumps(_pod(name, metadata, **container)))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={SECONDS:.0f}s")


def _pod(name: str, metadata: Mapping[str, Any], **container: Any) -> dict[str, Any]:
    main = {"name": "main", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sleep", "36000"]}
    about = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [main | container]}}


def test_chart_is_rolled_out_and_removed(findings: Findings, tmp_path: Path) -> None:
    dist = built(tmp_path / "this", ["archive", "image", "chart"])
    newer = built(tmp_path / "newer", ["archive", "image"], NEWER)
    binds = {PROGRAMS: cached_directory(f"kubernetes-{KUBERNETES}-{ETCD}-{HELM}", built_programs)}
    with Machine(debian(packages=TREE), tmp_path / "machine", binds) as machine:
        rollout = Rollout(machine, dist, newer, findings)
        rollout.install_next_to_a_pod()
        rollout.recover_unhealthy_kubelet_and_configure_it()
        rollout.restart_proxy()
        rollout.add_hook_servers()
        rollout.run_hooked_pod()
        rollout.limit_who_may_skip()
        rollout.upgrade_and_downgrade()
        rollout.remove()
