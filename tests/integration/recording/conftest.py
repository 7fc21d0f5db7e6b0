from collections.abc import Iterator

import pytest

from tests.integration.recording.recorded import Bench, recording


@pytest.fixture
def bench(database_url: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A recorder; a test may give its `CommitLimits` as the parameter `bench`."""
    with recording(database_url, limits=getattr(request, "param", None)) as made:
        yield made
