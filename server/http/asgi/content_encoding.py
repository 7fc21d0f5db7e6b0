"""Compressed request bodies: gzip and deflate, unpacked piece by piece within a bound."""

import zlib
from collections.abc import Callable

from server.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

_PIECE = 64 * 1024
_GZIP = zlib.MAX_WBITS | 16
_CODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


def coding_of(header: str) -> str | None:
    """The one coding that a Content-Encoding header names; None without one. Raises UnsupportedEncoding."""
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _CODINGS:
        raise UnsupportedEncoding(header)
    return coding


def unpacked(content: bytes, coding: str, most: int, reserve: Callable[[int], None]) -> bytes:
    """The body that was compressed, at most `most` bytes.

    `reserve` is called with the bytes that are in memory, before there are more, and may refuse them. Raises
    BodyTooLarge, or InvalidRequest for what is not one whole stream of that coding.
    """
    unpacking = zlib.decompressobj(_window(content, coding))
    pieces: list[bytes] = []
    total, left = 0, content
    try:
        while not unpacking.eof:
            reserve(total + _PIECE)
            piece = unpacking.decompress(left, _PIECE)
            left = unpacking.unconsumed_tail
            total += len(piece)
            if total > most:
                raise BodyTooLarge(most)
            if not piece and not unpacking.eof:
                raise _bad(coding)
            pieces.append(piece)
    except zlib.error:
        raise _bad(coding) from None
    if unpacking.unused_data:
        raise _bad(coding)
    return b"".join(pieces)


def _window(content: bytes, coding: str) -> int:
    """The `wbits` of zlib; `deflate` is a zlib stream, but some clients send it without its header."""
    has_header = content[:1] and content[0] & 0x0F == 8 and int.from_bytes(content[:2]) % 31 == 0
    return -zlib.MAX_WBITS if coding == "deflate" and not has_header else _CODINGS[coding]


def _bad(coding: str) -> InvalidRequest:
    return InvalidRequest(f"The request body is not one whole {coding} stream.")
