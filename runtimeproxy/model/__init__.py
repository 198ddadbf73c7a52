"""The values that both fronts and the core share, and functions of them. No file here does I/O."""
