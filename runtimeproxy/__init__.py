"""A proxy between the kubelet and the container runtime that calls hook servers: hold, edit, release.

The straight line of one held call, the same for both modes (docs/architecture.rst follows it file by file):

1. ``relay.connection`` moves bytes between a client and the runtime; ``cri.reader`` reads the frames of HTTP/2, or
   ``docker.reader`` the heads of HTTP/1.1.
2. A head that names a held operation makes the held call: an object of ``cri.calls``, which extends ``cri.reader``, or
   of ``docker.calls``, which extends ``docker.exchange``. It collects the request.
3. ``core.lifecycle`` runs the call once its request is complete, without a task (``relay.eventloop``): ``core.store``
   has the pod and container, ``core.dispatcher`` calls the hook servers (``plugins.manager``), ``model.merge`` makes
   one adjustment of their answers, the call edits its message (``cri.messages``, ``docker.messages``) and releases it.
4. The runtime's answer stays held until the Store is written and the Post hooks are done; then its own bytes go out.
   Where no hook server is notified, they go first. If a start or a stop is never answered, the runtime is queried for
   its outcome (``core.open_calls``); the subjects of other such calls are read again.

Apart from the calls ``core.sync`` keeps the Store equal to what the runtime has, through ``cri.backend`` or
``docker.sync``, and ``core.originals_file`` keeps what no runtime reports: the kubelet's own values of what hooks
replaced. ``admin`` serves health, metrics and state by the control protocol, and has ``runtimeproxy export``, the
program that serves them over HTTP. ``cli.doctor`` looks at a node.

Layers, each importing only what is listed to its right:
``cli`` > ``app`` > ``admin`` | ``cri`` | ``docker`` > ``core`` > ``plugins`` > ``hookapi`` > ``relay`` > ``wire`` |
``model`` | ``settings`` | ``observe`` > ``files`` > ``errors``.
"""
