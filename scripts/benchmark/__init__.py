"""What scripts/bench measures: the price of the proxy beside a direct connection and beside a bare pipe.

``cases`` says what is measured, ``modes`` what differs between the proxy's two; ``programs`` starts what is measured,
``served`` is what runs then; ``measure`` does the rounds, ``memory`` looks at the proxy by itself, ``limits`` judges,
``report`` prints.

The calls of a kubelet are made one at a time by ``kubelet``, hot and cold, and answered by ``peers``, both as Go's
libraries do (``goends``); ``node`` is what they are about. ``way`` counts what such a call goes through in the proxy.
Calls of a load are made by ``h2load`` and ``transfers`` with what ``cri`` and ``docker`` send, and answered by
``runtime`` and ``dockerd``.

The hook servers are measured otherwise, by ``hookmode``: ``hookservers`` says which and with what request, ``answers``
asks them, beside ``barehook``, which does nothing; ``window`` starts containers of Docker mode, and ``windowhook``
notes when they are in their RDT group.
"""
