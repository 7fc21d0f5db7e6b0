"""A server of tools answers only to who has its token."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from tool_servers.mcp_host import RequireToken


@pytest.mark.parametrize(
    ("tokens", "path", "given", "status"),
    [
        ([], "/mcp", None, 200),
        (["one", "two"], "/mcp", None, 401),
        (["one", "two"], "/mcp", "three", 401),
        (["one", "two"], "/mcp", "two", 200),
        (["one"], "/health", None, 200),
    ],
)
def test_a_token_is_asked_for_everywhere_but_at_the_health_check(
    tokens: list[str], path: str, given: str | None, status: int
) -> None:
    async def ask() -> int:
        transport = httpx.ASGITransport(RequireToken(PlainTextResponse("ok"), tokens))
        headers = {} if given is None else {"x-holdfast-token": given}
        async with httpx.AsyncClient(transport=transport, base_url="http://tools") as client:
            return (await client.get(path, headers=headers)).status_code

    assert asyncio.run(ask()) == status
