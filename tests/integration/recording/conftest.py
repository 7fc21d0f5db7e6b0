from collections.abc import Iterator

import pytest

from tests.integration.recording.recorded import Bench, recording


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    with recording(database_url) as made:
        yield made
