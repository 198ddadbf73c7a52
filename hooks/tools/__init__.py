"""The tools of ``runtimeproxy hook`` for authors of hook servers; none of them needs a running proxy.

``command`` has the commands. ``client`` calls a hook server (``call``, ``bench``), ``request`` reads a request from
YAML, ``new`` writes a hook server to start from. ``verify`` checks a hook server by a table of rules, ``trials`` has
the test of each rule and the hook server under test.
"""
