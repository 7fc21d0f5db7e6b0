"""The text of `input_file` parts, as data URLs or base64: text files, and PDFs, which a subprocess reads."""

import base64
import binascii
import hashlib
import json
import threading
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import unquote_to_bytes

from engine.bounded_cache import BoundedCache
from engine.fair_limit import FairLimit, NoSlot
from server.errors import Overloaded, TooManyRequests
from server.protocol import bounded_process

MAX_FILE_TEXT = 1_048_576
"""Maximum bytes of one file's text, all of which goes into the prompt."""

_PDF_TYPE = "data:application/pdf"

MAX_PDF = 8 * 1024 * 1024
MAX_PAGES = 500
MEMORY = 512 * 1024 * 1024
"""RLIMIT_AS of the subprocess, in bytes."""
MAX_CONCURRENT = 2
"""PDFs extracted at the same time, at most one per tenant."""
WAIT_SECONDS = 30.0
_WORKER = Path(__file__).with_name("pdf_worker.py")
PIECE = 65_536
"""Bytes that are percent-decoded at a time."""
_CACHE_SIZE = 8
_ERROR_MESSAGES = {
    "encrypted": "The PDF is encrypted: send it without a password.",
    "pages": f"The PDF has more than {MAX_PAGES} pages.",
    "empty": "The PDF has no text in it, as of scanned pages: send their text, or to a model that reads "
    "pictures the file's `detail`.",
    "broken": "The file is not a PDF that can be read.",
}
_LIMIT_MESSAGE = "The PDF takes too much time or memory to be read: send its text."


class FileError(ValueError):
    """The file cannot be read; the message is sent to the client."""


_BUSY = "files being read"
"""The limit that is reached, for the log."""
TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)
"""The tenant of this thread's request; None disables the limit per tenant."""
_limit = FairLimit(MAX_CONCURRENT)
_cache = BoundedCache[tuple[str | None, bytes, int], dict[str, str]](_CACHE_SIZE)
"""Results of the last PDFs, as deferred requests are decoded again; by tenant, so that time tells nothing."""


def storable_file_data(data: str, *, needs_text: bool = True) -> str:
    """`file_data` as stored: of a PDF its text, if it `needs_text`. Raises FileError or ApiError."""
    content = file_content(data)
    if is_pdf(content):
        text = pdf_text(content, MAX_FILE_TEXT, needs_text=needs_text)
        return "data:text/plain;base64," + base64.b64encode(text.encode()).decode()
    if data.startswith(_PDF_TYPE):
        raise FileError(_ERROR_MESSAGES["broken"])
    file_text(data)
    return data


def file_text(data: str) -> str:
    """The text in `file_data`. Raises FileError unless it is UTF-8."""
    content = file_content(data)
    if len(content) > MAX_FILE_TEXT:
        raise FileError(f"The file is larger than {MAX_FILE_TEXT} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError("The file is not text in UTF-8; this server reads text files and PDFs.") from error
    if "\0" in text:
        raise FileError("The file is not text; this server reads text files and PDFs.")
    return text


def file_content(data: str) -> bytes:
    """The bytes of `file_data`, a data URL or base64. Raises FileError."""
    if not data.startswith("data:"):
        return _from_base64(data)
    head, comma, body = data.partition(",")
    if not comma:
        raise FileError("The data URL has no content.")
    return _from_base64(body) if head.endswith(";base64") else _from_percent(body.encode())


def _from_percent(text: bytes) -> bytes:
    """The percent-decoded text, a piece at a time: `unquote_to_bytes` takes 160 bytes for each `%`."""
    decoded: list[bytes] = []
    start = 0
    while start < len(text):
        end = start + PIECE
        escape = text.find(b"%", end - 2, end)  # one that does not end in this piece
        end = end if escape < 0 else escape
        decoded.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(decoded)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FileError("file_data is not a data URL and not valid base64.") from error


def is_pdf(content: bytes) -> bool:
    """Whether the content begins with the PDF header, after white space."""
    return content[:1024].lstrip().startswith(b"%PDF-")


def pdf_text(content: bytes, most_bytes: int, *, needs_text: bool = True) -> str:
    """The text of all pages in at most `most_bytes`. Blocks. Raises FileError, or ApiError while busy."""
    if len(content) > MAX_PDF:
        raise FileError(f"The PDF is larger than {MAX_PDF} bytes.")
    key = (TENANT.get(), hashlib.sha256(content).digest(), most_bytes)
    answer = _cache.get(key)
    if answer is None:
        answer = _run_worker(content, most_bytes)
        if answer.get("error") != "heavy":  # which may be for a reason that passes
            _cache.put(key, answer)
    if "text" in answer:
        return answer["text"]
    if answer["error"] == "empty" and not needs_text:
        return ""
    if answer["error"] == "long":
        raise FileError(f"The text of the PDF is larger than {most_bytes} bytes.")
    raise FileError(_ERROR_MESSAGES.get(answer["error"], _LIMIT_MESSAGE))


def _run_worker(content: bytes, most_bytes: int) -> dict[str, str]:
    """The worker's result, `text` or `error`. Raises TooManyRequests or Overloaded."""
    tenant = TENANT.get() or f"thread {threading.get_ident()}"
    try:
        with _limit.hold(tenant, WAIT_SECONDS):
            output = bounded_process.run(_WORKER, content, MEMORY, MAX_PAGES, most_bytes)
    except NoSlot:
        if _limit.used_by(tenant):
            why = "Your other PDFs are still being read; try again later."
            raise TooManyRequests(why, limit=_BUSY) from None
        raise Overloaded("Too many PDFs are being read; try again later.", limit=_BUSY) from None
    except TimeoutError:
        raise Overloaded("The server is too busy to read the PDF; try again later.", limit=_BUSY) from None
    except bounded_process.Exhausted:
        return {"error": "heavy"}
    answer: dict[str, str] = json.loads(output)
    return answer
