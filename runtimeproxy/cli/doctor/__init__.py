"""``runtimeproxy doctor``: checks the node around the proxy and reports what is wrong; the daemon never imports it."""
