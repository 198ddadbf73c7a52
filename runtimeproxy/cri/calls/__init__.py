"""The calls that are held in CRI mode, as the core sees them."""
