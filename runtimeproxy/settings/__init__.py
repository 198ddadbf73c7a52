"""The settings: the table of options, and the sources of their values."""
