"""A proxy between the kubelet and the container runtime that calls hook servers: hold, edit, release.

The straight line of one intercepted call, the same for every front:

1. ``relay.pair`` moves bytes between a client and the runtime; ``cri.reader`` reads the frames beside them,
   ``docker.reader`` the heads of HTTP/1.1.
2. A head that names a held operation makes a ``cri.held`` stream or a held ``docker.exchange``; when its request is
   whole, a ``cri.call`` or a ``docker.call`` (``creates``, ``references``) stands for it.
3. ``lifecycle`` runs the call, without a task (``fiber``): ``store`` knows the pod and container, ``dispatcher`` asks
   the hook servers (``plugins``), ``merge`` makes one adjustment of their answers, the call edits its message
   (``cri.edit``, ``docker.edit``) and releases it.
4. The runtime's answer stays held until the Store is written and the Post hooks are done; then its own bytes go out.
   Where nobody is told they go first. What became of a start or a stop whose answer never comes is asked of the runtime
   (``unknown_outcomes``); what other such calls are about is read anew.

Beside the calls ``sync`` keeps the Store equal to what the runtime has, through ``cri.sync`` or ``docker.lookup``, and
``originals`` keeps in a file what no runtime tells: the kubelet's own values of what hooks replaced (``originals``).

Layers, each importing only what stands to its right:
``cli`` > ``app`` > ``cri`` | ``docker`` > ``core`` > ``plugins`` > ``hookapi`` > ``rpc`` > ``relay`` > ``wire`` |
``eventloop`` | ``model`` | ``settings`` | ``observe`` > ``errors`` | ``version``.
"""
