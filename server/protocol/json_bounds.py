"""Limits the number of values in a JSON document before it is decoded.

Decoding holds the GIL for about 1 µs per key and value: more than a second for 10 MB of small values, half a
minute for decimal fractions that are slow to round. Counting delimiters takes milliseconds and releases the
GIL between pieces.
"""

import re
from collections.abc import Iterator

from server.protocol.errors import DecodeFailure

MAX_STRINGS = 65_536
"""Maximum number of strings, including keys, and of lists and objects together."""
MAX_VALUES = 131_072
"""Maximum number of values of all types; numbers are the cheapest."""
MAX_TOKEN_VALUES = 1_000_000
"""`MAX_VALUES` of endpoints that accept prompts as token ids."""
MAX_DECIMALS = 2_048
"""Maximum number of floats; parsing one takes up to 30 µs (`1e308`)."""
MAX_DIGITS = 64
"""Maximum consecutive digits; the time to parse an integer is quadratic in them."""
_SMALL = 4 * MAX_DECIMALS
"""Bytes of a document that cannot exceed any limit."""
PIECE_BYTES = 2**18
"""Bytes counted without releasing the GIL."""
_BACKSLASHES = re.compile(rb"\\*")
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def check_size(data: bytes, max_values: int = MAX_VALUES) -> None:
    """Raises DecodeFailure for a document with too many values, in linear time.

    In invalid JSON the part before the first error is counted correctly; the decoder never reads beyond it.
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
        if quotes > 2 * MAX_STRINGS or nested > MAX_STRINGS or values > max_values:
            raise _too_much(
                f"it may have {MAX_STRINGS} strings, as many lists and objects, and {max_values} values in "
                "all"
            )
        if decimals > MAX_DECIMALS or b"0" * (MAX_DIGITS + 1) in outside.translate(_AS_ZEROS):
            raise _too_much(
                f"it may have {MAX_DECIMALS} numbers with a fraction or an exponent, and numbers of "
                f"{MAX_DIGITS} digits in a row"
            )


def _pieces(data: bytes) -> Iterator[bytes]:
    """The document in pieces, without escaped backslashes and quotes; no escape is split."""
    start = 0
    while start < len(data):
        run = _BACKSLASHES.match(data, start + PIECE_BYTES)
        end = len(data) if run is None else run.end() + 1  # with what the last backslash escapes
        piece = data[start:end]
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece
        start = end


def _exponents(outside: bytes) -> int:
    """The number of `e` that are not part of `true` or `false`."""
    return outside.count(b"e") - outside.count(b"true") - outside.count(b"false")


def _too_much(bounds: str) -> DecodeFailure:
    return DecodeFailure(f"The request body has too many values: {bounds}.", code="too_many_values")
