"""The order of the work on a node: unpack, check, acquire a place, install, start, verify, then the kubelet; and back.

Owns the order of the steps, and which changes a failure undoes.
Must not know: how a place is held, how anything is reported.
Invariant: until all checks have passed, only /opt/runtimeproxy changes. The kubelet is pointed at the proxy last and
removed from it first.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import kubelet, tree
from .desired import DesiredState
from .errors import Failed, Refused, RolledBack, Stopped, error_text
from .journal import Journal, folder
from .kubelet import DropIn, Kubelet, Watch
from .node import Node

ARCHIVES = Path("/usr/share/runtimeproxy")
CONFIG = "/etc/runtimeproxy/config.yaml"
CONFIG_HEAD = "# The values nodeInstaller.config of runtimeproxy's chart.\n"
REGISTRATIONS = "/etc/runtime/hookserver.d"
GROUP = "runtimeproxy-metrics"
VERIFY_SECONDS = 30.0
OWN_CHECKS = ("listening", "registrations_read", "runtime", "not_draining")
"""The checks of /readyz that an installation must pass. An unavailable hook server is not among them."""
REQUIRED_CHECKS = ("runtime", "registrations", "cgroup")
"""The checks of doctor that must not fail before the first change."""


class Work:
    """The work on one node, whose kubelet is ``reported``.

    ``place`` is called before the first change of the node, and returns when this node may change. ``ready`` returns
    whether the node is ready.
    """

    def __init__(
        self,
        node: Node,
        desired: DesiredState,
        reported: Kubelet,
        place: Callable[[], None],
        ready: Callable[[], bool],
        *,
        archives: Path = ARCHIVES,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._desired = desired
        self._reported = reported
        self._place = place
        self._ready = ready
        self._archives = archives
        self._sleep = sleep
        self._clock = clock
        self._home = ""

    def install(self) -> str:
        """Install the desired state; return the version. Raises Refused, Failed, RolledBack."""
        if not self._node.path("/run/systemd/system").is_dir():
            raise Refused("systemd does not run this node: install the proxy by hand")
        if any(self._node.path(unit).exists() for unit in tree.PACKAGE_UNITS):
            raise Refused("a package has put the proxy on this node: upgrade or remove that package")
        archive = tree.Archive(self._archives, self._desired.sha256)
        _, version = tree.running(self._node)
        if version and tree.is_newer(version, archive.version) and not self._desired.allow_downgrade:
            raise Refused(
                f"the node has {version}, newer than {archive.version}: use a newer archive, or set "
                "nodeInstaller.allowDowngrade"
            )
        journal = self._clean_journal()
        archive.unpack(self._node)
        self._home = archive.home
        self._check_node()
        before, _ = tree.running(self._node)
        try:
            self._install_tree(journal)
            self._configure_kubelet(journal)
        except BaseException as error:
            if not journal.is_open:  # no change, or already undone
                raise
            self._undo(journal)
            if isinstance(error, Stopped):
                raise
            raise RolledBack(f"{error_text(error)}; the node is as it was before") from error
        journal.close()
        tree.remove_except(self._node, archive.home, before)
        return archive.version

    def uninstall(self) -> None:
        """Remove the proxy from the node. Raises Refused, Failed, RolledBack."""
        journal = self._clean_journal()
        self._home, _ = tree.running(self._node)
        if self._home:
            self._place()
            self._restore_kubelet(journal)
            journal.close()
            code, users = self._node.query(self._program, "in-use", "--no-headers")
            if code:
                reported = " ".join(users.split())
                raise Refused(f"still in use: {reported}: point it back (runtimeproxy kubelet-args) first")
            self._remove()
        tree.remove_except(self._node)

    @property
    def _program(self) -> str:
        return f"{self._home}/bin/runtimeproxy"

    def _clean_journal(self) -> Journal:
        """Undo an interrupted earlier run; return the journal."""
        journal = Journal(self._node)
        if journal.is_open:
            self._place()
            self._undo(journal)
        return journal

    def _check_node(self) -> None:
        """Check the node with the programs of the new tree, before it runs. Raises Refused, Failed."""
        text = self._config()
        config = f"{self._home}.config.yaml" if text else ""
        try:
            if config:
                self._node.write(config, text, 0o600)
                self._node.run(self._program, "config", "check", config)
            flags = [f"--config={config}"] if config else []
            shown = json.loads(self._node.run(self._program, "config", "show", "-o", "json", *flags))
            mode = next(row["value"] for row in shown if row["key"] == "backend-runtime-mode")
            if mode != self._reported.mode:
                raise Refused(
                    f"the kubelet uses {self._reported.mode}, and the proxy is configured for {mode}: set "
                    "nodeInstaller.config.backend-runtime-mode for this pool"
                )
            for row in self._doctor(*flags):
                if row["verdict"] == "failed" and row["check"] in REQUIRED_CHECKS:
                    raise Refused(f"doctor: {row['check']}: {row['why']}; {row['do']}")
        finally:
            if config:
                self._node.remove(config)
        self._check_group()
        if self._desired.configure_kubelet:
            drop_in = self._drop_in()
            drop_in.text()
            if fault := self._watch(drop_in).fault():
                raise Refused(f"{fault}, before anything was changed: repair the kubelet first")

    def _doctor(self, *flags: str) -> list[dict[str, Any]]:
        _, output = self._node.query(self._program, "doctor", "-o", "json", *flags)
        try:
            rows: list[dict[str, Any]] = json.loads(output)
        except ValueError:
            raise Failed(f"doctor printed no JSON: {' '.join(output.split())}") from None
        return rows

    def _config(self) -> str:
        """Return the configuration to write, "" if the node keeps its own or has none. Raises OSError."""
        own = not (self._node.text(CONFIG) or CONFIG_HEAD).startswith(CONFIG_HEAD)
        keys = {**self._reported.config, **self._desired.config}
        if not keys or (own and not self._desired.config):
            return ""
        return CONFIG_HEAD + "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(keys.items()))

    def _check_group(self) -> None:
        number = self._group_number()
        if number not in (None, self._desired.metrics_group_id):
            raise Refused(f"the group {GROUP} has the number {number} here: set metricsGroupId to it for this pool")

    def _group_number(self) -> int | None:
        rows = (line.split(":") for line in (self._node.text("/etc/group") or "").splitlines())
        return next((int(row[2]) for row in rows if row[0] == GROUP), None)

    def _install_tree(self, journal: Journal) -> None:
        """Make the node's units run the new tree. Raises Failed, OSError."""
        files = tree.units(self._node, self._home)
        if text := self._config():
            files[CONFIG] = text
        before, _ = tree.running(self._node)
        if before:  # units that the new tree does not have
            files |= dict.fromkeys(tree.units(self._node, before).keys() - files.keys())
        if any(self._node.text(path) != text for path, text in files.items()) or not self._node.is_active(tree.SERVICE):
            self._place()
            if self._group_number() is None:
                self._node.run("groupadd", "--system", f"--gid={self._desired.metrics_group_id}", GROUP)
            self._node.path(REGISTRATIONS).mkdir(mode=0o755, parents=True, exist_ok=True)
            journal.change(files)
            self._start(self._home)
        self._verify()

    def _start(self, home: str) -> None:
        """Start the sockets of a tree, if they do not listen yet, and restart its service. A running exporter is
        restarted too, since another version may not understand the proxy."""
        self._node.run("systemctl", "daemon-reload")
        sockets = tree.unit_names(tree.units(self._node, home), ".socket")
        self._node.run("systemctl", "enable", *sockets, tree.SERVICE)
        self._node.run("systemctl", "start", *sockets)
        self._node.run("systemctl", "restart", tree.SERVICE)
        self._node.query("systemctl", "try-restart", tree.EXPORTER)
        tree.link_command(self._node, home)

    def _verify(self) -> None:
        """Check that the proxy is ready, and that a call passes through it. Raises Failed."""
        end = self._clock() + VERIFY_SECONDS
        while fault := self._fault():
            if self._clock() > end:
                raise Failed(f"the proxy is not ready: {fault}; journalctl -u {tree.SERVICE} on the node has more")
            self._sleep(1.0)
        for row in self._doctor():
            if row["check"] == "proxy" and row["verdict"] != "ok":
                raise Failed(f"no call passes through the proxy: {row['why']}")

    def _fault(self) -> str:
        _, output = self._node.query(self._program, "status", "-o", "json")
        try:
            reported = json.loads(output)
        except ValueError:
            return " ".join(output.split())
        bad = [f"{check['name']}: {check['reason']}" for check in reported["checks"] if check["state"] == "failed"]
        own = [line for line in bad if line.partition(":")[0] in OWN_CHECKS]
        return "; ".join(own) if reported["checks"] else str(reported["text"])

    def _drop_in(self) -> DropIn:
        return DropIn(self._node, self._program, self._reported)

    def _watch(self, drop_in: DropIn) -> Watch:
        ready = self._ready if self._reported.ready else lambda: True
        return Watch(self._node, drop_in.unit, self._desired.healthz_port, ready, self._sleep, self._clock)

    def _configure_kubelet(self, journal: Journal) -> None:
        """Point the kubelet at the proxy, or restore it, by the desired state."""
        if not self._desired.configure_kubelet:
            self._restore_kubelet(journal)
            return
        drop_in = self._drop_in()
        text = drop_in.text()
        if self._node.text(drop_in.path) != text:
            self._place()
            kubelet.change(self._node, journal, drop_in, text, self._watch(drop_in))

    def _restore_kubelet(self, journal: Journal) -> None:
        """Remove the installer's own drop-in. Raises RolledBack if the kubelet is unhealthy without it."""
        drop_in = self._drop_in()
        if not drop_in.is_installed:
            return
        self._place()
        try:
            kubelet.change(self._node, journal, drop_in, None, self._watch(drop_in))
        except BaseException as error:
            self._undo(journal)
            if isinstance(error, Stopped):
                raise
            raise RolledBack(f"{error_text(error)}; the node is as it was before") from error

    def _remove(self) -> None:
        """Stop the units and remove them. Raises Failed, OSError."""
        files = tree.units(self._node, self._home)
        self._node.run("systemctl", "stop", "runtimeproxy-hooks@*.service")
        self._node.run(
            "systemctl", "disable", "--now", *tree.unit_names(files, ".socket"), *tree.unit_names(files, ".service")
        )
        tree.link_command(self._node, "")
        service = f"{tree.UNITS}/{tree.SERVICE}"
        folders = {folder(file) for file in files} - {tree.UNITS}
        # As long as the service's file exists, the next run continues here.
        for path in [*(files.keys() - {service}), *folders, service]:
            self._node.remove(path)
        self._node.run("systemctl", "daemon-reload")

    def _undo(self, journal: Journal) -> None:
        """Restore the previous state, the kubelet first. Continues after a failure, then raises Failed."""
        changed = journal.undo()
        faults: list[str] = []
        for unit in (kubelet.UNIT, kubelet.CRI_DOCKERD):
            if any(path.startswith(f"{tree.UNITS}/{unit}.d/") for path in changed):
                with _collected(faults):
                    kubelet.restore(self._node, unit)
        if f"{tree.UNITS}/{tree.SERVICE}" in changed or CONFIG in changed:
            home, _ = tree.running(self._node)
            with _collected(faults):
                if home:
                    self._start(home)
                else:
                    self._stop_removed(changed)
        journal.close()
        if faults:
            raise Failed(f"rollback failed: {'; '.join(faults)}: repair this node by hand")

    def _stop_removed(self, files: set[str]) -> None:
        """Stop units whose files were removed."""
        units = tree.unit_names(files, ".socket") + tree.unit_names(files, ".service")
        self._node.query("systemctl", "stop", *units)
        for link in self._node.path(tree.UNITS).glob("*.wants/*"):
            if link.name in units:
                link.unlink()
        self._node.run("systemctl", "daemon-reload")
        tree.link_command(self._node, "")


class _collected(suppress):
    """Suppresses an error and appends its text to a list."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(Failed, OSError)
        self._faults = faults

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None:
            self._faults.append(error_text(error))
        return super().__exit__(kind, error, trace)
