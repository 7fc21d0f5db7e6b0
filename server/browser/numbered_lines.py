"""What a model is shown of a page: numbered lines under a head that says where it is. Pure.

The form is that of gpt-oss's own tool: `[cursor]`, then `L9: text`, so that it can cite `【6†L9-L11】`.
"""

from server.browser.page import Page

MAX_CHARACTERS = 8000
"""Shown at a time, unless more lines are asked for."""
MAX_LINES = 1000
_CONTEXT_LINES = 4
_MAX_MATCHES = 50


def number_lines(page: Page, cursor: int, first: int = 0, lines: int | None = None) -> str:
    """The page from a line on. Raises ValueError for a line that it does not have."""
    total = len(page.lines)
    if not 0 <= first < max(total, 1):
        raise ValueError(f"The page has lines 0 to {max(total - 1, 0)}.")
    end, shown = first, 0
    while end < total and (
        end - first < min(lines, MAX_LINES) if lines is not None else shown < MAX_CHARACTERS
    ):
        shown += len(page.lines[end])
        end += 1
    numbered = (f"L{number}: {page.lines[number]}" for number in range(first, end))
    where = f"**viewing lines [{first} - {max(end - 1, first)}] of {max(total - 1, 0)}**"
    return "\n".join([_head(page, cursor), where, "", *numbered])


def find_lines(page: Page, cursor: int, pattern: str) -> str:
    """The places at which a text stands in the page, whatever its capitals, with the lines around them."""
    wanted = pattern.lower()
    places = [number for number, line in enumerate(page.lines) if wanted in line.lower()]
    if not places:
        return f"{_head(page, cursor)}\nNo line has `{pattern[:200]}`."
    parts = [_head(page, cursor)]
    for place in places[:_MAX_MATCHES]:
        around = range(max(place - 1, 0), min(place + _CONTEXT_LINES, len(page.lines)))
        parts += ["", f"# found at L{place}", *(f"L{number}: {page.lines[number]}" for number in around)]
    if len(places) > _MAX_MATCHES:
        parts += ["", f"[{len(places) - _MAX_MATCHES} more places were left out]"]
    return "\n".join(parts)


def _head(page: Page, cursor: int) -> str:
    return f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url and page.url != page.title else "")
