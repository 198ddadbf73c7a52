"""The control protocol: its lines (``protocol``), the daemon's server (``server``) and methods (``queries``)."""
