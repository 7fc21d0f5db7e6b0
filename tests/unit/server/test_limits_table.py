"""The bounds of docs/limits.md: short to read, and the same wherever the code has them twice."""

from server.outbound_http import allowed_addresses
from server.protocol import webhook_objects
from tests.support.documents import LIMITS

MOST_BYTES = 9_216
"""Of the parts that users read."""


def test_the_api_takes_the_addresses_that_the_server_calls() -> None:
    assert webhook_objects.MAX_URL == allowed_addresses.MAX_URL


def test_the_page_of_limits_is_short_before_what_is_inside_the_server() -> None:
    assert len(LIMITS.read_bytes().partition(b"## Inside the server")[0]) <= MOST_BYTES
