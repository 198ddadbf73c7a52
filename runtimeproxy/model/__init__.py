"""The values that both fronts and the core share, and functions on them. No module does I/O."""
