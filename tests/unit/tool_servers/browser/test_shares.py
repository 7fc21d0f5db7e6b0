"""What one tenant may have open in the browser."""

import threading

import pytest
from mcp.server.fastmcp.exceptions import ToolError

from tests.support.eventually import eventually
from tool_servers.browser.allowed_web import AllowedWeb
from tool_servers.browser.browser_tabs import MAX_BYTES, BrowserError, BrowserTabs, Web
from tool_servers.browser.fetch import FetchedPage
from tool_servers.browser.mcp_server import MAX_ACTIONS_PER_TENANT, MAX_BYTES_PER_TENANT, BrowserSessions
from tool_servers.browser.mcp_server import MAX_BYTES as MAX_BYTES_OF_ALL
from tool_servers.browser.page import WebPage

PAGE = WebPage("https://example.com/", "A page", ("x" * 1000,) * 7_500)
"""Nearly half of the bytes that a session may have open, though its lines are one in memory."""
WEB = Web(
    None,
    AllowedWeb(),
    fetch=lambda url, *_: FetchedPage(url, 200, "text/html", None, b""),
    parse_page=lambda *_: PAGE,
)


def open_page(open_pages: BrowserTabs) -> str:
    return open_pages.open("https://example.com/")


def see(open_pages: BrowserTabs) -> str:
    return open_pages.open()


def test_pages_of_a_session_are_closed_beyond_its_bytes_and_cursors_stay() -> None:
    session = BrowserTabs(WEB)
    for number in range(4):
        assert open_page(session).startswith(f"[{number}]")
    assert session.size == 2 * PAGE.size <= MAX_BYTES < 3 * PAGE.size
    assert session.open(cursor=2)
    with pytest.raises(BrowserError):
        session.open(cursor=1)


def test_a_tenant_beyond_its_bytes_loses_its_own_oldest_session_and_nobody_elses() -> None:
    sessions = BrowserSessions(WEB)
    sessions.run("alice.1", open_page)
    most = MAX_BYTES_PER_TENANT // PAGE.size
    for number in range(most + 1):
        sessions.run(f"mallory.{number}", open_page)
    assert sessions.run("alice.1", see)
    for number in range(1, most + 1):
        assert sessions.run(f"mallory.{number}", see)
    with pytest.raises(ToolError):
        sessions.run("mallory.0", see)


def test_beyond_the_bytes_of_all_the_largest_tenants_sessions_end() -> None:
    sessions = BrowserSessions(WEB)
    sessions.run("alice.1", open_page)
    for number in range(MAX_BYTES_PER_TENANT // PAGE.size):
        sessions.run(f"mallory.{number}", open_page)
    for number in range(MAX_BYTES_OF_ALL // PAGE.size - MAX_BYTES_PER_TENANT // PAGE.size):
        sessions.run(f"bob{number}.1", open_page)
    for name in ("alice.1", "bob0.1", "mallory.1"):
        assert sessions.run(name, see)
    with pytest.raises(ToolError):
        sessions.run("mallory.0", see)


def test_a_tenant_with_many_visits_under_way_keeps_nobody_else_waiting() -> None:
    sessions = BrowserSessions(WEB)
    go_on, entered = threading.Event(), threading.Semaphore(0)

    def hang(_: BrowserTabs) -> str:
        entered.release()
        assert go_on.wait(30)
        return ""

    workers = [
        threading.Thread(target=sessions.run, args=[f"mallory.{n}", hang])
        for n in range(MAX_ACTIONS_PER_TENANT)
    ]
    for worker in workers:
        worker.start()
        eventually(lambda: entered.acquire(blocking=False))
    with pytest.raises(ToolError):
        sessions.run("mallory.99", open_page)
    assert sessions.run("alice.1", open_page)
    go_on.set()
    for worker in workers:
        worker.join()
