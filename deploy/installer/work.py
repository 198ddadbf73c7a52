"""The order of the work on a node: look, unpack, wait for a place, install, start, verify, then the kubelet; and back.

Owns what is done before what, and what a failure undoes.
Must not know: how a place is held, how anything is reported.
Invariant: nothing of the node is changed but /opt/runtimeproxy before all that can be looked at is good; the kubelet is
the last to be pointed at the proxy and the first to be taken off it.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import kubelet, tree
from .errors import Failed, Refused, RolledBack, Stopped, words
from .journal import Journal, folder
from .kubelet import DropIn, Kubelet, Watch
from .node import Node
from .wanted import Wanted

ARCHIVES = Path("/usr/share/runtimeproxy")
CONFIG = "/etc/runtimeproxy/config.yaml"
CONFIG_HEAD = "# The values nodeInstaller.config of runtimeproxy's chart.\n"
REGISTRATIONS = "/etc/runtime/hookserver.d"
GROUP = "runtimeproxy-metrics"
VERIFY_SECONDS = 30.0
OWN_CHECKS = ("listening", "registrations_read", "runtime", "not_draining")
"""The checks of /readyz that an installation answers for. A hook server that is unavailable is none of them."""
GOOD_BEFORE = ("runtime", "registrations", "cgroup")
"""The checks of doctor that must not fail before anything is changed."""


class Work:
    """The work on one node, reported by ``kubelet`` and ``wanted``.

    ``place`` is called before the first change of the node, and returns when this node may change. ``ready`` queries
    whether the node is ready.
    """

    def __init__(
        self,
        node: Node,
        wanted: Wanted,
        reported: Kubelet,
        place: Callable[[], None],
        ready: Callable[[], bool],
        *,
        archives: Path = ARCHIVES,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._wanted = wanted
        self._reported = reported
        self._place = place
        self._ready = ready
        self._archives = archives
        self._sleep = sleep
        self._clock = clock
        self._home = ""

    def install(self) -> str:
        """Make the node as wanted; return the version. Raises Refused, Failed, RolledBack."""
        if not self._node.path("/run/systemd/system").is_dir():
            raise Refused("systemd does not run this node: install the proxy by hand")
        if any(self._node.path(unit).exists() for unit in tree.PACKAGE_UNITS):
            raise Refused("a package has put the proxy on this node: upgrade it as such, or remove it first")
        archive = tree.Archive(self._archives, self._wanted.sha256)
        _, version = tree.running(self._node)
        if version and tree.is_newer(version, archive.version) and not self._wanted.allow_downgrade:
            raise Refused(
                f"the node has {version}, newer than {archive.version}: take a newer archive, or set "
                "nodeInstaller.allowDowngrade"
            )
        journal = self._resumed()
        archive.unpack(self._node)
        self._home = archive.home
        self._look()
        before, _ = tree.running(self._node)
        try:
            self._switch(journal)
            self._kubelet(journal)
        except BaseException as error:
            if not journal.open:  # nothing was changed, or it was undone
                raise
            self._undo(journal)
            if isinstance(error, Stopped):
                raise
            raise RolledBack(f"{words(error)}; the node is as it was before") from error
        journal.done()
        tree.remove_others(self._node, archive.home, before)
        return archive.version

    def uninstall(self) -> None:
        """Take the proxy off the node. Raises Refused, Failed, RolledBack."""
        journal = self._resumed()
        self._home, _ = tree.running(self._node)
        if self._home:
            self._place()
            self._kubelet_back(journal)
            journal.done()
            code, users = self._node.query(self._program, "in-use", "--no-headers")
            if code:
                reported = " ".join(users.split())
                raise Refused(f"still in use: {reported}: point it back (runtimeproxy kubelet-args) first")
            self._remove()
        tree.remove_others(self._node)

    @property
    def _program(self) -> str:
        return f"{self._home}/bin/runtimeproxy"

    def _resumed(self) -> Journal:
        """Return the journal, after what an earlier run has left half done was undone."""
        journal = Journal(self._node)
        if journal.open:
            self._place()
            self._undo(journal)
        return journal

    def _look(self) -> None:
        """Look at the node with the new tree, which runs nowhere yet. Raises Refused, Failed."""
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
                if row["verdict"] == "failed" and row["check"] in GOOD_BEFORE:
                    raise Refused(f"doctor: {row['check']}: {row['why']}; {row['do']}")
        finally:
            if config:
                self._node.remove(config)
        self._check_group()
        if self._wanted.configure_kubelet:
            drop_in = self._drop_in()
            drop_in.text()
            if fault := self._watch(drop_in).unwell():
                raise Refused(f"{fault}, before anything was changed: repair the kubelet first")

    def _doctor(self, *flags: str) -> list[dict[str, Any]]:
        _, output = self._node.query(self._program, "doctor", "-o", "json", *flags)
        try:
            rows: list[dict[str, Any]] = json.loads(output)
        except ValueError:
            raise Failed(f"doctor does not answer: {' '.join(output.split())}") from None
        return rows

    def _config(self) -> str:
        """Return the text of the configuration, "" if the node's own one, or none, stays. Raises OSError."""
        own = not (self._node.text(CONFIG) or CONFIG_HEAD).startswith(CONFIG_HEAD)
        keys = {**self._reported.config, **self._wanted.config}
        if not keys or (own and not self._wanted.config):
            return ""
        return CONFIG_HEAD + "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(keys.items()))

    def _check_group(self) -> None:
        number = self._group()
        if number not in (None, self._wanted.metrics_group_id):
            raise Refused(f"the group {GROUP} has the number {number} here: set metricsGroupId to it for this pool")

    def _group(self) -> int | None:
        rows = (line.split(":") for line in (self._node.text("/etc/group") or "").splitlines())
        return next((int(row[2]) for row in rows if row[0] == GROUP), None)

    def _switch(self, journal: Journal) -> None:
        """Have the node's units run the new tree. Raises Failed, OSError."""
        files = tree.units(self._node, self._home)
        if text := self._config():
            files[CONFIG] = text
        before, _ = tree.running(self._node)
        if before:  # units that the new tree has no more
            files |= dict.fromkeys(tree.units(self._node, before).keys() - files.keys())
        if any(self._node.text(place) != text for place, text in files.items()) or not self._node.active(tree.SERVICE):
            self._place()
            if self._group() is None:
                self._node.run("groupadd", "--system", f"--gid={self._wanted.metrics_group_id}", GROUP)
            self._node.path(REGISTRATIONS).mkdir(mode=0o755, parents=True, exist_ok=True)
            journal.change(files)
            self._start(self._home)
        self._verify()

    def _start(self, home: str) -> None:
        """Start the sockets of a tree, if they do not listen yet, and restart its service; an exporter that runs is
        restarted too, since one of another version may not understand the proxy."""
        self._node.run("systemctl", "daemon-reload")
        sockets = tree.names(tree.units(self._node, home), ".socket")
        self._node.run("systemctl", "enable", *sockets, tree.SERVICE)
        self._node.run("systemctl", "start", *sockets)
        self._node.run("systemctl", "restart", tree.SERVICE)
        self._node.query("systemctl", "try-restart", tree.EXPORTER)
        tree.link(self._node, home)

    def _verify(self) -> None:
        """See that the proxy is ready, and that a call passes through it. Raises Failed."""
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
        bad = [f"{found['name']}: {found['reason']}" for found in reported["checks"] if found["state"] == "failed"]
        own = [words for words in bad if words.partition(":")[0] in OWN_CHECKS]
        return "; ".join(own) if reported["checks"] else str(reported["text"])

    def _drop_in(self) -> DropIn:
        return DropIn(self._node, self._program, self._reported)

    def _watch(self, drop_in: DropIn) -> Watch:
        ready = self._ready if self._reported.ready else lambda: True
        return Watch(self._node, drop_in.unit, self._wanted.healthz_port, ready, self._sleep, self._clock)

    def _kubelet(self, journal: Journal) -> None:
        """Point the kubelet at the proxy, or take it off again, as is wanted."""
        if not self._wanted.configure_kubelet:
            self._kubelet_back(journal)
            return
        drop_in = self._drop_in()
        text = drop_in.text()
        if self._node.text(drop_in.place) != text:
            self._place()
            kubelet.change(self._node, journal, drop_in, text, self._watch(drop_in))

    def _kubelet_back(self, journal: Journal) -> None:
        """Take the installer's own drop-in away. Raises RolledBack if the kubelet is not well without it."""
        drop_in = self._drop_in()
        if not drop_in.there:
            return
        self._place()
        try:
            kubelet.change(self._node, journal, drop_in, None, self._watch(drop_in))
        except BaseException as error:
            self._undo(journal)
            if isinstance(error, Stopped):
                raise
            raise RolledBack(f"{words(error)}; the node is as it was before") from error

    def _remove(self) -> None:
        """Stop the units and remove them. Raises Failed, OSError."""
        files = tree.units(self._node, self._home)
        self._node.run("systemctl", "stop", "runtimeproxy-hooks@*.service")
        self._node.run("systemctl", "disable", "--now", *tree.names(files, ".socket"), *tree.names(files, ".service"))
        tree.link(self._node, "")
        service = f"{tree.UNITS}/{tree.SERVICE}"
        folders = {folder(file) for file in files} - {tree.UNITS}
        # While the service's file is there, the next run continues here.
        for place in [*(files.keys() - {service}), *folders, service]:
            self._node.remove(place)
        self._node.run("systemctl", "daemon-reload")

    def _undo(self, journal: Journal) -> None:
        """Bring back what was there before, the kubelet first. What fails does not stop the rest. Raises Failed."""
        changed = journal.undo()
        faults: list[str] = []
        for unit in (kubelet.UNIT, kubelet.CRI_DOCKERD):
            if any(place.startswith(f"{tree.UNITS}/{unit}.d/") for place in changed):
                with _collected(faults):
                    kubelet.back(self._node, unit)
        if f"{tree.UNITS}/{tree.SERVICE}" in changed or CONFIG in changed:
            home, _ = tree.running(self._node)
            with _collected(faults):
                if home:
                    self._start(home)
                else:
                    self._stop_removed(changed)
        journal.done()
        if faults:
            raise Failed(f"the way back failed: {'; '.join(faults)}: repair this node by hand")

    def _stop_removed(self, files: set[str]) -> None:
        """Stop units whose files are gone."""
        units = tree.names(files, ".socket") + tree.names(files, ".service")
        self._node.query("systemctl", "stop", *units)
        for wanted in self._node.path(tree.UNITS).glob("*.wants/*"):
            if wanted.name in units:
                wanted.unlink()
        self._node.run("systemctl", "daemon-reload")
        tree.link(self._node, "")


class _collected(suppress):
    """Adds what fails within it to a list, and continues."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(Failed, OSError)
        self._faults = faults

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None:
            self._faults.append(words(error))
        return super().__exit__(kind, error, trace)
