"""Worker that answers with a PDF's text, or an error, as JSON. Run by `bounded_process` as a file."""

import io
import json
import logging


def read(content: bytes, most_pages: int, most_bytes: int) -> dict[str, str]:
    """The text of all pages, separated by blank lines, or an error."""
    import pypdf

    try:
        reader = pypdf.PdfReader(io.BytesIO(content), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            return {"error": "encrypted"}
        if len(reader.pages) > most_pages:
            return {"error": "pages"}
        texts: list[str] = []
        size = 0
        for page in reader.pages:
            text = page.extract_text().encode("utf-8", "replace").decode().replace("\0", "").strip()
            size += len(text.encode()) + 2
            if size > most_bytes:
                return {"error": "long"}
            if text:
                texts.append(text)
    except Exception:  # noqa: BLE001 - a hostile PDF raises anything; all of it means the same
        return {"error": "broken"}
    return {"text": "\n\n".join(texts)} if texts else {"error": "empty"}


def prepare() -> None:
    import pypdf  # noqa: F401

    logging.disable()


def answer(content: bytes, most_pages: int, most_bytes: int) -> bytes:
    return json.dumps(read(content, most_pages, most_bytes)).encode()
