"""CRI's creates: RunPodSandbox and CreateContainer.

Owns how a create becomes a subject, how an adjustment is put into it, what its outcome is.
Must not know: frames, windows, hook servers.
Invariant: until the runtime gives it an id, a new pod or container is identified by its metadata in the request.
"""

from dataclasses import replace

from runtimeproxy.core.call import Reply, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.cri import edit, translate
from runtimeproxy.cri.calls.base import CriCall
from runtimeproxy.model import no_effect, records
from runtimeproxy.model.values import Adjustment, ContainerInfo, ContainerRecord, PodInfo, PodRecord, Subject


class RunPodCall(CriCall):
    """RunPodSandbox: the request describes the pod."""

    @read_once
    def asked(self) -> PodInfo:
        """Return the pod that the kubelet asks for. Raises Unreadable."""
        return translate.read_pod(self.message)

    def order_key(self) -> str:
        """Return the pod's namespace, name, uid and attempt: it has no id yet. Raises Unreadable."""
        return self.asked.full_name

    def subject(self, store: Store) -> Subject | None:
        """Return the pod described in the request. Raises Unreadable."""
        return Subject(PodRecord(self.asked, self.asked))

    async def read_subject(self, store: Store) -> Subject | None:
        """Return the pod described in the request: the runtime does not have it yet. Raises Unreadable."""
        return self.subject(store)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the sandbox config."""
        said = edit.values_for_create(adjustment, self.asked.resources)
        if said is not adjustment:
            self.shared.metrics.normalised(edit.respelt(adjustment.resources, said.resources), adjustment.owners)
        return edit.edit_pod(self.message, said)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        said, pod_id = edit.values_for_create(adjustment, self.asked.resources), translate.read_id(reply.message)
        unused = self.shared.backend.no_effect.get(self.operation)
        if unused and said.resources and self.asked.runtime_handler in no_effect.PLAIN_HANDLERS:
            return records.created_pod(subject, self.used(said, unused), pod_id, said.resources)
        return records.created_pod(subject, said, pod_id)

    async def read_made(self, store: Store, made: Subject) -> PodRecord | None:
        """Read the pod from the runtime."""
        return await self.read_pod(made.pod.effective.id, store)


class CreateCall(CriCall):
    """CreateContainer: the request describes the container, the Store has its pod."""

    @read_once
    def asked(self) -> tuple[ContainerInfo, PodInfo | None]:
        """Return the container that the kubelet asks for, and what this request says of its pod. Raises Unreadable."""
        return translate.read_container(self.message)

    def order_key(self) -> str:
        """Return the pod's id with the container's name and attempt: it has no id yet. Raises Unreadable."""
        container, _ = self.asked
        return container.full_name

    def subject(self, store: Store) -> Subject | None:
        """Return the container in its pod from the Store; None if the Store lacks the pod."""
        container, _ = self.asked
        return self._in(store.pod(container.pod_id) or store.pod(store.whole_pod_id(container.pod_id)))

    async def read_subject(self, store: Store) -> Subject | None:
        """Return the container in its pod, read from the runtime."""
        container, _ = self.asked
        return self._in(await self.read_pod(container.pod_id, store))

    def _in(self, pod: PodRecord | None) -> Subject | None:
        """Return the container in ``pod``, with the pod's full id; None without a pod."""
        if pod is None:
            return None
        container, asked_pod = self.asked
        if container.pod_id != pod.effective.id:  # the request has the beginning of the id
            container = replace(container, pod_id=pod.effective.id)
            self.asked = container, asked_pod
        return records.in_pod(pod, asked_pod, container)

    def unedited(self, store: Store) -> bool:
        """Return whether no pod in the Store has a cgroup parent that a hook set."""
        return not store.has_changed_parents

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the container config, and the pod's cgroup parent where a hook changed it."""
        parent = records.parent_to_put_in(subject.pod, adjustment)
        said = edit.values_for_create(adjustment, self.asked[0].resources)
        if said is not adjustment:
            self.shared.metrics.normalised(edit.respelt(adjustment.resources, said.resources), adjustment.owners)
        return edit.edit_container(self.message, said, parent)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        said = edit.values_for_create(adjustment, self.asked[0].resources)
        if said and (unused := self.shared.backend.no_effect.get(self.operation)):
            said = self.used(said, unused)
        return records.created_container(subject, said, translate.read_id(reply.message))

    async def read_made(self, store: Store, made: Subject) -> ContainerRecord | None:
        """Read the container from the runtime."""
        return await self.read_container(records.container_of(made).effective.id, store)
