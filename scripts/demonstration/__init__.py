"""The demo of scripts/demo: pods pass through the proxy, and the hook servers' changes are shown, in both modes."""
