"""What scripts/demo shows: a pod's way through the proxy, and what the hook server changed on it, in both modes.

``scene`` is the pod and what must come of it; ``cri`` and ``docker`` make its calls as a kubelet does in their mode.
``runtimes`` has the engines and the fakes, ``processes`` starts and ends programs, ``interruption`` says what a signal
does, ``report`` prints and judges.
"""
