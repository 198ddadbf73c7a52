"""The node-installer: install the proxy as a service of a node, point the kubelet at it, and undo both.

It runs in a pod of the chart's DaemonSet (``python3 -m runtimeproxy_installer``) with the node's root directory at
/host, and imports only the standard library. Each step is one module:

``desired``  the state that the chart requests
``node``     the node's files and commands
``journal``  the files before a change, so that this run or a later one can undo it
``tree``     the archive: its digest, its directory on the node, its units
``kubelet``  the kubelet's drop-in, its restart, and its health
``api``      the Kubernetes API: the node's annotations, and leases
``places``   how many nodes change at the same time
``work``     the order of these steps

Invariant: after any failure a node has the proxy and the kubelet configuration from before, or the desired ones. Its
annotations name the result.
"""
