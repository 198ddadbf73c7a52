"""How Hypothesis works here: the same examples in every run of scripts/test, new ones in every run of scripts/soak.

No deadline and no health check looks at the clock: how busy the machine is decides nothing.
"""

import os

from hypothesis import HealthCheck, settings

from tests import amounts

CLOCKLESS = (HealthCheck.too_slow,)

settings.register_profile(
    "usual", max_examples=amounts.DEFAULT_EXAMPLES, derandomize=True, deadline=None, suppress_health_check=CLOCKLESS
)
settings.register_profile(
    "soak",
    max_examples=amounts.examples(),
    derandomize=False,  # Hypothesis takes its own profile for CI as the default there
    print_blob=True,
    deadline=None,
    suppress_health_check=CLOCKLESS,
)
settings.load_profile("soak" if amounts.SHARE_VARIABLE in os.environ else "usual")
