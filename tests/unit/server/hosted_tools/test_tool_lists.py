"""The cache of what MCP servers offer."""

from concurrent.futures import Future

import pytest

from server.errors import Overloaded, TooManyRequests
from server.hosted_tools import tool_lists
from server.hosted_tools.tool_lists import FAILED_SECONDS, FRESH_SECONDS, ToolList, ToolListCache, ToolListKey
from server.protocol.responses.items import ListedTool

FOUND = ToolList([ListedTool("find")])


class Servers:
    """What is asked of servers, and their answers, which come when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Future[ToolList]] = []
        self.listings = ToolListCache(lambda: self.now)

    def find(self, tenant: str = "alice", server: str = "city", credentials: bytes = b"") -> object:
        return self.listings.find(ToolListKey(tenant, server, "city", credentials), self._ask)

    def _ask(self) -> "Future[ToolList]":
        self.asked.append(Future())
        return self.asked[-1]


def test_one_request_asks_for_all_that_wait_and_the_list_is_known_for_a_while() -> None:
    servers = Servers()
    first, second = servers.find(), servers.find()
    assert first is second
    assert len(servers.asked) == 1
    servers.asked[0].set_result(FOUND)
    assert isinstance(first, Future)
    assert first.done()
    servers.now = FRESH_SECONDS - 1
    assert servers.find() == FOUND
    servers.now = FRESH_SECONDS + 1
    assert isinstance(servers.find(), Future)


def test_an_error_is_known_for_a_few_seconds() -> None:
    servers = Servers()
    servers.find()
    servers.asked[0].set_exception(ValueError())
    servers.now = FAILED_SECONDS - 1
    known = servers.find()
    assert isinstance(known, ToolList)
    assert known.error
    servers.now = FAILED_SECONDS + 1
    assert isinstance(servers.find(), Future)


def test_a_list_is_of_one_tenant_and_of_its_credentials() -> None:
    servers = Servers()
    for tenant, credentials in (("alice", b"1"), ("alice", b"2"), ("bob", b"1")):
        servers.find(tenant, credentials=credentials)
    assert len(servers.asked) == 3


def test_a_tenant_and_a_server_have_their_shares_of_what_is_asked_at_a_time() -> None:
    servers = Servers()
    for number in range(tool_lists.MAX_PENDING_PER_TENANT):
        servers.find("mallory", f"silent{number}")
    with pytest.raises(TooManyRequests):
        servers.find("mallory", "another")
    servers.find("alice", "city")
    for number in range(tool_lists.MAX_PENDING_PER_SERVER):
        servers.find(f"tenant{number}", "slow")
    with pytest.raises(Overloaded):
        servers.find("alice", "slow")
    for asked in servers.asked:
        asked.set_result(FOUND)
    assert isinstance(servers.find("alice", "slow"), Future)


def test_lists_of_one_tenant_beyond_its_share_of_bytes_are_forgotten_first() -> None:
    servers = Servers()
    large = ToolList([ListedTool("find", "x" * (tool_lists.MAX_BYTES_PER_TENANT // 4))])
    for tenant, number in [("alice", 0), *(("mallory", number) for number in range(5))]:
        servers.find(tenant, f"server{number}")
        servers.asked[-1].set_result(large)
    assert servers.find("alice", "server0") == large
    assert isinstance(servers.find("mallory", "server0"), Future)
    assert servers.find("mallory", "server4") == large
