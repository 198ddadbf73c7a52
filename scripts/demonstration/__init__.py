"""What scripts/demo shows: pods' way through the proxy, and what the hook servers changed on them, in both modes.

``pods`` are the pods and what must come of them, ``scene`` makes and looks at them; ``cri`` and ``docker`` make its
calls as a kubelet does in their mode. ``runtimes`` has the engines and the fakes, ``rdt`` the machine's resctrl or the
stand-in, ``hookservers`` the command lines of the hook servers, of which ``notes`` and ``standin`` are the demo's own.
``processes`` starts and ends programs, ``interruption`` says what a signal does, ``report`` prints and judges.
"""
