"""A Kubernetes cluster of one node in a machine: etcd, the API server, its controllers, the scheduler and a kubelet.

The programs are Kubernetes' own, built once from its Go modules (a quarter of an hour on two cores) and cached. There
is no kube-proxy: the only service, the API's, is an address of the node.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines import images
from tests.engines.containerd import CONFIG
from tests.machines.machine import Machine, MachineError, cached_directory, fit

VERSION, ETCD, HELM = "1.34.4", "v3.6.14", "v3.19.5"
"""1.34 is the last release whose kubelet starts on a node with cgroup v1 by default."""
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
TREE = (
    "systemd",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "iproute2",
    "openssl",
    "docker-registry",
    "skopeo",
)
"""The Debian packages that the node needs."""
PROGRAMS = "/opt/kubernetes"
NODE, ADDRESS, SERVICE = "machine", "10.0.0.2", "10.96.0.1"
"""The node's name and address, and the address of the API's service."""
SECONDS, COMMAND_SECONDS = 120.0, 400.0
"""The timeouts for the cluster, and for a command that waits."""
CONTAINERD = "/run/containerd/containerd.sock"

_USERS = {"admin": ("admin", "system:masters"), "kubelet": (f"system:node:{NODE}", "system:nodes")}
"""Names and groups by the file with their token."""
_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters:
  - {{name: it, cluster: {{server: "https://{address}", certificate-authority: /etc/kubernetes/pki/apiserver.crt}}}}
users:
  - {{name: {user}, user: {{token: {user}-token}}}}
contexts:
  - {{name: it, context: {{cluster: it, user: {user}}}}}
current-context: it
"""
_KUBELET = f"""
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
_PODS = """
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
  "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]}
"""
# The kubelet reads the kernel's log, and sets machine-wide sysctls: these files replace both.
_PREPARE = f"""
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
REGISTRY = "localhost:5000"
"""A registry without users, on the node."""
_OWN_REGISTRY = f'[[registry]]\nlocation = "{REGISTRY}"\ninsecure = true\n'
UNITS = {
    "etcd": "--data-dir=/var/lib/etcd --unsafe-no-fsync",
    "kube-apiserver": "--etcd-servers=http://127.0.0.1:2379 --allow-privileged=true"
    f" --advertise-address={ADDRESS} --secure-port=443 --cert-dir=/etc/kubernetes/pki"
    " --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc"
    " --service-account-key-file=/etc/kubernetes/accounts.key"
    " --service-account-signing-key-file=/etc/kubernetes/accounts.key"
    " --token-auth-file=/etc/kubernetes/tokens.csv --authorization-mode=Node,RBAC"
    " --enable-admission-plugins=NodeRestriction --kubelet-preferred-address-types=InternalIP",
    "kube-controller-manager": "--kubeconfig=/etc/kubernetes/admin.conf --leader-elect=false"
    " --service-account-private-key-file=/etc/kubernetes/accounts.key"
    " --root-ca-file=/etc/kubernetes/pki/apiserver.crt --use-service-account-credentials",
    "kube-scheduler": "--kubeconfig=/etc/kubernetes/admin.conf --leader-elect=false",
    "kubelet": "--config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf"
    f" --node-ip={ADDRESS} --hostname-override={NODE}",
}
"""The programs' flags by unit (the program's name), in the order of their start."""


def programs() -> Path:
    """Return the directory of Kubernetes' programs, etcd and helm; the first call builds them (MachineError)."""
    return cached_directory(f"kubernetes-{VERSION}-{ETCD}-{HELM}", _built)


def _built(work: Path) -> Path:
    programs = work / "bin"
    programs.mkdir()
    _go(work, "install", "-ldflags=-s -w", f"helm.sh/helm/v3/cmd/helm@{HELM}", GOBIN=str(programs))
    etcd = _source(work, "go.etcd.io/etcd/server/v3", ETCD)
    _go(etcd, "build", "-mod=mod", "-ldflags=-s -w", "-o", programs / "etcd", ".")
    source = _source(work, "k8s.io/kubernetes", f"v{VERSION}")
    major, minor, _ = VERSION.split(".")
    about = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
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
        tokens = "".join(f'{user}-token,{name},{user},"{group}"\n' for user, (name, group) in _USERS.items())
        config = CONFIG.format(base="/var/lib/containerd", socket=CONTAINERD, pause=images.PAUSE_IMAGE)
        files = {f"kubernetes/{user}.conf": _KUBECONFIG.format(user=user, address=SERVICE) for user in _USERS}
        files |= {
            "kubernetes/tokens.csv": tokens,
            "kubernetes/kubelet.yaml": _KUBELET,
            "hosts": "127.0.0.1 localhost\n",
        }
        files |= {"cni/net.d/10-pods.conflist": _PODS, "containers/registries.conf.d/local.conf": _OWN_REGISTRY}
        files["containerd/config.toml"] = config.replace("/var/lib/containerd/cni", "/etc/cni/net.d")
        for unit, flags in UNITS.items():
            service = f"[Service]\nExecStart={PROGRAMS}/{unit} {flags}\nRestart=always\nRestartSec=1\n"
            files[f"systemd/system/{unit}.service"] = service
        for name, text in files.items():
            machine.write(f"/etc/{name}", text)
        machine.run("sh", "-ec", _PREPARE)
        fit(machine, "containerd.service", machine.path("/lib/systemd/system/containerd.service"))
        machine.run("systemctl", "restart", "containerd.service")
        machine.path("/root/images.tar").write_bytes(images.archive(Path("/usr/bin/busybox")))
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
