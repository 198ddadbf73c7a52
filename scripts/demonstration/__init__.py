"""What scripts/demo shows: pods' way through the proxy, and what the hook servers changed on them, in both modes.

``pods`` are the pods and what must come of them, ``scene`` makes and looks at them by the calls of ``kubelets``.
``runtimes`` has the engines and the fakes, ``rdt`` the machine's resctrl or the stand-in, ``hookservers`` the hook
servers' command lines, of which ``notes`` and ``standin`` are the demo's own. ``report`` prints and judges.
"""
