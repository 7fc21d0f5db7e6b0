from collections.abc import Iterator

import pytest

from server.store.database import Database


@pytest.fixture
def database(module_database: str) -> Iterator[Database]:
    """The module's database, without responses, endpoints and deliveries."""
    opened = Database(module_database, pool_size=8)
    with opened.begin() as connection:
        connection.exec_driver_sql("truncate webhook_endpoints, webhook_deliveries, responses")
    yield opened
    opened.close()
