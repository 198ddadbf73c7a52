"""The class of held call for each operation.

Owns nothing but the table.
Must not know: what the classes do.
Invariant: every operation has a row.
"""

from runtimeproxy.cri.calls.base import ContainerCall, CriCall, PodCall
from runtimeproxy.cri.calls.creates import CreateCall, RunPodCall
from runtimeproxy.cri.calls.updates import StartCall, UpdateCall, UpdatePodCall
from runtimeproxy.model.hookpoints import Operation

KINDS: dict[Operation, type[CriCall]] = {
    Operation.RUN_POD_SANDBOX: RunPodCall,
    Operation.STOP_POD_SANDBOX: PodCall,
    Operation.REMOVE_POD_SANDBOX: PodCall,
    Operation.UPDATE_POD_SANDBOX_RESOURCES: UpdatePodCall,
    Operation.CREATE_CONTAINER: CreateCall,
    Operation.START_CONTAINER: StartCall,
    Operation.UPDATE_CONTAINER_RESOURCES: UpdateCall,
    Operation.STOP_CONTAINER: ContainerCall,
    Operation.REMOVE_CONTAINER: ContainerCall,
}
