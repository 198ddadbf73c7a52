"""The values that both fronts and the core share, and what is made of them. No file here does I/O."""
