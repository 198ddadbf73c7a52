"""Checks of the hook servers: their registration files, a call to each, and the skip label.

Invariant: only a Pre hook point is called, for a pod without labels, annotations and variables, in a cgroup that does
not exist: a Post call would report to hook servers something that has not happened.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from shlex import quote
from time import perf_counter

from runtimeproxy.cli.doctor.clients import count_of
from runtimeproxy.cli.doctor.findings import AS_ROOT, CALL_SECONDS, Finding, failed, ok, unknown, warning
from runtimeproxy.cli.doctor.machine import Machine, is_denied, is_same_path
from runtimeproxy.errors import HookError, Reason
from runtimeproxy.files import StateError, folder_fault
from runtimeproxy.model.fields import ContainerInfo, HookRequest, PodInfo
from runtimeproxy.model.hookpoints import BY_NAME
from runtimeproxy.plugins import directory, disabling
from runtimeproxy.plugins.client import HookClient
from runtimeproxy.plugins.disabling import Disabled
from runtimeproxy.plugins.manager import disabled_with, repeated_calls, repetitions, sockets_of
from runtimeproxy.plugins.registration import FailurePolicy, Registration, Registry, plugin_name
from runtimeproxy.settings import config

_NAME = "runtimeproxy-doctor"
INVENTED = HookRequest(
    PodInfo(name=_NAME, namespace=_NAME, uid=_NAME, cgroup_parent=f"/{_NAME}"), ContainerInfo(name=_NAME)
)
CALLED_POINTS = ("PreCreateContainer", "PreRunPodSandbox", "PreUpdateContainerResources", "PreStartContainer")
"""The hook points that may be called; the first registered one is called."""

_MASK = "remove it, and disable again what must not run"
_ADVICE = {
    Reason.UNREACHABLE: "start the hook server, or remove its registration file",
    Reason.DEADLINE: "restart it, or look why it hangs",
    Reason.UNIMPLEMENTED: "take the hook point out of the registration file, or update the hook server",
    Reason.UNTRUSTED_SOCKET: "let only root, or the proxy's own user, own the socket and its directory",
}
_VERIFY_ADVICE = "try `runtimeproxy hook verify` with its registration file, on a node that serves nobody"


def registrations(machine: Machine) -> Iterator[Finding]:
    folder = machine.config.hookserver_config_dir
    try:
        fault = folder_fault(os.stat(folder), None)
    except FileNotFoundError:
        yield ok(f"{folder} is not there: no hook server is registered")
        return
    if fault:
        yield failed(f"{folder} {fault}, who could register a hook server", "chown it to root and chmod it to 0755")
    registry, findings = Registry(), list[Finding]()
    for change in registry.replace(directory.read(folder)):
        if change.registration is None:
            advice = "correct the file or remove it; the proxy goes by the last good one until its restart"
            findings.append(failed(change.reason, advice))
        else:
            advice = "correct the file: docs/registration.rst has its keys and hook points"
            findings += [warning(line, advice) for line in change.registration.warnings]
    repeated = repetitions(repeated_calls(registry.registrations))
    findings += [warning(text, "remove one of the two files") for text in repeated]
    yield from findings or [ok(f"{folder} has {count_of(len(registry.names), 'registration file')}")]


def hook_servers(machine: Machine) -> Iterator[Finding]:
    registry = Registry()
    registry.replace(directory.read(machine.config.hookserver_config_dir))
    good = {plugin_name(entry.name): entry for entry in registry.registrations}
    disabled: Mapping[str, Disabled] = {}
    mask = disabling.mask_file(machine.config.state_dir, machine.config.listen_endpoint)
    try:
        if is_denied(mask.path):
            yield unknown(f"{mask.path}: Permission denied", AS_ROOT)
        elif machine.config.state_dir:
            disabled = disabling.read(mask)
    except StateError as error:
        yield warning(f"{error}: at its next start the proxy disables no hook server by it", _MASK)
    shared = disabled_with(sockets_of(good.values()), disabled.keys())
    why = {name: f"by hand ({entry.reason})" for name, entry in disabled.items()}
    why |= {name: f"with {cause}, which names the same socket," for name, cause in shared.items()}
    for name, text in why.items():
        advice = f"`runtimeproxy hook enable {quote(name)}{_admin_flag(machine)}` when it is well again"
        yield warning(f"{name} is disabled {text} and was not called", advice)
    if not good:
        yield ok("no hook server is registered")
    elif called := [replace(entry, name=name) for name, entry in good.items() if name not in why]:
        yield from asyncio.run(_call_all(machine, called))


async def _call_all(machine: Machine, registered: list[Registration]) -> list[Finding]:
    return await asyncio.gather(*(_call_hook_server(machine, entry) for entry in registered))


async def _call_hook_server(machine: Machine, entry: Registration) -> Finding:
    seconds = min(entry.timeout_seconds or machine.config.hook_timeout_seconds, CALL_SECONDS)
    if is_denied(entry.endpoint):
        return unknown(f"{entry.name}: {entry.endpoint}: Permission denied", AS_ROOT)
    name = next((name for name in CALLED_POINTS if name in entry.points), None)
    client = HookClient(entry.name, entry.endpoint, machine.config.hook_answer_bytes)
    began = perf_counter()
    try:
        if name is None:
            if client.peer().socket is None:
                text = f"{entry.name}: {entry.endpoint}: nobody that the proxy trusts listens there"
                return warning(text, _ADVICE[Reason.UNREACHABLE])
            return ok(f"{entry.name}: {entry.endpoint} listens; it has no Pre hook point and was not called")
        await client.call(BY_NAME[name], INVENTED, seconds)
    except HookError as error:
        if error.reason is Reason.REFUSED:
            return ok(f"{entry.name}: {entry.endpoint} answered: it refuses the invented pod")
        advice = _ADVICE.get(error.reason, _VERIFY_ADVICE)
        if entry.policy is not FailurePolicy.FAIL:
            return warning(f"{error.logged} (calls continue without it, policy Ignore)", advice)
        if machine.config.admin_endpoint:
            flags = f"--reason={error.reason.value}{_admin_flag(machine)}"
            advice += (
                f"; until then `runtimeproxy hook disable {quote(entry.name)} {flags}` lets calls continue without it"
            )
        return failed(f"{error.logged} (calls are refused, policy Fail)", advice)
    finally:
        await client.close()
    elapsed = perf_counter() - began
    text = f"{entry.name}: {entry.endpoint} answered {name} in {elapsed * 1000:.0f} ms"
    if elapsed > seconds / 2:
        return warning(f"{text}, more than half of its time limit", "look why it is slow")
    return ok(text)


def _admin_flag(machine: Machine) -> str:
    """Return the flag by which a command finds the proxy's admin socket, after a space; "" for the default one."""
    endpoint = machine.config.admin_endpoint
    return "" if is_same_path(endpoint, config.load({}, {}).admin_endpoint) else f" --admin-endpoint={quote(endpoint)}"


def skip_label(machine: Machine) -> Iterator[Finding]:
    label = f"{machine.config.skip_label_key}={machine.config.skip_label_value}"
    yield ok(f"pods with the label {label} are never handed to hook servers, whatever the failure policy")
