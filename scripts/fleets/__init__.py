"""The figures of docs/fleets.rst: what a bad hook server costs, and what thousands of nodes cost."""
