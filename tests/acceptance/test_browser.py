"""The browser as it is started and asked: a process of its own, over MCP."""

import asyncio
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.support.eventually import eventually
from tests.support.fork_server import fork_server
from tests.support.server_process import free_port, run_module


class Site(http.server.BaseHTTPRequestHandler):
    """A search engine and its only page."""

    def do_GET(self) -> None:
        here = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        search = self.path.startswith("/search?q=rivers&format=json")
        page = {"url": f"{here}/page", "title": "Rivers", "content": "the longest"}
        body = json.dumps({"results": [page]}) if search else "<title>Rivers</title><p>The Nile is long.</p>"
        self.send_response(200)
        self.send_header("content-type", "application/json" if search else "text/html")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_site() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    with running_site() as port:
        yield port


@pytest.fixture(scope="module")
def browser(site: int) -> Iterator[str]:
    with running_browser(site) as url:
        yield url


@contextmanager
def running_browser(site: int, **environment: str) -> Iterator[str]:
    """The browser's address; it may open pages of the site, and nothing else."""
    port = free_port()
    words = ["--search-url", f"http://127.0.0.1:{site}/search", "--allow", f"http://127.0.0.1:{site}"]
    process = fork_server.fork(
        ["tool_servers.browser", "--port", str(port), *words], os.environ | environment
    )

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).text == "ok"
        except httpx.HTTPError:
            return False

    try:
        eventually(answers, within=60)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def _call(browser: str, name: str, arguments: dict[str, Any], session: str | None = "s") -> CallToolResult:
    async def exchange() -> CallToolResult:
        headers = {} if session is None else {"x-session-id": session}
        async with (
            httpx.AsyncClient(headers=headers, timeout=30) as http,
            streamable_http_client(browser, http_client=http) as (read, write, _),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            return await client.call_tool(name, arguments)

    return asyncio.run(exchange())


def _text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def test_a_model_searches_opens_and_finds(browser: str) -> None:
    found = _text(_call(browser, "search", {"query": "rivers", "topn": 5, "source": "web"}))
    assert found.startswith("[0] Search: rivers\n")
    assert "【0†Rivers†127.0.0.1】" in found
    assert "[1] Rivers" in _text(
        _call(browser, "open", {"id": 0.0, "cursor": 0, "view_source": False, "source": "web"})
    )
    assert "L0: The Nile is long." in _text(_call(browser, "find", {"pattern": "nile"}))


def test_pages_of_one_session_are_not_anothers(browser: str) -> None:
    _call(browser, "search", {"query": "rivers"}, "one")
    assert _call(browser, "open", {"id": 0}, "two").isError
    assert _call(browser, "open", {"id": 0}, None).isError


def test_a_page_that_the_operator_does_not_allow_is_not_opened(browser: str) -> None:
    for url in ("https://example.com/", "http://127.0.0.1:1/", "http://localhost/", "file:///etc/passwd"):
        told = _call(browser, "open", {"id": url})
        assert told.isError, url
        assert "allow" in _text(told)


def test_a_list_that_means_nothing_is_refused_with_a_sentence() -> None:
    told = run_module(["tool_servers.browser", "--allow", "a/b/c"], os.environ)
    assert told.returncode == 1
    assert told.stderr.startswith("holdfast-browser: 'a/b/c' is neither a host")


def test_with_a_token_only_who_sends_it_is_answered(site: int) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with running_browser(site, HOLDFAST_TOOL_TOKEN="python=other,browser=secret") as url:
        statuses = [
            httpx.post(
                url,
                headers={"accept": "application/json, text/event-stream", **headers},
                json=asked,
                timeout=30,
            ).status_code
            for headers in ({}, {"x-holdfast-token": "wrong"}, {"x-holdfast-token": "secret"})
        ]
    assert statuses == [401, 401, 200]
