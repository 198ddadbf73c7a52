"""The admin server: health, metrics and state over HTTP, in a process of its own that the first question starts.

In the daemon are ``launcher`` (the process), ``queries`` with what it takes from (the answers), and the daemon's end of
``channel``. In the server's process are the others, which alone import aiohttp and prometheus_client.
"""
