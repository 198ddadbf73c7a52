"""The wire: bytes in, frozen values out. No file here does I/O or reads a clock."""
