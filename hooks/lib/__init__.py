"""What several hook servers need: Koordinator's annotations, cgroups, resctrl, the node's settings."""
