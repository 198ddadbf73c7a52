"""``python -m runtimeproxy`` is the command ``runtimeproxy``."""

import sys

from runtimeproxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
