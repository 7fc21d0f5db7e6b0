"""A page as text for the model: numbered lines under a header with cursor, title and URL. Pure.

The form is that of gpt-oss's own tool: `[cursor]`, then `L9: text`, so that it can cite `【6†L9-L11】`.
"""

from server.browser.page import Page

MAX_CHARACTERS = 8000
"""Of one output, unless the model asks for a number of lines."""
MAX_LINES = 1000
_CONTEXT_LINES = 4
_MAX_MATCHES = 50


def number_lines(page: Page, cursor: int, first: int = 0, lines: int | None = None) -> str:
    """The page from line `first` on. Raises ValueError for a line that does not exist."""
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


def _head(page: Page, cursor: int) -> str:
    return f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url and page.url != page.title else "")
