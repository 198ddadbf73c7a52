"""The held calls of CRI mode: subclasses of ``core.call.Call``."""
