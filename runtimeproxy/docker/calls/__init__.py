"""The held calls of Docker mode, a class for each operation."""
