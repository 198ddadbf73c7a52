"""The demo of scripts/demo: pods go through the proxy, and the hook servers' changes are shown, in both modes.

``pods`` are the pods and their expected values, ``scene`` creates and inspects them by the calls of ``kubelets``.
``runtimes`` has the engines and the fakes, ``rdt`` the machine's resctrl or the stand-in, ``hookservers`` the hook
servers' command lines, of which ``notes`` and ``standin`` are the demo's own. ``report`` prints and judges.
"""
