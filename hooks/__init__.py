"""Hook servers that come with the project, installed and imported as ``runtimeproxy_hooks``.

They show policy; the proxy itself holds none and never imports this package.
"""
