"""What one model has open, pages by their cursors: searching, opening, finding. Not for two threads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import msgspec

from server.browser import numbered_lines
from server.browser.page import Page, decoded, from_results, from_text
from server.browser.page_process import Unreadable, read
from server.outbound_http.allowed_addresses import Allowed, Refused, only, read_url
from server.outbound_http.fetch import Bounds, Fetched, Unreachable, fetch
from server.protocol.typed import decode_as

MOST_PAGES = 100
MOST_BYTES = 16 * 1024 * 1024
"""Of one model's open pages; the oldest are closed beyond it, but for the one opened last."""
_MOST_RESULTS = 20
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = ("application/json", "application/xml", "application/javascript", "")
Fetch = Callable[[str, Allowed, Bounds], Fetched]


class Impossible(Exception):
    """What a model asked for cannot be done; the message tells it why."""


class Shown(str):
    """What a model is shown, and the URLs that it comes from: of a search those that it found."""

    __slots__ = ("urls",)
    urls: tuple[str, ...]


class _Result(msgspec.Struct):
    url: str
    title: str | None = ""
    content: str | None = ""


class _Results(msgspec.Struct):
    results: list[_Result]


@dataclass(frozen=True, slots=True)
class Web:
    """Where pages come from."""

    search_url: str | None
    """Of a SearXNG instance, or of what answers like one."""
    allowed: Allowed
    bounds: Bounds = field(default_factory=Bounds)
    fetch: Fetch = fetch
    read: Callable[[str, str], Page] = read


class Browsing:
    def __init__(self, web: Web) -> None:
        self._web = web
        self._pages: list[Page | None] = []
        self._first = 0
        """The oldest page that is open."""
        self.size = 0
        """Bytes of the open pages."""

    def search(self, query: str, count: int = 10) -> Shown:
        """Raises Impossible."""
        if self._web.search_url is None:
            raise Impossible("There is no search here; open a page by its URL.")
        address = f"{self._web.search_url}?{urlencode({'q': query, 'format': 'json'}, errors='replace')}"
        try:
            fetched = self._fetched(address, only(self._web.search_url))
            told = decode_as(fetched.body, _Results)
        except (Impossible, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise Impossible("The search does not answer at the moment.") from None
        results = [
            (result.url, result.title or "", (result.content or "")[:1000])
            for result in told.results
            if _is_url(result.url)
        ]
        return self._keep(from_results(query, results[: max(1, min(count, _MOST_RESULTS))]))

    def open(self, target: int | str = -1, cursor: int = -1, first: int = -1, lines: int = -1) -> Shown:
        """A link of a page by its number, a URL, or, without either, an open page. Raises Impossible."""
        try:
            number = int(target)
        except ValueError:
            return self._keep(self._read(str(target)), first, lines)
        if number < 0:
            at, page = self._page(cursor)
            return _shown(page, at, first, lines)
        _, page = self._page(cursor)
        if number >= len(page.links):
            raise Impossible(f"The page has no link {number}.")
        return self._keep(self._read(page.links[number]), first, lines)

    def find(self, pattern: str, cursor: int = -1) -> Shown:
        """Raises Impossible."""
        if not pattern:
            raise Impossible("The pattern is empty.")
        at, page = self._page(cursor)
        return _from(page, numbered_lines.found(page, at, pattern))

    def _page(self, cursor: int) -> tuple[int, Page]:
        at = len(self._pages) - 1 if cursor < 0 else cursor
        page = self._pages[at] if 0 <= at < len(self._pages) else None
        if page is None:
            raise Impossible("There is no such page; search, or open a URL, first.")
        return at, page

    def _keep(self, page: Page, first: int = -1, lines: int = -1) -> Shown:
        self._pages.append(page)
        self.size += page.size
        while len(self._pages) - self._first > MOST_PAGES or (
            self.size > MOST_BYTES and self._first < len(self._pages) - 1
        ):
            closed, self._pages[self._first] = self._pages[self._first], None  # the others keep their cursors
            self._first += 1
            self.size -= closed.size if closed is not None else 0
        return _shown(page, len(self._pages) - 1, first, lines)

    def _read(self, url: str) -> Page:
        fetched = self._fetched(url, self._web.allowed)
        if fetched.status >= 400:
            raise Impossible(f"The page answers with status {fetched.status}.")
        text = decoded(fetched.body, fetched.charset)
        if fetched.media_type in _HTML:
            try:
                return self._web.read(fetched.url, text)
            except Unreadable as error:
                raise Impossible(str(error)) from None
        if fetched.media_type.startswith("text/") or fetched.media_type in _TEXT:
            return from_text(fetched.url, text)
        raise Impossible(f"The page is of type {fetched.media_type[:100]}, which is no text.")

    def _fetched(self, url: str, allowed: Allowed) -> Fetched:
        try:
            return self._web.fetch(url, allowed, self._web.bounds)
        except (Refused, Unreachable) as error:
            raise Impossible(str(error)) from None


def _shown(page: Page, cursor: int, first: int, lines: int) -> Shown:
    try:
        return _from(page, numbered_lines.show(page, cursor, max(first, 0), lines if lines > 0 else None))
    except ValueError as error:
        raise Impossible(str(error)) from None


def _from(page: Page, text: str) -> Shown:
    shown = Shown(text)
    shown.urls = (page.url,) if page.url else page.links
    return shown


def _is_url(text: str) -> bool:
    try:
        return bool(read_url(text).host) and urlsplit(text).scheme in ("http", "https")
    except (Refused, ValueError):
        return False
