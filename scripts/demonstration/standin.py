"""The hook server rdt on the tests' stand-in for resctrl: ``python -m scripts.demonstration.standin ROOT [flags]``.

The hook is the project's own, with its own flags; --resctrl-root has no effect here.
"""

import sys
from pathlib import Path

from runtimeproxy_hooks.sdk import main
from runtimeproxy_hooks.servers.rdt import Rdt
from tests.fakes.resctrl import StandIn

if __name__ == "__main__":
    main(Rdt(StandIn(Path(sys.argv[1]))), argv=sys.argv[2:])
