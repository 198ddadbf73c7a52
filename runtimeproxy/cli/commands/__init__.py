"""The commands, one file each; none imports another."""
