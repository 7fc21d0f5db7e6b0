"""How much there may be in one JSON document, counted before it is decoded.

Decoding keeps every other thread of the process waiting, by about a microsecond for a key and its value: ten
megabytes of small ones are more than a second. Counting what delimits them takes milliseconds.
"""

from server.wire.errors import DecodeFailure

MOST_VALUES = 65_536
"""Strings, keys among them; and as many lists and objects together."""
MOST_NUMBERS = 1_000_000
"""Values of all kinds, of which numbers are the cheapest: the tokens of long prompts."""


def check_size(data: bytes) -> None:
    """Raises DecodeFailure for more values than any request needs. Linear; correct for valid JSON."""
    if len(data) <= MOST_VALUES:
        return
    if (
        data.count(b'"') + data.count(b"{") + data.count(b"[") > MOST_VALUES
        or data.count(b",") > MOST_NUMBERS
    ):
        _check_exactly(data)


def _check_exactly(data: bytes) -> None:
    """The same without what is in strings, which may be JSON, too."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    if plain.count(b'"') // 2 > MOST_VALUES:
        raise _too_many()
    outside = b"".join(plain.split(b'"')[::2])
    if outside.count(b"{") + outside.count(b"[") > MOST_VALUES or outside.count(b",") > MOST_NUMBERS:
        raise _too_many()


def _too_many() -> DecodeFailure:
    return DecodeFailure(
        f"The request body has too many values: it may have {MOST_VALUES} strings, as many lists and objects,"
        f" and {MOST_NUMBERS} values in all.",
        code="too_many_values",
    )
