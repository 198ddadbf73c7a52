"""The commands, one file each; they do not know each other."""
