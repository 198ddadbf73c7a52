"""The version of the package, for the build, ``--version`` and the admin endpoint."""

VERSION = "0.2.0"
