"""Content-Encodings of request bodies: gzip, deflate, zstd and br, decompressed within bounds."""

import sys
import zlib
from collections.abc import Callable
from typing import Protocol

import brotli

from server.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PIECE = 64 * 1024
"""Bytes that are decompressed at a time, and compressed bytes that are handed to a decompressor at a time."""
_GZIP = zlib.MAX_WBITS | 16
_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
"""RFC 9659: a frame of this coding needs at most 8 MiB of memory; others are refused before it is taken."""


class _Stream(Protocol):
    """One compressed stream, which raises an error of its library where it is corrupt."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most `max_length` more bytes; with no `data`, what is left of earlier data."""


class _Zlib:
    """A stream of zlib's library, which keeps what it has not read yet, as the others do."""

    def __init__(self, wbits: int) -> None:
        self._unpacking = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        return self._unpacking.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpacking.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._unpacking.decompress(self._unpacking.unconsumed_tail + data, max_length)


class _Brotli:
    """A stream of brotli, which treats bytes after its end as corrupt."""

    unused_data = b""

    def __init__(self) -> None:
        self._unpacking = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._unpacking.is_finished())

    def decompress(self, data: bytes, max_length: int) -> bytes:
        # It fills buffers of a little less than 32 KiB, 64 KiB and so on until the limit is reached.
        piece: bytes = self._unpacking.process(data, output_buffer_limit=max_length // 4)
        return piece


def _deflate(content: bytes) -> _Stream:
    """`deflate` means a zlib stream (RFC 9110), but some clients send it without header."""
    has_header = content[:1] and content[0] & 0x0F == 8 and int.from_bytes(content[:2]) % 31 == 0
    return _Zlib(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


_STREAMS: dict[str, Callable[[bytes], _Stream]] = {
    "gzip": lambda _: _Zlib(_GZIP),
    "x-gzip": lambda _: _Zlib(_GZIP),
    "deflate": _deflate,
    "zstd": lambda _: zstd.ZstdDecompressor(options=_ZSTD_OPTIONS),
    "br": lambda _: _Brotli(),
}


def read_content_encoding(header: str) -> str | None:
    """The coding of a Content-Encoding header; None without one. Raises UnsupportedEncoding."""
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _STREAMS:
        raise UnsupportedEncoding(header)
    return coding


def decompress(content: bytes, coding: str, most: int, reserve: Callable[[int], None]) -> bytes:
    """The decompressed body. `reserve` gets the total in memory before it grows, and may raise.

    Raises BodyTooLarge, or InvalidRequest for a truncated, corrupt or trailing stream.
    """
    stream = _STREAMS[coding](content)
    pieces: list[bytes] = []
    total, read, piece = 0, 0, b""
    try:
        while not stream.eof:
            part = b"" if piece else content[read : read + _PIECE]
            if not piece and not part:
                raise _invalid(coding)
            read += len(part)
            reserve(total + _PIECE)
            piece = stream.decompress(part, _PIECE)
            total += len(piece)
            if total > most:
                raise BodyTooLarge(most)
            pieces.append(piece)
    except (zlib.error, zstd.ZstdError, brotli.error):
        raise _invalid(coding) from None
    if stream.unused_data or read < len(content):
        raise _invalid(coding)
    return b"".join(pieces)


def _invalid(coding: str) -> InvalidRequest:
    window = ", whose window is at most 8 MiB" if coding == "zstd" else ""
    return InvalidRequest(f"The request body is not one whole {coding} stream{window}.")
