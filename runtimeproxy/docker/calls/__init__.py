"""The held calls of Docker mode: subclasses of ``core.call.Call``."""
