"""``runtimeproxy doctor``: looks at the node around the proxy and tells what is wrong; the daemon never imports it."""
