"""A hook server of the SDK that does nothing, at every hook point: the cost of an answer without any work of a hook."""

from runtimeproxy_hooks import ContainerContext, Hook, PodContext, main


class Bare(Hook):
    """Leaves everything unchanged."""

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Do nothing."""

    def pre_create_container(self, container: ContainerContext) -> None:
        """Do nothing."""

    post_start_container = pre_create_container


if __name__ == "__main__":
    main(Bare())
