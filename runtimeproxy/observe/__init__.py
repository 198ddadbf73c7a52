"""The proxy's own observability: log lines, metrics, stalls of its event loop, its state for systemd."""
