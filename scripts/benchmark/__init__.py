"""What scripts/bench measures: the price of the proxy beside a direct connection and beside a bare pipe.

``cases`` says what is sent, ``programs`` starts what is measured, ``h2load`` drives it, ``measure`` does the rounds,
``memory`` looks at the resident proxy, ``limits`` judges, ``report`` prints. ``runtime`` and ``hooks`` are the servers.
"""
