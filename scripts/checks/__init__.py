"""The checks of scripts/check that no standard tool offers."""
