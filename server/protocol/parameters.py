"""Names of parameters are checked at the door, by the rows of `parameter_rows`.

A parameter that would change the answer and is not built is refused, by a 400 that names it. A name that
belongs to another API, or is a known name misspelt, is refused with the right one. Any other unknown name is
ignored, as OpenAI's clients and gateways send fields of their own. Null is the default everywhere. Pure.
"""

from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import msgspec

from server.protocol.errors import DecodeFailure
from server.protocol.parameter_rows import MISPLACED, TABLES, Endpoint, Row

MAX_UNKNOWN_NAMES = 16
"""Unknown names of one request that are compared with the known ones."""
MAX_NAME = 64
"""Characters of a name that is compared, and of JSON that may ask for nothing."""
MIN_SIMILARITY = 0.88
"""How alike a misspelt name and a known one are, as difflib measures it."""
_PATHS: Mapping[Endpoint, str] = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
_WEBSOCKET_FIELDS = frozenset({"type", "generate", "stream_id"})
"""What a message over a WebSocket has beside the parameters."""


def check_names(endpoint: Endpoint, given: Mapping[str, msgspec.Raw]) -> None:
    """Raises DecodeFailure for the first parameter, with its JSON, that is refused on that endpoint."""
    table, slips = TABLES[endpoint], MISPLACED[endpoint]
    unknown = 0
    for name, value in given.items():
        row = table.get(name) or slips.get(name)
        if row is None:
            if unknown < MAX_UNKNOWN_NAMES and name not in _WEBSOCKET_FIELDS:
                unknown += 1
                _refuse_misspelt(endpoint, name, given)
        elif row.verdict == "refused" and not _is_neutral(row, value):
            raise _refusal(endpoint, name, row)


def _is_neutral(row: Row, value: msgspec.Raw) -> bool:
    if len(value) > MAX_NAME:
        return False
    read = msgspec.json.decode(value)
    return read is None or read in row.neutral


def _refusal(endpoint: Endpoint, name: str, row: Row) -> DecodeFailure:
    message = f"Unsupported parameter: '{name}' is not supported on {_PATHS[endpoint]}. {row.reason}"
    return DecodeFailure(message, name, "unsupported_parameter")


def _refuse_misspelt(endpoint: Endpoint, name: str, given: Mapping[str, Any]) -> None:
    """Raises DecodeFailure if the name is close to one that has an effect and that the request lacks."""
    meant = _closest(endpoint, name) if len(name) <= MAX_NAME else None
    if meant is not None and meant not in given:
        message = f"Unknown parameter: '{name}'. Did you mean '{meant}'?"
        raise DecodeFailure(message, name, "unknown_parameter")


@lru_cache(maxsize=1024)
def _closest(endpoint: Endpoint, name: str) -> str | None:
    """The most similar known name, ignoring case; None if none reaches `MIN_SIMILARITY`."""
    plain = _normalized(name)
    matcher: SequenceMatcher[str] = SequenceMatcher(None, "", plain)
    best, alike = None, MIN_SIMILARITY
    for known, other in _known_names(endpoint):
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= alike and matcher.quick_ratio() >= alike:
            ratio = matcher.ratio()
            if ratio >= alike:
                best, alike = known, ratio
    return best


@lru_cache
def _known_names(endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, _normalized(name)) for name, row in TABLES[endpoint].items() if row.verdict != "ignored"
    )


def _normalized(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
