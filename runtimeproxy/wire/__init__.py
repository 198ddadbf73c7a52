"""The wire: bytes in, frozen values out. No file here does I/O or reads a clock."""

JOINED_BYTES = 2**20
"""A longer message is not copied to put its head before it: it is written by itself."""
