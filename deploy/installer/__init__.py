"""The node-installer: put the proxy on a node as its service, point the kubelet at it, and take both back.

It runs in a pod of the chart's DaemonSet (``python3 -m runtimeproxy_installer``) with the node's root directory at
/host, and uses Python's own library alone. One step is one file:

``wanted``   what the chart requests
``node``     the node's files and commands
``journal``  what was there before a change, so that it can be undone, also by a later run
``tree``     the archive: its digest, its place on the node, its units
``kubelet``  the kubelet's drop-in, its restart, and whether it is well
``api``      the Kubernetes API: the node's annotations, and leases
``places``   how many nodes change at a time
``work``     the order of all that

Invariant: whatever fails, a node has the proxy and the kubelet's configuration that it had before, or those that are
wanted, and its annotations name it.
"""
