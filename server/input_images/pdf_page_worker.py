"""Worker that draws the pages of a PDF with PDFium, as PNGs.

Run by `bounded_process` as a file. The first line of the output is JSON: `{"sizes": [...]}`, the bytes of
each PNG that follows, or `{"error": ...}` with `encrypted`, `pages`, `large` or `broken`.
"""

import io
import json


def drawn(
    content: bytes, most_pages: int, most_bytes: int, most_pixels: int, most_side: int
) -> list[bytes] | str:
    """Each page as an RGB PNG within these bounds, of which `most_bytes` is for all; or an error."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        return "encrypted" if "password" in str(error).lower() else "broken"
    if len(document) > most_pages:
        return "pages"
    pages: list[bytes] = []
    total = 0
    try:
        for page in document:
            width, height = page.get_size()
            scale = min((most_pixels / (width * height)) ** 0.5, most_side / max(width, height))
            output = io.BytesIO()
            page.render(scale=scale).to_pil().convert("RGB").save(output, "PNG", compress_level=1)
            pages.append(output.getvalue())
            total += len(pages[-1])
            if total > most_bytes:
                return "large"
    except Exception:  # noqa: BLE001 - a hostile PDF raises anything; all of it means the same
        return "broken"
    return pages or "broken"


def prepare() -> None:
    import pypdfium2  # noqa: F401


def answer(content: bytes, most_pages: int, most_bytes: int, most_pixels: int, most_side: int) -> bytes:
    pages = drawn(content, most_pages, most_bytes, most_pixels, most_side)
    if isinstance(pages, str):
        return json.dumps({"error": pages}).encode() + b"\n"
    return json.dumps({"sizes": [len(page) for page in pages]}).encode() + b"\n" + b"".join(pages)
