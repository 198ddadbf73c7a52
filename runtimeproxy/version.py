"""The version of the package: read by the build, ``--version`` and the admin endpoint, and by nothing else."""

VERSION = "0.1.0"
