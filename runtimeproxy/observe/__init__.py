"""The proxy's own observability: log lines, metrics, events, stalls of its event loop, its state for systemd."""
