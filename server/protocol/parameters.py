"""Checks the parameter names of a request against the rows of `parameter_rows`.

An unsupported parameter that would change the output is refused with a 400 that names it. A name of another
API, or a misspelt one, is refused with the right name. Other unknown names are ignored, because clients and
gateways send fields of their own. Null is the default everywhere. Pure.
"""

from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import msgspec

from server.protocol.errors import DecodeFailure
from server.protocol.parameter_rows import MISPLACED, TABLES, Endpoint, Row

MAX_UNKNOWN_NAMES = 16
"""Unknown names of one request that are compared with known ones."""
MAX_NAME = 64
"""Maximum characters of a name to compare, and of a value that may be neutral."""
MIN_SIMILARITY = 0.88
"""Minimum `SequenceMatcher` ratio of a misspelt name and a known one."""
_PATHS: Mapping[Endpoint, str] = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
_WEBSOCKET_FIELDS = frozenset({"type", "generate", "stream_id"})
"""Fields of a WebSocket message beside the parameters."""


def check_names(endpoint: Endpoint, params: Mapping[str, msgspec.Raw]) -> None:
    """Raises DecodeFailure for the first parameter (name and JSON) that the endpoint refuses."""
    table, slips = TABLES[endpoint], MISPLACED[endpoint]
    unknown = 0
    for name, value in params.items():
        row = table.get(name) or slips.get(name)
        if row is None:
            if unknown < MAX_UNKNOWN_NAMES and name not in _WEBSOCKET_FIELDS:
                unknown += 1
                _refuse_misspelt(endpoint, name, params)
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


def _refuse_misspelt(endpoint: Endpoint, name: str, params: Mapping[str, Any]) -> None:
    """Raises DecodeFailure if the name resembles a known parameter that the request does not contain."""
    meant = _closest(endpoint, name) if len(name) <= MAX_NAME else None
    if meant is not None and meant not in params:
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
