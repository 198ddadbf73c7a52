"""What the proxy tells of itself: log lines, metrics, stalls of its event loop, its state to systemd."""
