"""How much there may be in one JSON document, counted before it is decoded.

Decoding keeps every other thread of the process waiting, by about a microsecond for a key and its value: ten
megabytes of small ones are more than a second, and of decimal fractions that round badly half a minute.
Counting what delimits them takes milliseconds, and lets other threads run between its pieces.
"""

import re
from collections.abc import Iterator

from server.protocol.errors import DecodeFailure

MAX_STRINGS = 65_536
"""Strings, keys among them; and as many lists and objects together."""
MAX_VALUES = 131_072
"""Values of all kinds, of which numbers are the cheapest."""
MAX_TOKEN_VALUES = 1_000_000
"""The same of a request that may have the tokens of long prompts, which are whole numbers."""
MAX_DECIMALS = 2_048
"""Numbers with a fraction or an exponent. Reading one takes up to 30 microseconds, `1e308` for example."""
MAX_DIGITS = 64
"""In a row. The time that is taken by a whole number grows with the square of its digits."""
_SMALL = 4 * MAX_DECIMALS
"""Bytes in which there cannot be too much of anything."""
PIECE_BYTES = 2**18
"""Bytes that are looked at without letting another thread run."""
_BACKSLASHES = re.compile(rb"\\*")
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def check_size(data: bytes, most_numbers: int = MAX_VALUES) -> None:
    """Raises DecodeFailure for more values than any request needs. Linear.

    What precedes the first mistake of a document that is no valid JSON is counted right, and no more of it is
    ever decoded.
    """
    if len(data) <= _SMALL:
        return
    quotes = nested = values = decimals = 0
    for plain in _pieces(data):
        parts = plain.split(b'"')
        outside = b" ".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        nested += outside.count(b"{") + outside.count(b"[")
        values += outside.count(b",")
        decimals += outside.count(b".") + outside.count(b"E") + _exponents(outside)
        if quotes > 2 * MAX_STRINGS or nested > MAX_STRINGS or values > most_numbers:
            raise _too_much(
                f"it may have {MAX_STRINGS} strings, as many lists and objects, and {most_numbers} values in "
                "all"
            )
        if decimals > MAX_DECIMALS or b"0" * (MAX_DIGITS + 1) in outside.translate(_AS_ZEROS):
            raise _too_much(
                f"it may have {MAX_DECIMALS} numbers with a fraction or an exponent, and numbers of "
                f"{MAX_DIGITS} digits in a row"
            )


def _pieces(data: bytes) -> Iterator[bytes]:
    """The document without its escapes of backslashes and quotes, cut at no escape."""
    start = 0
    while start < len(data):
        run = _BACKSLASHES.match(data, start + PIECE_BYTES)
        end = len(data) if run is None else run.end() + 1  # with what the last backslash escapes
        piece = data[start:end]
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece
        start = end


def _exponents(outside: bytes) -> int:
    """Those with a small letter, which `true` and `false` have, too."""
    return outside.count(b"e") - outside.count(b"true") - outside.count(b"false")


def _too_much(bounds: str) -> DecodeFailure:
    return DecodeFailure(f"The request body has too many values: {bounds}.", code="too_many_values")
