"""The checks of scripts/check that no tool brings along."""
