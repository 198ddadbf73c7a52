"""A hook server of the SDK that does nothing, at every hook point: what an answer costs before a hook does anything."""

from runtimeproxy_hooks import ContainerContext, Hook, PodContext, main


class Bare(Hook):
    """Leaves everything as it is."""

    def pre_run_pod_sandbox(self, pod: PodContext) -> None:
        """Do nothing."""

    def pre_create_container(self, container: ContainerContext) -> None:
        """Do nothing."""

    post_start_container = pre_create_container


if __name__ == "__main__":
    main(Bare())
