"""How a browser says in MCP where its text comes from: `_meta` of a call's result. Pure."""

import re
from typing import Any

URLS_KEY = "holdfast/urls"
"""The URL of a page, or those that a search found."""
MOST_URLS = 50
MOST_URL = 2048
_URL = re.compile(r"https?://[^\s\x00-\x1f]+")


def urls_of(meta: dict[str, Any] | None) -> tuple[str, ...]:
    """The addresses that the result of a call names, those that are none left out."""
    said = (meta or {}).get(URLS_KEY)
    urls = said[:MOST_URLS] if isinstance(said, list) else []
    return tuple(url for url in urls if isinstance(url, str) and len(url) <= MOST_URL and _URL.fullmatch(url))
