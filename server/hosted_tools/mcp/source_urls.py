"""How a browser says in MCP where its text comes from: `_meta` of a call's result. Pure."""

import re
from typing import Any

URLS_KEY = "holdfast/urls"
"""The URL of a page, or those that a search found."""
MAX_URLS = 50
MAX_URL = 2048
_URL = re.compile(r"https?://[^\s\x00-\x1f]+")


def source_urls(meta: dict[str, Any] | None) -> tuple[str, ...]:
    """The addresses that the result of a call names, those that are none left out."""
    said = (meta or {}).get(URLS_KEY)
    urls = said[:MAX_URLS] if isinstance(said, list) else []
    return tuple(url for url in urls if isinstance(url, str) and len(url) <= MAX_URL and _URL.fullmatch(url))
