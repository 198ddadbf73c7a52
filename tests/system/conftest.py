"""What system tests share."""

import pytest

from tests.system.between import between
from tests.system.cri_front import CRI
from tests.system.docker_front import DOCKER
from tests.system.fronts import Front

__all__ = ["between"]


@pytest.fixture(params=[CRI, DOCKER], ids=lambda front: front.name)
def front(request: pytest.FixtureRequest) -> Front:
    """Return each front in turn."""
    made: Front = request.param
    return made
