"""What runs on the event loop, and beside it, without tasks of asyncio."""
