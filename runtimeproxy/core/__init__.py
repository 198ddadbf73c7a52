"""What becomes of a held call, the same for both fronts, and what is remembered of pods and containers."""
