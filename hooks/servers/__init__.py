"""The project's hook servers, one module each."""
