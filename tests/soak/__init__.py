"""Long runs: ``scripts/soak`` runs them with full counts, ``pytest -m soak tests/soak`` with small ones."""

import pytest

MARKS = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(0)]
"""The marks of every test here."""
