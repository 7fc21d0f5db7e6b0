"""MCP servers that wish us ill: whatever they send ends as an error, soon, and leads nowhere."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import mcp.client.streamable_http  # noqa: F401 - loading it takes a second, which is no exchange's
import pytest

from server.generation.hosted_tools_of_response import McpCredentials, ToolResult
from server.hosted_tools import mcp_session
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_lists import ToolList, usable_tools
from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, allow_host_of, read_allowed
from server.outbound_http.guarded_http import (
    BURST_LINES,
    LINES_PER_SECOND,
    ResponseBudget,
    ResponseTooLarge,
    count_lines,
    guarded_client,
    split_lines,
)
from server.protocol.ids import new_uuid
from server.protocol.responses.items import ListedTool
from tests.integration.outbound_http.test_guarded_http import Answer, Sentinel
from tests.support.eventually import eventually
from tests.support.fake_mcp import NOTIFICATIONS, Behaviour, running_fakes

SECONDS = 0.5


@pytest.fixture
def hostile() -> Iterator[Sentinel]:
    server = Sentinel()
    yield server
    server.close()


@pytest.fixture
def inside() -> Iterator[Sentinel]:
    """What nobody outside may reach."""
    server = Sentinel()
    yield server
    server.close()


def answering(head: str, body: Iterator[bytes]) -> Answer:
    return lambda _request: itertools.chain([head.encode().replace(b"\n", b"\r\n") + b"\r\n\r\n"], body)


def drip() -> Iterator[bytes]:
    while True:
        time.sleep(0.05)
        yield b" "


def much() -> Iterator[bytes]:
    return itertools.repeat(b"x" * 65536, 1024)


JSON = "HTTP/1.1 200 OK\ncontent-type: application/json"
EVENTS = "HTTP/1.1 200 OK\ncontent-type: text/event-stream"
ANSWERS = {
    "bad JSON": answering(f"{JSON}\ncontent-length: 9", iter([b'{"id": 0,'])),
    "deep JSON": answering(f"{JSON}\nconnection: close", iter([b"[" * 100_000])),
    "another's answer": answering(
        f"{JSON}\ncontent-length: 33", iter([b'{"jsonrpc":"2.0","id":9,"result":1}'])
    ),
    "slow drip": answering(f"{JSON}\nconnection: close", drip()),
    "slow drip of events": answering(f"{EVENTS}\nconnection: close", drip()),
    "huge answer": answering(f"{JSON}\nconnection: close", much()),
    "huge event": answering(f"{EVENTS}\nconnection: close", itertools.chain([b"data: "], much())),
    "flood of events": answering(f"{EVENTS}\nconnection: close", itertools.repeat(NOTIFICATIONS)),
    "no HTTP": lambda _request: iter([b"\xff" * 100]),
    "nothing": lambda _request: iter([]),
}


def listing(servers: McpServers, label: str, access: McpCredentials = McpCredentials()) -> ToolList:  # noqa: B008 - frozen
    return servers.start_listing(label, access, "alice").result(60)


def call(servers: McpServers, label: str, access: McpCredentials = McpCredentials()) -> ToolResult:  # noqa: B008 - frozen
    made = servers.start_call(label, "find", "{}", access, tenant="alice", response=new_uuid())
    return made.result(60)


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answer_is_an_error_in_time(hostile: Sentinel, name: str) -> None:
    hostile.answer = ANSWERS[name]
    servers = McpServers(RegisteredServers({"bad": f"http://127.0.0.1:{hostile.port}/mcp"}), SECONDS)
    began = time.monotonic()
    assert listing(servers, "bad").error
    assert call(servers, "bad").error
    assert time.monotonic() - began < 40 * SECONDS
    servers.close()


@pytest.mark.parametrize("behaviour", get_args(Behaviour)[1:])
def test_a_server_that_misbehaves_once_it_is_known_gives_an_error_and_nothing_is_left_of_the_exchange(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_session, "CLOSE_SECONDS", 0.2)  # for which the end of a session is waited for
    with running_fakes(1) as (fake,):
        fake.behaviour, fake.has_sessions = behaviour, True
        servers = McpServers(RegisteredServers({"bad": fake.url}), SECONDS)
        assert listing(servers, "bad").error
        assert call(servers, "bad").error
        loop = servers.loop
        assert loop is not None
        eventually(lambda: not asyncio.all_tasks(loop), within=30)
        servers.close()


def test_the_schema_of_a_server_is_not_run_on_its_results() -> None:
    """Its expressions may take any time, in which this process does nothing else."""
    with running_fakes(1) as (fake,):
        pattern = {"type": "string", "pattern": "^(a+)+$"}
        schema = {"type": "object", "properties": {"a": pattern}}
        fake.tools = [{"name": "find", "inputSchema": {"type": "object"}, "outputSchema": schema}]
        fake.structured = {"a": "a" * 22 + "!"}
        servers = McpServers(RegisteredServers({"slow": fake.url}), 60)
        assert call(servers, "slow").output == "Found it."
        assert fake.count("tools/list") == 0
        servers.close()


@pytest.mark.parametrize("piece", [b"x" * 100, b"[[]]," * 20, b"{}," * 33])
def test_what_is_too_much_is_counted_before_it_is_parsed(piece: bytes) -> None:
    budget = ResponseBudget(most_bytes=1000, most_values=500, most_lines=10)
    for _ in range(5):
        budget.spend(piece, is_events=False)
    with pytest.raises(ResponseTooLarge):
        budget.spend(piece * 6, is_events=False)


def test_lines_are_counted_in_streams_of_events_alone() -> None:
    ResponseBudget(most_lines=10).spend(b"\n" * 100, is_events=False)
    with pytest.raises(ResponseTooLarge):
        ResponseBudget(most_lines=10).spend(b": \n" * 100, is_events=True)


@pytest.mark.parametrize(
    "piece", [b"", b"a", b"\n", b"a\nb\r\nc\rd" * 50, b"\r\n" * 64, b"x" * 1000, b"\n\nx"]
)
@pytest.mark.parametrize("most", [1, 2, 7, 1000])
def test_parts_of_a_piece_are_the_piece_and_have_no_more_lines_than_asked(piece: bytes, most: int) -> None:
    parts = list(split_lines(piece, most))
    assert b"".join(parts) == piece
    assert all(0 < count_lines(part) <= most or b"\n" not in part for part in parts)
    assert all(count_lines(part) == most for part in parts[:-1])


def test_a_flood_of_small_events_is_read_no_faster_than_it_may_be(hostile: Sentinel) -> None:
    hostile.answer = ANSWERS["flood of events"]

    async def read(client: httpx.AsyncClient) -> tuple[int, float]:
        began, lines = time.monotonic(), 0
        async with client.stream("GET", hostile.url) as response:
            async for piece in response.aiter_raw():
                lines += count_lines(piece)
                if lines >= 5 * BURST_LINES:
                    break
        return lines, time.monotonic() - began

    async def visit() -> tuple[int, float]:
        async with guarded_client(allow_host_of(hostile.url)) as client:
            return await read(client)

    lines, seconds = asyncio.run(visit())
    assert lines <= 2 * BURST_LINES + seconds * LINES_PER_SECOND


def test_redirect_leads_nowhere(hostile: Sentinel, inside: Sentinel) -> None:
    place = f"http://127.0.0.1:{inside.port}/"
    redirect = f"HTTP/1.1 307 Elsewhere\nlocation: {place}\ncontent-length: 0"
    hostile.answer = lambda _request: answering(redirect, iter([]))(b"")
    servers = McpServers(RegisteredServers({"bad": f"http://127.0.0.1:{hostile.port}/mcp"}), SECONDS)
    assert listing(servers, "bad").error
    assert hostile.requests
    assert inside.connections == 0
    servers.close()


@pytest.mark.parametrize(
    "allowed", [AllowedAddresses(), read_allowed("*"), read_allowed("example.com")], ids=repr
)
def test_url_of_a_request_that_leads_inside_is_refused_and_not_visited(
    inside: Sentinel, allowed: AllowedAddresses
) -> None:
    servers = McpServers(RegisteredServers(), SECONDS, allowed)
    for host in ("127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "[::ffff:127.0.0.1]"):
        url = f"https://{host}:{inside.port}/mcp"
        with pytest.raises(Refused):
            servers.check(url)
        assert call(servers, "mine", McpCredentials(url)).error
        assert listing(servers, "mine", McpCredentials(url)).error
    assert inside.connections == 0
    servers.close()


def deep(levels: int) -> dict[str, Any]:
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "tool",
    [
        ListedTool("a name with spaces"),
        ListedTool("x" * 129),
        ListedTool("ok\n"),
        ListedTool("deep", input_schema=deep(40)),
        ListedTool("large", input_schema={"a": "x" * 200_000}),
        ListedTool("nul", "a\0b"),
        ListedTool("half", "\ud800"),
        ListedTool("find", "another of that name"),
    ],
    ids=lambda tool: repr(tool.name[:20]),
)
def test_tool_that_cannot_be_offered_is_left_out_and_the_others_are_not(tool: ListedTool) -> None:
    good = ListedTool("find"), ListedTool("read")
    assert [offered.name for offered in usable_tools("bad", [good[0], tool, good[1]])] == ["find", "read"]


def test_tools_beyond_what_one_server_may_offer_are_left_out() -> None:
    many = [ListedTool(f"t{number}", "x" * 60_000) for number in range(200)]
    assert len(usable_tools("bad", many)) == 17
