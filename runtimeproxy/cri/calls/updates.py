"""CRI's calls that change resources of existing pods and containers: updates, and a start with an update before it.

Owns what such a call sets in the runtime and in the record.
Must not know: frames, windows, hook servers.
Invariant: the record equals what the runtime has, also where an update names a field that no runtime changes.
"""

from collections.abc import Mapping
from dataclasses import replace

from runtimeproxy.core.call import Reply, read_once
from runtimeproxy.cri import edit, translate
from runtimeproxy.cri.calls.base import ContainerCall, PodCall
from runtimeproxy.errors import BackendError, BackendFailure
from runtimeproxy.model import no_effect, records
from runtimeproxy.model.hookpoints import Operation
from runtimeproxy.model.records import EffectiveUpdate, RequestedUpdate
from runtimeproxy.model.values import (
    Adjustment,
    HookRequest,
    PodInfo,
    PodRecord,
    Resources,
    ResourceValue,
    Subject,
    named,
)

UPDATE_SECONDS = 10.0
"""Seconds for the extra update of PreStartContainer where the caller gave no deadline."""


class UpdatePodCall(PodCall):
    """UpdatePodSandboxResources: it has no hook point and is held only to update the pod's record."""

    @read_once
    def asked(self) -> tuple[Resources | None, Resources | None]:
        """Return the overhead and the resources that the request asks for. Raises Unreadable."""
        return translate.read_pod_update(self.message)

    def order_key(self) -> str:
        """Return the pod's id. Raises Unreadable if any part of the request cannot be read."""
        _ = self.asked
        return self.id

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Return the pod with the overhead and resources that the request sets, in original and effective values."""
        overhead, resources = self.asked

        def updated(pod: PodInfo) -> PodInfo:
            return replace(pod, overhead=overhead or pod.overhead, resources=resources or pod.resources)

        pod = subject.pod
        reported = None if resources else pod.reported
        return Subject(PodRecord(updated(pod.original), updated(pod.effective), pod.read, reported))


class StartCall(ContainerCall):
    """StartContainer: resources that a Pre hook sets go to the runtime in an UpdateContainerResources before it."""

    prepares = True

    async def prepare(self, subject: Subject, adjustment: Adjustment) -> Mapping[str, ResourceValue]:
        """Update the created container, so that it starts with these resources (hook-api, PreStartContainer).

        Returns the resources that were set. Raises BackendError; if the update may have been applied all the same, the
        call is ``state_unknown`` from then on.
        """
        present = records.container_of(subject).effective.resources
        said = edit.values_for_update(
            adjustment.resources, present, accepts_unlimited_memory=self.shared.backend.accepts_unlimited_memory
        )
        self.leave_out(said.left_out)
        self.shared.metrics.normalised(edit.respelt(adjustment.resources, said.resources), adjustment.owners)
        resources = {name: value for name, value in said.resources.items() if value}
        if not resources:
            return {}
        seconds = UPDATE_SECONDS if self.deadline is None else self.deadline - self.shared.clock()
        if seconds <= 0:
            raise BackendError("no time is left of the caller's deadline", BackendFailure.DEADLINE, not_done=True)
        request = edit.update_request(self.id, resources, present)
        try:
            await self.shared.backend.update(self.version, request, seconds)
        except BaseException as error:
            self.state_unknown |= not (isinstance(error, BackendError) and error.not_done)
            raise
        unused = self.shared.backend.no_effect.get(Operation.UPDATE_CONTAINER_RESOURCES)
        return self.used(Adjustment(resources=resources), unused).resources if unused else resources


class UpdateCall(ContainerCall):
    """UpdateContainerResources: hooks see the kubelet's original values, the runtime gets what differs (hook-api)."""

    @read_once
    def said(self) -> EffectiveUpdate:
        """Return what the request asks for, and what ``edited`` added to it. Raises Unreadable."""
        return EffectiveUpdate(RequestedUpdate(*translate.read_update(self.message)))

    def order_key(self) -> str:
        """Return the container's id. Raises Unreadable if any part of the request cannot be read."""
        _ = self.said
        return self.id

    def hook_request(self, subject: Subject) -> HookRequest:
        """Return the record's original values overlaid by what this request sets."""
        return records.told_of_update(subject, self.said.asked)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put each field into the message whose value would differ in the runtime after the unedited message."""
        differing = records.differing(subject, self.said.asked, adjustment)
        present = records.container_of(subject).effective.resources
        said = edit.values_for_update(
            differing,
            present,
            self.said.asked.resources,
            accepts_unlimited_memory=self.shared.backend.accepts_unlimited_memory,
        )
        self.leave_out(said.left_out)
        self.shared.metrics.normalised(edit.respelt(differing, said.resources), adjustment.owners)
        message = edit.edit_update(self.message, said.resources, adjustment.annotations)
        self.said = EffectiveUpdate(self.said.asked, said.resources, adjustment.annotations)
        return message

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Return the container with the kubelet's values and the runtime's values updated separately."""
        said = self.said
        taken = edit.without_fixed_fields(said.asked.resources)
        if taken is not said.asked.resources:
            said = replace(said, asked=replace(said.asked, resources=taken))
        if unused := self.shared.backend.no_effect.get(self.operation):
            hooked = self.used(Adjustment(annotations=said.annotations, resources=said.put_in), unused)
            of_kubelet = Adjustment(annotations=said.asked.annotations, resources=named(said.asked.resources))
            of_kubelet, _ = no_effect.used(of_kubelet, unused)
            resources = Resources(**of_kubelet.resources)  # type: ignore[arg-type]
            request = RequestedUpdate(said.asked.container_id, resources, of_kubelet.annotations)
            said = EffectiveUpdate(request, hooked.resources, hooked.annotations)
        return records.updated(subject, said, adjustment)
