import json
from collections.abc import Callable

import pytest

from tool_servers.browser.allowed_web import AllowedWeb, ForbiddenUrl, read_allowed
from tool_servers.browser.browser_tabs import MAX_PAGES, BrowserError, BrowserTabs, Web
from tool_servers.browser.fetch import FetchedPage, PageUnreachable
from tool_servers.browser.page import from_html

SEARCH = "http://search.inside/search"


class Fake:
    """A web of a few pages."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, AllowedWeb]] = []
        self.pages: dict[str, FetchedPage | Exception] = {}

    def __call__(self, url: str, allowed: AllowedWeb) -> FetchedPage:
        self.asked.append((url, allowed))
        page = self.pages[url]
        if isinstance(page, Exception):
            raise page
        return page

    def has(self, url: str, body: str, media_type: str = "text/html", status: int = 200) -> None:
        self.pages[url] = FetchedPage(url, status, media_type, None, body.encode())


@pytest.fixture
def web() -> Fake:
    return Fake()


@pytest.fixture
def opened(web: Fake) -> BrowserTabs:
    return BrowserTabs(Web(SEARCH, read_allowed("*"), fetch=web, parse_page=from_html))


def _says(browsing: BrowserTabs, url: str) -> str:
    with pytest.raises(BrowserError) as caught:
        browsing.open(url)
    return str(caught.value)


def test_a_search_is_a_page_whose_links_are_opened_by_number(web: Fake, opened: BrowserTabs) -> None:
    results = [
        {"url": "https://a.example/x", "title": "A", "content": "about a"},
        {"url": "file:///etc/passwd"},
    ]
    web.has(f"{SEARCH}?q=what+is+a&format=json", json.dumps({"results": results}), "application/json")
    web.has("https://a.example/x", "<title>A</title><p>all of <a href='/y'>it</a></p>")
    shown = opened.search("what is a")
    assert shown.startswith("[0] Search: what is a\n")
    assert "L0: 【0†A†a.example】\nL1: about a" in shown
    assert "passwd" not in shown
    assert "[1] A (https://a.example/x)" in opened.open(0)
    assert "all of 【0†it】" in opened.find("ALL")
    assert "about a" in opened.open(cursor=0)
    assert web.asked[0][1] != web.asked[1][1]  # the search's own address is allowed to nothing else


def test_what_is_not_allowed_or_not_there_is_told(web: Fake, opened: BrowserTabs) -> None:
    web.pages["https://a.example/"] = ForbiddenUrl("no")
    web.pages["https://b.example/"] = PageUnreachable("slow")
    web.has("https://c.example/", "gone", status=404)
    web.has("https://d.example/", "MZ", "application/octet-stream")
    told = [_says(opened, f"https://{name}.example/") for name in "abcd"]
    assert told[:3] == ["no", "slow", "The page answers with status 404."]
    assert "no text" in told[3]


def test_without_a_page_there_is_nothing_to_scroll_or_find_in(opened: BrowserTabs) -> None:
    acts: list[Callable[[], str]] = [
        opened.open,
        lambda: opened.open(3),
        lambda: opened.find("x"),
        lambda: opened.find(""),
    ]
    for act in acts:
        with pytest.raises(BrowserError):
            act()


def test_a_page_that_is_open_is_scrolled_without_being_fetched_again(web: Fake, opened: BrowserTabs) -> None:
    web.has("https://a.example/", "\n".join(f"line {number}" for number in range(50)), "text/plain")
    opened.open("https://a.example/")
    assert "L30: line 30\nL31: line 31" in opened.open(first=30, lines=2)
    with pytest.raises(BrowserError, match="lines 0 to 49"):
        opened.open(first=99)
    assert len(web.asked) == 1


def test_the_oldest_pages_are_forgotten_and_the_others_keep_their_cursors(
    web: Fake, opened: BrowserTabs
) -> None:
    for number in range(MAX_PAGES + 1):
        web.has(f"https://{number}.example/", "text", "text/plain")
        opened.open(f"https://{number}.example/")
    assert opened.open(cursor=1).startswith("[1] https://1.example/")
    with pytest.raises(BrowserError):
        opened.open(cursor=0)


@pytest.mark.parametrize(
    "body", ["", "nonsense", "[]", '{"results": 1}', "[" * 10**5, '{"results": [{"url": 1}]}']
)
def test_a_search_that_answers_nonsense_does_not_answer(web: Fake, opened: BrowserTabs, body: str) -> None:
    web.has(f"{SEARCH}?q=x&format=json", body, "application/json")
    with pytest.raises(BrowserError, match="does not answer"):
        opened.search("x")


def test_without_a_backend_there_is_no_search() -> None:
    with pytest.raises(BrowserError, match="no search here"):
        BrowserTabs(Web(None, AllowedWeb())).search("x")
