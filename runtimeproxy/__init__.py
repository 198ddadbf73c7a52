"""A proxy between the kubelet and the container runtime that calls hook servers: hold, edit, release.

The path of one held call, the same in both modes (docs/architecture.rst follows it file by file):

1. ``relay.connection`` moves bytes between a client and the runtime; ``cri.reader`` reads the frames of HTTP/2, or
   ``docker.reader`` the heads of HTTP/1.1.
2. The head of a held operation creates the held call: an object of ``cri.calls``, which extends ``cri.reader``, or of
   ``docker.calls``, which extends ``docker.exchange``. It collects the request.
3. ``core.lifecycle`` runs the call once its request is complete, without a task (``relay.eventloop``): ``core.store``
   has the pod and container, ``core.dispatcher`` calls the hook servers (``plugins.manager``), ``model.merge`` makes
   one adjustment of their answers, the call edits its message (``cri.messages``, ``docker.messages``) and releases it.
4. The runtime's answer is held until the Store is written and the Post hooks are done; then its bytes are sent as they
   are. If no hook server is notified, they are sent first. If a start or a stop is never answered, the runtime is
   queried for its outcome (``core.open_calls``); the subjects of other such calls are read again.

Apart from the calls, ``core.sync`` keeps the Store equal to the runtime's state (``cri.backend``, ``docker.sync``), and
``core.originals_file`` stores what no runtime reports: the kubelet's own values of fields that hooks replaced.
``admin`` serves health, metrics and state by the control protocol, and has ``runtimeproxy export``, the program that
serves them over HTTP. ``cli.doctor`` checks a node.

Layers, each importing only what is listed to its right:
``cli`` > ``app`` > ``admin`` | ``cri`` | ``docker`` > ``core`` > ``plugins`` > ``hookapi`` > ``relay`` > ``wire`` |
``model`` | ``settings`` | ``observe`` > ``files`` > ``errors``.
"""
