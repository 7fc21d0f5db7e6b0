"""The text of PDFs, read by pypdf in a process with hard bounds, as it works on what others have written."""

import hashlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakValueDictionary

from server.protocol.errors import ReaderBusy

MAX_PDF = 8 * 1024 * 1024
"""Bytes of one PDF."""
MAX_PAGES = 500
CPU_SECONDS = 10
MEMORY = 512 * 1024 * 1024
"""Bytes of address space of the process that reads a PDF."""
AT_ONCE = 2
"""PDFs that are read at the same time, one of them a tenant's."""
_WALL_SECONDS = 30.0
"""For a machine that is busy; the processor's time is what bounds the work."""
_WAIT_SECONDS = 30.0
_WORKER = Path(__file__).with_name("pdf_worker.py")
_REMEMBERED = 8
_MISTAKES = {
    "encrypted": "The PDF is encrypted: send it without a password.",
    "pages": f"The PDF has more than {MAX_PAGES} pages.",
    "empty": "The PDF has no text in it, as of scanned pages: send their text.",
    "broken": "The file is not a PDF that can be read.",
}
_HEAVY = "The PDF takes too much time or memory to be read: send its text."


class PdfError(ValueError):
    """The PDF cannot be read; the sentence is for the caller."""


TENANT: ContextVar[str | None] = ContextVar("tenant", default=None)
"""Who has this thread read PDFs; None where tenants are not told apart, and no share is kept for others."""
_turns = threading.BoundedSemaphore(AT_ONCE)
_tenant_turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
"""Whoever holds one is the only one of its tenant that reads, or waits for, a PDF."""
_tenant_turns_lock = threading.Lock()
_known: OrderedDict[bytes, dict[str, str]] = OrderedDict()
"""What was read of the last PDFs: a request that waits for something is read again when that is there."""
_known_lock = threading.Lock()


def is_pdf(content: bytes) -> bool:
    """Whether it begins as PDFs do, perhaps after some bytes that readers pass over."""
    return content[:1024].lstrip().startswith(b"%PDF-")


def pdf_text(content: bytes, most_bytes: int) -> str:
    """The text of all pages, at most so many bytes in UTF-8. For threads that may wait.

    Raises PdfError, or ReaderBusy while too many others are read.
    """
    if len(content) > MAX_PDF:
        raise PdfError(f"The PDF is larger than {MAX_PDF} bytes.")
    digest = hashlib.sha256(content).digest()
    with _known_lock:
        answer = _known.get(digest)
    if answer is None:
        answer = _read(content, most_bytes)
        with _known_lock:
            _known[digest] = answer
            while len(_known) > _REMEMBERED:
                _known.popitem(last=False)
    if "text" in answer:
        return answer["text"]
    if answer["error"] == "long":
        raise PdfError(f"The text of the PDF is larger than {most_bytes} bytes.")
    raise PdfError(_MISTAKES.get(answer["error"], _HEAVY))


def _turns_of(tenant: str | None) -> threading.Lock:
    if tenant is None:
        return threading.Lock()
    with _tenant_turns_lock:
        return _tenant_turns.setdefault(tenant, threading.Lock())


@contextmanager
def _turn() -> Iterator[None]:
    """A turn to read, of the tenant and of all. Raises ReaderBusy if there is none in time."""
    own = _turns_of(TENANT.get())
    if not own.acquire(timeout=_WAIT_SECONDS):
        raise ReaderBusy("Your other PDFs are still being read; try again later.", own=True)
    try:
        if not _turns.acquire(timeout=_WAIT_SECONDS):
            raise ReaderBusy("Too many PDFs are being read; try again later.")
        try:
            yield
        finally:
            _turns.release()
    finally:
        own.release()


def _read(content: bytes, most_bytes: int) -> dict[str, str]:
    """What the worker says of it. Raises ReaderBusy if this machine has no time for it now."""
    limits = map(str, (CPU_SECONDS, MEMORY, MAX_PAGES, most_bytes))
    try:
        with _turn():
            ran = subprocess.run(
                [sys.executable, "-I", str(_WORKER), *limits],
                input=content,
                capture_output=True,
                env={},
                timeout=_WALL_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise ReaderBusy("The server is too busy to read the PDF; try again later.") from None
    if ran.returncode != 0:
        return {"error": "heavy"}
    answer: dict[str, str] = json.loads(ran.stdout)
    return answer
