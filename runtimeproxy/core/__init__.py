"""The handling of held calls, the same for both fronts, and the records of pods and containers."""
