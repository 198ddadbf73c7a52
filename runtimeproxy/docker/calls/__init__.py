"""The calls that are held in Docker mode, as the core sees them."""
