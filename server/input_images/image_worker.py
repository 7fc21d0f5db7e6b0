"""Worker that reads a picture with Pillow and writes it as a PNG.

Run by `bounded_process` as a file. A picture that cannot be read is told as JSON: `{"error": ...}` with
`type`, `broken`, `large`, `narrow` or `empty`.
"""

import io
import json
import warnings
from typing import Any

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_RATIO = 100
"""Ratio of the longer side to the shorter one. Image processors refuse or distort longer pictures."""


def normalised(content: bytes, most_read: int, most_pixels: int, most_side: int) -> bytes | str:
    """The picture as an RGB PNG: first frame, turned as EXIF says, on white, scaled to `most_pixels` and
    sides of `most_side`; or an error, as of more than `most_read` pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # checked below, with our own error
    if not content:
        return "empty"
    try:
        image: Any = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        return "type"
    except Exception:  # noqa: BLE001 - a hostile file raises anything; all of it means the same
        return "broken"
    width, height = image.size
    if width * height > most_read:
        return "large"
    if max(width, height) > MAX_RATIO * min(width, height):
        return "narrow"
    try:
        scale = min(1.0, (most_pixels / (width * height)) ** 0.5, most_side / max(width, height))
        size = max(1, int(width * scale)), max(1, int(height * scale))
        image.draft("RGB", size)  # JPEG decodes at a half, a quarter or an eighth of its size
        image = _on_white(ImageOps.exif_transpose(image))
        if scale < 1:
            turned = (width < height) != (image.width < image.height)
            image = image.resize(size[::-1] if turned else size, Image.Resampling.LANCZOS)
        output = io.BytesIO()
        image.save(output, "PNG", compress_level=1)
    except Exception:  # noqa: BLE001 - as above
        return "broken"
    return output.getvalue()


def _on_white(image: Any) -> Any:
    """The picture as RGB: 16 bits a channel scaled to 8, transparent parts on white."""
    from PIL import Image

    if image.mode.startswith("I"):
        return image.convert("I").point([value >> 8 for value in range(65536)], "L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")


def prepare() -> None:
    from PIL import Image  # noqa: F401

    warnings.simplefilter("ignore")


def answer(content: bytes, most_read: int, most_pixels: int, most_side: int) -> bytes:
    result = normalised(content, most_read, most_pixels, most_side)
    return json.dumps({"error": result}).encode() if isinstance(result, str) else result
