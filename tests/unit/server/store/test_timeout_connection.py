"""What every connection string gets."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from server.store.timeout_connection import with_network_timeouts


@pytest.mark.parametrize(
    ("url", "attributes"),
    [
        ("postgresql://one/holdfast", None),
        ("postgresql://one:5432,two:5433/holdfast", "read-write"),
        ("postgresql:///holdfast?host=/run/one,/run/two", "read-write"),
        ("postgresql:///holdfast?hostaddr=10.0.0.1,10.0.0.2", "read-write"),
        ("postgresql://one,two/holdfast?target_session_attrs=primary", "primary"),
    ],
)
def test_of_several_hosts_the_one_that_takes_writes_is_used(url: str, attributes: str | None) -> None:
    assert conninfo_to_dict(with_network_timeouts(url)).get("target_session_attrs") == attributes
