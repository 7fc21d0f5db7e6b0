"""Pictures that are no pictures, or more than they look: files that decoders have trouble with."""

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image, ImageDraw

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: Image.Image, format_: str = "PNG", **options: Any) -> bytes:
    output = io.BytesIO()
    image.save(output, format_, **options)
    return output.getvalue()


def square(mode: str = "RGB", size: tuple[int, int] = (64, 64)) -> Image.Image:
    """A red square in the upper left quarter, on white."""
    image = Image.new("RGB", size, WHITE)
    ImageDraw.Draw(image).rectangle((0, 0, size[0] // 2 - 1, size[1] // 2 - 1), fill=RED)
    return image.convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2, rows: bytes = b"") -> bytes:
    """A PNG by hand, whose header may say what its rows are not."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")]
    )


def _turned(orientation: int, format_: str) -> bytes:
    """The square, stored so that EXIF turns it upright."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(square().transpose(undo[orientation]), format_, exif=exif)


def _animated(format_: str) -> bytes:
    more = [Image.new("RGB", (64, 64), "blue")] * 3
    return encoded(square(), format_, save_all=True, append_images=more)


def _sixteen_bits_a_channel() -> bytes:
    rows = b"".join(
        b"\0"
        + b"".join(
            struct.pack(">HHH", *((65535, 0, 0) if x < 32 and y < 32 else (65535,) * 3)) for x in range(64)
        )
        for y in range(64)
    )
    return png(64, 64, depth=16, rows=rows)


def _transparent() -> bytes:
    image = square("RGBA")
    image.putalpha(Image.new("L", (64, 64), 0))
    image.paste(Image.new("RGBA", (32, 32), (*RED, 255)), (0, 0))
    return encoded(image)


def _with_text(text: bytes) -> bytes:
    plain = encoded(square())
    return plain[:33] + chunk(b"zTXt", b"comment\0\0" + zlib.compress(text, 9)) + plain[33:]


READABLE: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: encoded(square()),
    "PNG with a palette": lambda: encoded(square("P")),
    "JPEG": lambda: encoded(square(), "JPEG", quality=95, subsampling=0),
    "progressive JPEG": lambda: encoded(square(), "JPEG", quality=95, subsampling=0, progressive=True),
    "WebP": lambda: encoded(square(), "WEBP", lossless=True),
    "GIF": lambda: encoded(square(), "GIF"),
    "animated GIF": lambda: _animated("GIF"),
    "animated WebP": lambda: _animated("WEBP"),
    "animated PNG": lambda: _animated("PNG"),
    "CMYK": lambda: encoded(square("CMYK"), "JPEG", quality=95, subsampling=0),
    "16 bits a channel": _sixteen_bits_a_channel,
    "transparent": _transparent,
    **{
        f"{format_} turned by EXIF {number}": partial(_turned, number, format_)
        for format_ in ("JPEG", "PNG", "WEBP")
        for number in (2, 3, 4, 5, 6, 7, 8)
    },
}
"""Each is a red square in the upper left quarter, on white."""

UNREADABLE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "SVG": (lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>', "type"),
    "HTML": (lambda: b"<html><img src=x></html>", "type"),
    "TIFF": (lambda: encoded(square(), "TIFF"), "type"),
    "BMP": (lambda: encoded(square(), "BMP"), "type"),
    "ICO": (lambda: encoded(square(), "ICO"), "type"),
    "EPS, which Pillow gives to Ghostscript": (
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "type",
    ),
    "PDF": (lambda: b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n", "type"),
    "random bytes": (lambda: bytes(range(256)) * 40, "type"),
    "only a PNG's signature": (lambda: b"\x89PNG\r\n\x1a\n", "type"),
    "only a JPEG's signature": (lambda: b"\xff\xd8\xff\xe0", "type"),
    "truncated PNG": (lambda: encoded(square())[:-40], "broken"),
    "truncated JPEG": (lambda: encoded(square(size=(512, 512)), "JPEG")[:900], "broken"),
    "truncated WebP": (lambda: encoded(square(), "WEBP")[:60], "broken"),
    "PNG without rows": (lambda: png(64, 64), "broken"),
    "PNG whose rows are fewer": (lambda: png(640, 640, rows=b"\0" * 100), "broken"),
    "PNG with an unknown chunk for its rows": (lambda: encoded(square()).replace(b"IDAT", b"IDAX"), "type"),
    "no pixel": (lambda: png(0, 0), "type"),
    "PNG with 64 MB of compressed text": (lambda: _with_text(bytes(2**26)), "broken"),
    "60,000 x 1": (lambda: encoded(Image.new("1", (60_000, 1))), "narrow"),
    "1 x 60,000": (lambda: encoded(Image.new("1", (1, 60_000))), "narrow"),
    "a bomb: 20,000 x 20,000 in 50 kB": (lambda: encoded(Image.new("1", (20_000, 20_000))), "large"),
    "a bomb by its header": (lambda: png(2**31 - 1, 2**31 - 1), "large"),
    "a GIF of 65,535 x 65,535": (
        lambda: (
            b"GIF89a"
            + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0)
            + bytes(6)
            + b"\x2c"
            + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
            + b"\x02\x02\x4c\x01\x00\x3b"
        ),
        "large",
    ),
}
"""Each with the error of `image_worker`."""
