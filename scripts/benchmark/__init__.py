"""What scripts/bench measures: the price of the proxy beside a direct connection and beside a bare pipe.

``cases`` says what is measured, ``cri`` and ``docker`` what is sent, ``modes`` what else differs between the two;
``programs`` starts what is measured, ``served`` is what runs then; ``h2load`` and ``transfers`` drive it, ``measure``
does the rounds, ``memory`` looks at the resident proxy, ``limits`` judges, ``report`` prints. ``runtime``, ``dockerd``
and ``hooks`` are the servers.

The hook servers are measured otherwise, by ``hookmode``: ``hookservers`` says which and with what request, ``answers``
asks them, beside ``barehook``, which does nothing; ``window`` starts containers of Docker mode, and ``windowhook``
notes when they are in their RDT group.
"""
