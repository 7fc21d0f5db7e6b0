"""Web pages as numbered lines of text with numbered links: HTML parsed in a process, search results, matches.

Links have the form that gpt-oss is trained on: `【4†text†host】`, without the host if it is the page's own.
These brackets in a page's own text are replaced, so that a page cannot forge links. A model sees a page as
gpt-oss's own tool shows it: `[cursor]`, then `L9: text`, so that it can cite `【6†L9-L11】`.

HTML parsers take time quadratic in a page's depth and cannot be interrupted, and pages are untrusted, so
`parse_page` runs this module in a process of its own, with limits of CPU time and memory, which can open no
file, connection or program while it parses.
"""

import codecs
import os
import re
import resource
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from hashlib import sha256

import httpx
import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from tool_servers import seccomp
from tool_servers.browser.allowed_web import ForbiddenUrl, read_url

WIDTH = 80
MAX_CHARACTERS = 500_000
"""Characters of a page's text; the rest is replaced by a note of its length."""
MAX_LINKS = 2000
MAX_OUTPUT_CHARACTERS = 8000
"""Characters of one output, unless the model asks for a number of lines."""
MAX_LINES = 1000
_CONTEXT_LINES = 4
_MAX_MATCHES = 50
CPU_SECONDS = 5.0
_MEMORY_BYTES = 1 << 30
_REMOVED = "script, style, noscript, template, svg, iframe, object, select, head"
_BLOCK_TAGS = (
    "address article aside blockquote br dd details div dl dt fieldset figcaption figure footer form h1 h2 h3"
    " h4 h5 h6 header hr li main nav ol p pre section summary table tbody td tfoot th thead tr ul"
)
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_SLOW_CODECS = frozenset({"idna", "punycode"})
"""Python's own, which take time quadratic in the text; no page is written in them."""
_MARKS = str.maketrans("【】†", "〖〗‡")


@dataclass(frozen=True, slots=True)
class WebPage:
    url: str
    title: str
    lines: tuple[str, ...]
    links: tuple[str, ...] = ()
    """URLs; the index is the link's number."""

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return sum(map(sys.getsizeof, (self.url, self.title, *self.lines, *self.links))) + 8 * len(self.lines)


_page_decoder = msgspec.json.Decoder(WebPage)
_request_decoder = msgspec.json.Decoder(tuple[str, str, float])
"""(URL, HTML, seconds of CPU time)"""


def decode_body(body: bytes, charset: str | None) -> str:
    """Decode a body by the header's charset, else by an HTML page's <meta>, else as UTF-8."""
    if charset is None and (match := _CHARSET.search(body[:4096])):
        charset = match[1].decode("ascii")
    try:
        codec = codecs.lookup(charset or "utf-8").name
        return body.decode("utf-8" if codec in _SLOW_CODECS else codec, "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


def from_text(url: str, text: str) -> WebPage:
    return WebPage(url, url, _lines(text.translate(_MARKS)))


def from_html(url: str, html: str) -> WebPage:
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
    return WebPage(url, title or url, _lines(text), tuple(links))


def from_results(query: str, results: list[tuple[str, str, str]]) -> WebPage:
    """A page of search results, given as (URL, title, extract)."""
    lines: list[str] = []
    for number, (url, title, extract) in enumerate(results):
        lines.append(f"【{number}†{_clean(title) or url}†{httpx.URL(url).host}】")
        lines += [*textwrap.wrap(_clean(extract), WIDTH), ""]
    return WebPage("", f"Search: {_clean(query)}", tuple(lines), tuple(url for url, _, _ in results))


def _target(anchor: LexborNode, here: httpx.URL) -> httpx.URL | None:
    """The URL of a link; None for an invalid one and for one within the same page."""
    try:
        there = read_url(str(here.join((anchor.attributes.get("href") or "").strip())))
    except (ForbiddenUrl, httpx.InvalidURL, ValueError):
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


class PageUnreadable(Exception):
    """Parsing takes too much time or memory."""


def parse_page(url: str, html: str, seconds: float = CPU_SECONDS) -> WebPage:
    """`from_html` in a new process. Raises PageUnreadable."""
    message = msgspec.json.encode((url, html.encode("utf-8", "replace").decode(), seconds))
    try:
        output = subprocess.run(
            [sys.executable, "-m", "tool_servers.browser.page"],
            input=message,
            capture_output=True,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # and no secret
            check=True,
            timeout=4 * seconds,  # wall-clock time; CPU time is limited in the process
        ).stdout
        return _page_decoder.decode(output)
    except (subprocess.SubprocessError, msgspec.DecodeError):
        raise PageUnreadable("The page takes too long to be read.") from None


def main() -> None:
    url, html, seconds = _request_decoder.decode(sys.stdin.buffer.read())
    cpu = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever is imported when it is needed, as the tables of international names are, is imported now.
    from_html("https://a.example/", "<p><a href='https://\u00e4.example/'>\u00e4</a>")
    seccomp.only_compute()
    sys.stdout.buffer.write(msgspec.json.encode(from_html(url, html)))


def number_lines(page: WebPage, cursor: int, first: int = 0, lines: int | None = None) -> str:
    """The page from line `first` on. Raises ValueError for a line that does not exist."""
    total = len(page.lines)
    if not 0 <= first < max(total, 1):
        raise ValueError(f"The page has lines 0 to {max(total - 1, 0)}.")
    end, shown = first, 0
    while end < total and (
        end - first < min(lines, MAX_LINES) if lines is not None else shown < MAX_OUTPUT_CHARACTERS
    ):
        shown += len(page.lines[end])
        end += 1
    numbered = (f"L{number}: {page.lines[number]}" for number in range(first, end))
    where = f"**viewing lines [{first} - {max(end - 1, first)}] of {max(total - 1, 0)}**"
    return "\n".join([_head(page, cursor), where, "", *numbered])


def find_lines(page: WebPage, cursor: int, pattern: str) -> str:
    """The lines that contain a text, ignoring case, each with the lines around it."""
    lowered = pattern.lower()
    matches = [number for number, line in enumerate(page.lines) if lowered in line.lower()]
    if not matches:
        return f"{_head(page, cursor)}\nNo line has `{pattern[:200]}`."
    parts = [_head(page, cursor)]
    for number in matches[:_MAX_MATCHES]:
        around = range(max(number - 1, 0), min(number + _CONTEXT_LINES, len(page.lines)))
        parts += ["", f"# found at L{number}", *(f"L{line}: {page.lines[line]}" for line in around)]
    if len(matches) > _MAX_MATCHES:
        parts += ["", f"[{len(matches) - _MAX_MATCHES} more places were left out]"]
    return "\n".join(parts)


def _head(page: WebPage, cursor: int) -> str:
    return f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url and page.url != page.title else "")


if __name__ == "__main__":
    main()
