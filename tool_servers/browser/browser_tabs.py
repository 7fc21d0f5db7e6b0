"""BrowserTabs: a browser session's open pages, and what `search`, `open` and `find` do. Not thread-safe."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec

from tool_servers.browser.allowed_web import AllowedWeb, ForbiddenUrl, allow_host_of, read_url
from tool_servers.browser.fetch import FetchedPage, PageUnreachable, fetch
from tool_servers.browser.page import (
    PageUnreadable,
    WebPage,
    decode_body,
    find_lines,
    from_results,
    from_text,
    number_lines,
    parse_page,
)

MAX_PAGES = 100
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of a session's open pages; beyond it the oldest are closed, but not the newest."""
_MAX_RESULTS = 20
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = ("application/json", "application/xml", "application/javascript", "")
Fetch = Callable[[str, AllowedWeb], FetchedPage]


class BrowserError(Exception):
    """An action failed; the message is for the model."""


class BrowserOutput(str):
    """The text that a model gets, with its source URLs: the page's, or those of the search results."""

    __slots__ = ("urls",)
    urls: tuple[str, ...]


class _Result(msgspec.Struct):
    url: str
    title: str | None = ""
    content: str | None = ""


class _Results(msgspec.Struct):
    results: list[_Result]


_results_decoder = msgspec.json.Decoder(_Results)


@dataclass(frozen=True, slots=True)
class Web:
    """The search engine, what may be visited, and functions that fetch and parse pages."""

    search_url: str | None
    """Address of a SearXNG instance, or of a server with the same JSON; None without search."""
    allowed: AllowedWeb
    fetch: Fetch = fetch
    parse_page: Callable[[str, str], WebPage] = parse_page


class BrowserTabs:
    def __init__(self, web: Web) -> None:
        self._web = web
        self._pages: list[WebPage | None] = []
        self._first = 0
        """The cursor of the oldest open page."""
        self.size = 0
        """Bytes of the open pages."""

    def search(self, query: str, count: int = 10) -> BrowserOutput:
        """Raises BrowserError."""
        if self._web.search_url is None:
            raise BrowserError("There is no search here; open a page by its URL.")
        address = f"{self._web.search_url}?{urlencode({'q': query, 'format': 'json'}, errors='replace')}"
        try:
            fetched = self._fetch(address, allow_host_of(self._web.search_url))
            answer = _results_decoder.decode(fetched.body)
        except (BrowserError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise BrowserError("The search does not answer at the moment.") from None
        results = [
            (result.url, result.title or "", (result.content or "")[:1000])
            for result in answer.results
            if _is_url(result.url)
        ]
        return self._open_tab(from_results(query, results[: max(1, min(count, _MAX_RESULTS))]))

    def open(
        self, target: int | str = -1, cursor: int = -1, first: int = -1, lines: int = -1
    ) -> BrowserOutput:
        """Open a page's link by number, or a URL; with neither, show an open page. Raises BrowserError."""
        try:
            number = int(target)
        except ValueError:
            return self._open_tab(self._load_page(str(target)), first, lines)
        if number < 0:
            at, page = self._page(cursor)
            return _output_of_lines(page, at, first, lines)
        _, page = self._page(cursor)
        if number >= len(page.links):
            raise BrowserError(f"The page has no link {number}.")
        return self._open_tab(self._load_page(page.links[number]), first, lines)

    def find(self, pattern: str, cursor: int = -1) -> BrowserOutput:
        """Raises BrowserError."""
        if not pattern:
            raise BrowserError("The pattern is empty.")
        at, page = self._page(cursor)
        return _output(page, find_lines(page, at, pattern))

    def _page(self, cursor: int) -> tuple[int, WebPage]:
        at = len(self._pages) - 1 if cursor < 0 else cursor
        page = self._pages[at] if 0 <= at < len(self._pages) else None
        if page is None:
            raise BrowserError("There is no such page; search, or open a URL, first.")
        return at, page

    def _open_tab(self, page: WebPage, first: int = -1, lines: int = -1) -> BrowserOutput:
        self._pages.append(page)
        self.size += page.size
        while len(self._pages) - self._first > MAX_PAGES or (
            self.size > MAX_BYTES and self._first < len(self._pages) - 1
        ):
            closed = self._pages[self._first]
            self._pages[self._first] = None  # so that cursors of later pages stay valid
            self._first += 1
            self.size -= closed.size if closed is not None else 0
        return _output_of_lines(page, len(self._pages) - 1, first, lines)

    def _load_page(self, url: str) -> WebPage:
        fetched = self._fetch(url, self._web.allowed)
        if fetched.status >= 400:
            raise BrowserError(f"The page answers with status {fetched.status}.")
        text = decode_body(fetched.body, fetched.charset)
        if fetched.media_type in _HTML:
            try:
                return self._web.parse_page(fetched.url, text)
            except PageUnreadable as error:
                raise BrowserError(str(error)) from None
        if fetched.media_type.startswith("text/") or fetched.media_type in _TEXT:
            return from_text(fetched.url, text)
        raise BrowserError(f"The page is of type {fetched.media_type[:100]}, which is no text.")

    def _fetch(self, url: str, allowed: AllowedWeb) -> FetchedPage:
        try:
            return self._web.fetch(url, allowed)
        except (ForbiddenUrl, PageUnreachable) as error:
            raise BrowserError(str(error)) from None


def _output_of_lines(page: WebPage, cursor: int, first: int, lines: int) -> BrowserOutput:
    try:
        return _output(page, number_lines(page, cursor, max(first, 0), lines if lines > 0 else None))
    except ValueError as error:
        raise BrowserError(str(error)) from None


def _output(page: WebPage, text: str) -> BrowserOutput:
    shown = BrowserOutput(text)
    shown.urls = (page.url,) if page.url else page.links
    return shown


def _is_url(text: str) -> bool:
    try:
        read_url(text)
    except (ForbiddenUrl, ValueError):
        return False
    return True
