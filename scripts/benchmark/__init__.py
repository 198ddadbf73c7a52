"""The measurements of scripts/bench: the cost of the proxy compared with a direct connection and with a bare pipe.

``cases`` has the table of measurements, with the limits; ``measure`` does the rounds with the ``programs``. ``admin``
measures what ``clients`` of the admin socket cost, ``many`` many calls at a time and full nodes; ``way`` counts the
functions that a call goes through. ``load`` is the program on Go's libraries.
"""
