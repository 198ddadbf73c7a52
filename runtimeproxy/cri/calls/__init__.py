"""The held calls of CRI mode, a class for each operation."""
