"""What one tenant may have open in the browser."""

import threading

import pytest
from mcp.server.fastmcp.exceptions import ToolError

from tests.support.eventually import eventually
from tool_servers.browser import browser_tabs, mcp_server
from tool_servers.browser.allowed_web import AllowedWeb
from tool_servers.browser.browser_tabs import BrowserTabs, Web
from tool_servers.browser.fetch import FetchedPage
from tool_servers.browser.mcp_server import Sessions
from tool_servers.browser.page import Page

PAGE = Page("https://example.com/", "A page", ("x" * 1000,) * 10)
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


def test_pages_of_a_session_are_closed_beyond_its_bytes_and_cursors_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browser_tabs, "MAX_BYTES", 3 * PAGE.size)
    session = BrowserTabs(WEB)
    for number in range(5):
        assert open_page(session).startswith(f"[{number}]")
    assert session.size == 3 * PAGE.size
    assert session.open(cursor=2)
    with pytest.raises(browser_tabs.BrowserError):
        session.open(cursor=1)


def test_a_tenant_beyond_its_bytes_loses_its_own_oldest_session_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_server, "MAX_BYTES_PER_TENANT", 3 * PAGE.size)
    sessions = Sessions(WEB)
    sessions.run("alice.1", open_page)
    for number in range(6):
        sessions.run(f"mallory.{number}", open_page)
    assert sessions.run("alice.1", see)
    assert sessions.run("mallory.5", see)
    with pytest.raises(ToolError):
        sessions.run("mallory.0", see)


def test_beyond_the_bytes_of_all_the_largest_tenants_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "MAX_BYTES", 4 * PAGE.size)
    sessions = Sessions(WEB)
    for name in ("alice.1", "mallory.1", "mallory.2", "mallory.3", "bob.1"):
        sessions.run(name, open_page)
    for name in ("alice.1", "bob.1", "mallory.3"):
        assert sessions.run(name, see)
    with pytest.raises(ToolError):
        sessions.run("mallory.1", see)


def test_a_tenant_with_many_visits_under_way_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_server, "MAX_ACTIONS_PER_TENANT", 2)
    sessions = Sessions(WEB)
    go_on, entered = threading.Event(), threading.Semaphore(0)

    def hang(_: BrowserTabs) -> str:
        entered.release()
        assert go_on.wait(30)
        return ""

    workers = [threading.Thread(target=sessions.run, args=[f"mallory.{n}", hang]) for n in range(2)]
    for worker in workers:
        worker.start()
        eventually(lambda: entered.acquire(blocking=False))
    with pytest.raises(ToolError):
        sessions.run("mallory.3", open_page)
    assert sessions.run("alice.1", open_page)
    go_on.set()
    for worker in workers:
        worker.join()
