"""Helpers for the event loop: coroutines without asyncio tasks, one timer for many deadlines, and work in a thread."""
