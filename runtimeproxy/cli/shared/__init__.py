"""Shared by commands: flags, configuration, output, and requests to the running proxy."""
