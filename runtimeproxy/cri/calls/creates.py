"""CRI's creates: RunPodSandbox and CreateContainer.

Owns how a create becomes a subject, how an adjustment is put into it, what its outcome is.
Must not know: frames, windows, hook servers.
Invariant: what is made is known by what the kubelet calls it until the runtime gives it an id.
"""

from dataclasses import replace

from runtimeproxy.core.call import Reply, read_once
from runtimeproxy.core.store import Store
from runtimeproxy.cri import edit, translate
from runtimeproxy.cri.calls.base import CriCall
from runtimeproxy.model import records
from runtimeproxy.model.values import Adjustment, ContainerInfo, PodInfo, PodRecord, Subject


class RunPodCall(CriCall):
    """RunPodSandbox: the pod is in the request."""

    @read_once
    def asked(self) -> PodInfo:
        """Return the pod as the kubelet asks for it. Raises Unreadable."""
        return translate.read_pod(self.message)

    def order_key(self) -> str:
        """Name the pod by what the kubelet calls it: it has no id yet."""
        return f"{self.asked.namespace}/{self.asked.name}/{self.asked.uid}/{self.asked.attempt}"

    def subject(self, store: Store) -> Subject | None:
        """Read the pod."""
        return Subject(PodRecord(self.asked, self.asked))

    async def read_subject(self, store: Store) -> Subject | None:
        """Need nobody: the request has it all."""
        return self.subject(store)

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the sandbox config."""
        return edit.edit_pod(self.message, edit.said_in_create(adjustment, self.asked.resources))

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        said = edit.said_in_create(adjustment, self.asked.resources)
        return records.created_pod(subject, said, translate.read_id(reply.message))


class CreateCall(CriCall):
    """CreateContainer: the container is in the request, its pod in the Store."""

    @read_once
    def asked(self) -> tuple[ContainerInfo, PodInfo | None]:
        """Return the container as the kubelet asks for it, and what this request says of its pod. Raises Unreadable."""
        return translate.read_container(self.message)

    def order_key(self) -> str:
        """Name the container by its pod and name: it has no id yet."""
        container, _ = self.asked
        return f"{container.pod_id}/{container.name}/{container.attempt}"

    def subject(self, store: Store) -> Subject | None:
        """Look the pod up."""
        container, _ = self.asked
        return self._in(store.pod(container.pod_id) or store.pod(store.whole_pod_id(container.pod_id)))

    async def read_subject(self, store: Store) -> Subject | None:
        """Ask the runtime for the pod."""
        container, _ = self.asked
        return self._in(await self.read_pod(container.pod_id, store))

    def _in(self, pod: PodRecord | None) -> Subject | None:
        """Return the container in its pod."""
        if pod is None:
            return None
        container, asked_pod = self.asked
        if container.pod_id != pod.effective.id:  # but its beginning
            container = replace(container, pod_id=pod.effective.id)
            self.asked = container, asked_pod
        return records.in_pod(pod, asked_pod, container)

    def unedited(self, store: Store) -> bool:
        """Tell that no pod has a cgroup parent that a hook gave it."""
        return not store.has_moved_pods

    def edited(self, subject: Subject, adjustment: Adjustment) -> bytes:
        """Put the adjustment into the container config, and the pod's cgroup parent where a hook changed it."""
        parent = records.parent_to_put_in(subject.pod, adjustment)
        said = edit.said_in_create(adjustment, self.asked[0].resources)
        return edit.edit_container(self.message, said, parent)

    def outcome(self, subject: Subject, adjustment: Adjustment, reply: Reply) -> Subject:
        """Add the id that the runtime gave."""
        said = edit.said_in_create(adjustment, self.asked[0].resources)
        return records.created_container(subject, said, translate.read_id(reply.message))
