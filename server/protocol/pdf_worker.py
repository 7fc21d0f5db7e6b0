"""Subprocess that extracts the text of one PDF from standard input; writes JSON to standard output.

Run as a file by `input_files`; sets its own resource limits before it reads the PDF. The result is
`text` or `error`: `encrypted`, `pages`, `long`, `empty` or `broken`.
"""

import io
import json
import logging
import resource
import sys


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


def main() -> None:
    seconds, memory, most_pages, most_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()
    answer = read(sys.stdin.buffer.read(), most_pages, most_bytes)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
