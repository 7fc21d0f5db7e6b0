"""Subprocess that draws the pages of a PDF from standard input with PDFium, as PNGs on standard output.

Run as a file by `image_reader`; sets its own resource limits before it reads the PDF. The first line of the
output is JSON: `{"sizes": [...]}`, the bytes of each PNG that follows, or `{"error": ...}` with `encrypted`,
`pages`, `large` or `broken`.
"""

import io
import json
import resource
import sys


def drawn(
    content: bytes, most_pages: int, most_bytes: int, most_pixels: int, most_side: int
) -> list[bytes] | str:
    """Each page as an RGB PNG of about `most_pixels`, with sides of `most_side` at most; or an error.

    `most_bytes` is for all PNGs together.
    """
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


def main() -> None:
    seconds, memory, *bounds = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = drawn(sys.stdin.buffer.read(), *bounds)
    if isinstance(answer, str):
        sys.stdout.buffer.write(json.dumps({"error": answer}).encode() + b"\n")
        return
    sys.stdout.buffer.write(json.dumps({"sizes": [len(page) for page in answer]}).encode() + b"\n")
    sys.stdout.buffer.write(b"".join(answer))


if __name__ == "__main__":
    main()
