"""A web page as lines of text with numbered links. Pure.

Links have the form that gpt-oss is trained on: `【4†text†host】`, without the host if it is the page's own.
These brackets in a page's own text are replaced, so that a page cannot forge links.
"""

import re
import sys
import textwrap
from dataclasses import dataclass
from hashlib import sha256

import httpx
from selectolax.lexbor import LexborHTMLParser, LexborNode

from server.outbound_http.allowed_addresses import Refused, read_url

WIDTH = 80
MAX_CHARACTERS = 500_000
"""Of a page's text; the rest is replaced by a note of its length."""
MAX_LINKS = 2000
_REMOVED = "script, style, noscript, template, svg, iframe, object, select, head"
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li"),
        *(
            "main",
            "nav",
            "ol",
            "p",
            "pre",
            "section",
            "summary",
            "table",
            "tbody",
            "td",
            "tfoot",
            "th",
            "thead",
        ),
        *("tr", "ul"),
    }
)
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_MARKS = str.maketrans("【】†", "〖〗‡")


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    title: str
    lines: tuple[str, ...]
    links: tuple[str, ...] = ()
    """URLs; the index is the link's number."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return sum(map(sys.getsizeof, (self.url, self.title, *self.lines, *self.links))) + 8 * len(self.lines)


def decode_body(body: bytes, charset: str | None) -> str:
    """Decode a body by the header's charset, else by an HTML page's <meta>, else as UTF-8."""
    if charset is None and (match := _CHARSET.search(body[:4096])):
        charset = match[1].decode("ascii")
    try:
        return body.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


def from_text(url: str, text: str) -> Page:
    """A page of plain text."""
    return Page(url, url, _lines(text.translate(_MARKS)))


def from_html(url: str, html: str) -> Page:
    """The visible text of an HTML page, in document order."""
    tree = LexborHTMLParser(html)
    title_node = tree.css_first("title")
    title = _clean(title_node.text()) if title_node is not None else ""
    for node in tree.css(_REMOVED):
        node.decompose()
    # An unguessable placeholder stands for each link until the text is extracted.
    placeholder = sha256(html.encode("utf-8", "replace")).hexdigest()[:24]
    links: list[str] = []
    written: list[str] = []
    for anchor in tree.css("a[href]")[:MAX_LINKS]:
        text, there = _clean(anchor.text()), _target(anchor, httpx.URL(url))
        if text and there is not None:
            host = f"†{there.host}" if there.host != httpx.URL(url).host else ""
            anchor.replace_with(f"{placeholder}{len(links)};")
            written.append(f"【{len(links)}†{text}{host}】")
            links.append(str(there))
    text = _text(tree).translate(_MARKS)
    text = re.sub(rf"{placeholder}(\d+);", lambda match: written[int(match[1])], text)
    return Page(url, title or url, _lines(text), tuple(links))


def from_results(query: str, results: list[tuple[str, str, str]]) -> Page:
    """A page of search results, given as (URL, title, extract)."""
    lines: list[str] = []
    for number, (url, title, extract) in enumerate(results):
        lines.append(f"【{number}†{_clean(title) or url}†{httpx.URL(url).host}】")
        lines += [*textwrap.wrap(_clean(extract), WIDTH), ""]
    return Page("", f"Search: {_clean(query)}", tuple(lines), tuple(url for url, _, _ in results))


def _target(anchor: LexborNode, here: httpx.URL) -> httpx.URL | None:
    """The URL of a link; None for an invalid one and for one within the same page."""
    try:
        there = read_url(str(here.join((anchor.attributes.get("href") or "").strip())))
    except (Refused, httpx.InvalidURL, ValueError):
        return None
    return None if there.copy_with(fragment=None) == here else there


def _text(tree: LexborHTMLParser) -> str:
    if tree.body is None:
        return ""
    pieces: list[str] = []
    for node in tree.body.traverse(include_text=True):
        if node.tag == "-text":
            pieces.append(re.sub(r"\s+", " ", node.text(deep=False) or ""))
        elif node.tag in _BLOCKS:
            pieces.append("\n")
    return "".join(pieces)


def _clean(text: str) -> str:
    return " ".join(text.split()).translate(_MARKS)


def _lines(text: str) -> tuple[str, ...]:
    rest = len(text) - MAX_CHARACTERS
    lines: list[str] = []
    for paragraph in text[:MAX_CHARACTERS].splitlines():
        wrapped = textwrap.wrap(paragraph, WIDTH, break_on_hyphens=False)
        if wrapped or (lines and lines[-1]):
            lines += wrapped or [""]
    if rest > 0:
        lines.append(f"[{rest} more characters were left out]")
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)
