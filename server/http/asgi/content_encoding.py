"""Content-Encoding of request bodies: gzip and deflate, decompressed in pieces up to a size limit."""

import zlib
from collections.abc import Callable

from server.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

_PIECE = 64 * 1024
_GZIP = zlib.MAX_WBITS | 16
_CODINGS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}


def read_content_encoding(header: str) -> str | None:
    """The coding of a Content-Encoding header; None without one. Raises UnsupportedEncoding."""
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _CODINGS:
        raise UnsupportedEncoding(header)
    return coding


def decompress(content: bytes, coding: str, most: int, reserve: Callable[[int], None]) -> bytes:
    """The decompressed body, at most `most` bytes.

    `reserve` is called with the total in memory before it grows, and may raise. Raises BodyTooLarge, or
    InvalidRequest for a truncated, corrupt or trailing stream.
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
                raise _invalid(coding)
            pieces.append(piece)
    except zlib.error:
        raise _invalid(coding) from None
    if unpacking.unused_data:
        raise _invalid(coding)
    return b"".join(pieces)


def _window(content: bytes, coding: str) -> int:
    """Zlib's `wbits`. `deflate` means a zlib stream (RFC 9110), but some clients send it without header."""
    has_header = content[:1] and content[0] & 0x0F == 8 and int.from_bytes(content[:2]) % 31 == 0
    return -zlib.MAX_WBITS if coding == "deflate" and not has_header else _CODINGS[coding]


def _invalid(coding: str) -> InvalidRequest:
    return InvalidRequest(f"The request body is not one whole {coding} stream.")
