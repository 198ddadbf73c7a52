"""Shared parts of the hook servers: Koordinator's annotations, cgroups, resctrl, the node's settings."""
