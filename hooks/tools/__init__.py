"""The tools of ``runtimeproxy hook`` for authors of hook servers; none of them needs a running proxy.

``client`` finds a hook server and asks it as the proxy does, ``request`` reads a request from YAML, ``call`` shows what
an answer changes, ``bench`` measures, ``new`` writes a hook server to start from. ``verify`` tests a hook server by the
table in ``rules``; ``subject`` is the hook server under test, ``messages`` and ``connections`` contain the tests.
"""
