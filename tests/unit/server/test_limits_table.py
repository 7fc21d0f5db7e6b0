"""The bounds of docs/limits.md: short to read, and the same wherever the code has them twice."""

from server.administration import checks, keys
from server.outbound_http import allowed_addresses
from server.protocol import webhooks
from server.protocol.administration import requests
from tests.support.documents import LIMITS

MOST_BYTES = 9_216
"""Of the parts that users read."""


def test_the_admin_api_has_the_bounds_of_the_commands() -> None:
    assert (requests.MAX_NAMES, requests.MAX_COUNT) == (checks.MAX_NAMES, checks.MAX_COUNT)
    assert keys.MAX_OVERLAP.total_seconds() == requests.MAX_SECONDS
    assert webhooks.MAX_URL == allowed_addresses.MAX_URL


def test_the_page_of_limits_is_short_before_what_is_inside_the_server() -> None:
    assert len(LIMITS.read_bytes().partition(b"## Inside the server")[0]) <= MOST_BYTES
