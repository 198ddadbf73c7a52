"""The demo of scripts/demo: pods go through the proxy, and the hook servers' changes are shown, in both modes.

``pods`` are the pods and their expected values, ``scene`` creates and inspects them by the calls of ``kubelets``, and
prints and judges what was found. ``runtimes`` has the engines and the fakes, ``rdt`` the machine's resctrl or the
stand-in, ``hookservers`` the hook servers, of which two are the demo's own.
"""
