"""The words for the states of a hook server's breaker.

Owns the words.
Must not know: where they stand.
"""

STATES = {"closed": "ok", "open": "breaker open", "half_open": "breaker half open"}
"""The words for a breaker's states."""
