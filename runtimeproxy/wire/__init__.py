"""The wire formats: bytes in, frozen values out. No file here does I/O or reads a clock."""

JOINED_BYTES = 2**20
"""Longest message, in bytes, that is copied to put its prefix or head before it; a longer one is written separately."""
