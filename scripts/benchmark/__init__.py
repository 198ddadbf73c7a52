"""What scripts/bench measures: the price of the proxy beside a direct connection and beside a bare pipe.

``cases`` says what is measured, with the limits; ``measure`` does the rounds with the programs of ``programs``. A
kubelet's calls (``ends``) are about what ``node`` says and are answered by ``peers``, both as Go's libraries do;
``loads`` makes many at once. ``hooks`` measures the hook servers, ``way`` counts what a call goes through in the proxy.
"""
