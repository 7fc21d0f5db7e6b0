"""Source URLs of a browser tool's result, in the `_meta` field of MCP's call result. Pure."""

import re
from typing import Any

URLS_KEY = "holdfast/urls"
"""The URL of a page, or those that a search found."""
MAX_URLS = 50
MAX_URL = 2048
_URL = re.compile(r"https?://[^\s\x00-\x1f]+")


def source_urls(meta: dict[str, Any] | None) -> tuple[str, ...]:
    """The URLs in a result's `_meta`, without invalid ones."""
    value = (meta or {}).get(URLS_KEY)
    urls = value[:MAX_URLS] if isinstance(value, list) else []
    return tuple(url for url in urls if isinstance(url, str) and len(url) <= MAX_URL and _URL.fullmatch(url))
