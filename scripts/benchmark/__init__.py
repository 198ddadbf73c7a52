"""The measurements of scripts/bench: the cost of the proxy compared with a direct connection and with a bare pipe.

``cases`` has the table of measurements, with the limits; ``measure`` does the rounds with the programs of ``programs``.
``ends`` makes a kubelet's calls, about the pods and containers of ``node``, and ``peers`` answers them, both as Go's
libraries do; ``loads`` makes many at the same time. ``hooks`` measures the hook servers, ``admin`` what ``clients`` of
the admin socket cost, ``many`` many calls at a time and full nodes, ``way`` counts the functions that a call goes
through.
"""
