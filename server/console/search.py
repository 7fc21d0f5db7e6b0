"""What the search box and the filters of the history ask for. Pure."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from server.errors import InvalidRequest
from server.protocol import ids
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console.history import HistoryFilter

MAX_CHARS = 1000
PERIODS: Final[Mapping[str, timedelta | None]] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "all": None,
}
DEFAULT_PERIOD = "7d"
STATUSES: Final = ("queued", "in_progress", *sorted(TERMINAL_STATUSES))
KINDS: Final = ("response", "chat", "completion")
_NAMES: Final[Mapping[str, str]] = {
    "tenant": "tenant",
    "key": "key_id",
    "model": "model",
    "kind": "kind",
    "status": "status",
    "error": "error_code",
    "user": "end_user",
    "request": "request_id",
    "conversation": "conversation",
}
"""Words before a colon in the box, which are the form's fields, too; and the fields of the filter."""
_METADATA = re.compile(r"([^=\s:]{1,64})=(.{0,512})", re.DOTALL)


def find_response(query: str) -> UUID | None:
    """The response that a query names by its id, by that of a chat or an item, or by its UUID; else None."""
    text = query.strip()
    found = ids.parse_response_id(text) or ids.parse_completion_id(text) or ids.response_of_item(text)
    if found is not None:
        return found
    try:
        return UUID(text) if len(text) == 36 else None
    except ValueError:
        return None


def read_filter(arguments: Mapping[str, str], now: datetime) -> HistoryFilter:
    """The filter of a page's address: the box `q`, a field for each column, and the time.

    Raises InvalidRequest.
    """
    period = arguments.get("period") or DEFAULT_PERIOD
    if period not in PERIODS:
        raise InvalidRequest(f"period is one of {', '.join(PERIODS)}.", param="period")
    length = PERIODS[period]
    wanted = HistoryFilter(since=None if length is None else now - length)
    for name in _NAMES:
        if arguments.get(name):
            wanted = _with_field(wanted, name, arguments[name])
    if arguments.get("deaths"):
        wanted = replace(wanted, died=True)
    return _with_query(wanted, arguments.get("q", ""))


def _with_query(wanted: HistoryFilter, query: str) -> HistoryFilter:
    if len(query) > MAX_CHARS:
        raise InvalidRequest(f"A search has at most {MAX_CHARS} characters.", param="q")
    words = []
    for part in _parts(query):
        name, colon, value = part.partition(":")
        if colon and value and name in _NAMES:
            wanted = _with_field(wanted, name, value)
        elif part.startswith("conv_"):
            wanted = _with_field(wanted, "conversation", part)
        elif part.startswith("req_"):
            wanted = _with_field(wanted, "request", part)
        elif (pair := _METADATA.fullmatch(part)) is not None:
            wanted = replace(wanted, metadata={**wanted.metadata, pair[1]: pair[2]})
        else:
            words.append(f'"{part}"' if " " in part else part)
    return replace(wanted, words=" ".join(words))


def _parts(query: str) -> list[str]:
    """The query at its spaces; what is in double quotes stays together."""
    reader = shlex.shlex(query, posix=True)
    reader.whitespace_split, reader.commenters, reader.quotes, reader.escape = True, "", '"', ""
    try:
        return list(reader)
    except ValueError:  # a quote that does not end
        return query.replace('"', " ").split()


def _with_field(wanted: HistoryFilter, name: str, value: str) -> HistoryFilter:
    if name == "status" and value not in STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(STATUSES)}.", param="status")
    if name == "kind" and value not in KINDS:
        raise InvalidRequest(f"kind is one of {', '.join(KINDS)}.", param="kind")
    if name == "conversation":
        found = ids.parse_conversation_id(value)
        if found is None:
            raise InvalidRequest("A conversation is conv_ and 32 hex digits.", param="conversation")
        return replace(wanted, conversation=found)
    return replace(wanted, **{_NAMES[name]: value})  # type: ignore[arg-type]  # the other fields are texts
