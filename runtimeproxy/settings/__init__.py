"""The settings: the table of options, and where their values come from."""
