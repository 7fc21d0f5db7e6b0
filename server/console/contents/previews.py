"""The first words of an item, from the beginning of its JSON. Pure."""

import json
import re

MAX_CHARS = 120
_TEXT = re.compile(r'"(?:text|output|arguments|refusal|content|input)"\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def preview(payload_begin: str | None) -> str:
    """The first words of an item in one line; empty for items without a text.

    `payload_begin` is the JSON, or the beginning of it, which may end anywhere.
    """
    found = _TEXT.search(payload_begin or "")
    if found is None:
        return ""
    text = _CUT_ESCAPE.sub("", found[1])
    try:
        decoded = json.loads(f'"{text}"', strict=False)
    except ValueError:
        decoded = text
    words = " ".join(str(decoded[: 8 * MAX_CHARS]).split())
    return words if len(words) <= MAX_CHARS else words[: MAX_CHARS - 1] + "…"
