from collections.abc import Iterator

import pytest

from server.store.database import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=8)
    yield opened
    opened.close()
