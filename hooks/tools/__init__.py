"""What ``runtimeproxy hook`` does: tools for those who write hook servers; none of them needs a running proxy.

``asking`` finds a hook server and asks it as the proxy does, ``request`` reads what it is told from YAML, ``call``
shows what an answer changes, ``bench`` measures, ``new`` writes a hook server to start from. ``verify`` tries a hook
server by the table in ``rules``; ``subject`` is the hook server that is tried, ``messages`` and ``connections`` hold
what the rules do.
"""
