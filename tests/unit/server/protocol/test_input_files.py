"""PDFs become text in a process of their own, whatever is in them."""

import base64
import io
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import Context, copy_context
from threading import Barrier
from urllib.parse import unquote_to_bytes

import pypdf
import pytest

from server.http.json_responses import to_api_error
from server.protocol import bounded_process
from server.protocol import input_files as pdf
from server.protocol.input_files import (
    MAX_FILE_TEXT,
    MAX_PAGES,
    MAX_PDF,
    ExtractionBusy,
    FileError,
    file_content,
    file_text,
    pdf_text,
    storable_file_data,
)
from tests.support import pdfs
from tests.support.server_process import PATIENCE_S


@pytest.fixture(autouse=True)
def _nothing_is_known() -> None:
    pdf._cache.clear()


def url(content: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64," + base64.b64encode(content).decode()


def encrypted(password: str) -> bytes:
    writer = pypdf.PdfWriter(pypdf.PdfReader(io.BytesIO(pdfs.saying("Secret plans"))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["application/pdf", "application/octet-stream", "text/plain"])
def test_pdf_is_read_as_the_text_of_its_pages(kind: str) -> None:
    content = pdfs.saying("First page", "Second page")
    assert content.isascii()
    stored = storable_file_data(url(content, kind))
    assert file_text(stored) == "First page\n\nSecond page"
    assert storable_file_data(base64.b64encode(content).decode()) == stored


def test_text_that_stands_for_a_pdf_is_read_as_it_is() -> None:
    stored = storable_file_data(url(pdfs.saying("Hello")))
    assert storable_file_data(stored) == stored


def test_pdf_that_anybody_may_open_is_read_though_it_is_encrypted() -> None:
    assert pdf_text(encrypted(""), MAX_FILE_TEXT) == "Secret plans"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (encrypted("hush"), "encrypted"),
        (pdfs.without_text(), "no text"),
        (pdfs.saying(*["x"] * (MAX_PAGES + 1)), f"more than {MAX_PAGES} pages"),
        (b"%PDF-1.7\n" + bytes(100), "not a PDF"),
        (b"%PDF-1.7", "not a PDF"),
        (pdfs.saying("Hello")[:200], "PDF"),
        (b"%PDF-1.4\n" + bytes(MAX_PDF), "larger"),
        (b"no PDF at all", "not a PDF"),
    ],
    ids=["encrypted", "no text", "pages", "zeros", "nothing", "cut", "large", "no PDF"],
)
def test_pdf_that_cannot_be_read_is_refused_with_the_reason(content: bytes, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        storable_file_data(url(content))


def test_text_of_a_pdf_is_bounded() -> None:
    with pytest.raises(FileError, match="larger than 100 bytes"):
        pdf_text(pdfs.saying("x" * 60, "y" * 60), 100)


def test_pdf_is_parsed_once_for_a_request_that_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pdfs.saying("Once")
    assert pdf_text(content, MAX_FILE_TEXT) == "Once"
    monkeypatch.setattr(pdf, "_run_worker", None)
    assert pdf_text(content, MAX_FILE_TEXT) == "Once"


def test_pdf_of_another_tenant_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(content: bytes, _most_bytes: int) -> dict[str, str]:
        parsed.append(content)
        return {"text": "of both"}

    monkeypatch.setattr(pdf, "_run_worker", parse)
    content = pdfs.saying("Sent by two tenants")
    for tenant in ("first", "second", "first"):
        context = copy_context()
        context.run(pdf.TENANT.set, tenant)
        assert context.run(pdf_text, content, MAX_FILE_TEXT) == "of both"
    assert len(parsed) == 2


def test_no_more_pdfs_are_read_at_once_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_WAIT_SECONDS", 0.0)
    with ExitStack() as readers:
        for number in range(pdf.MAX_CONCURRENT):
            readers.enter_context(pdf._limit.hold(f"tenant {number}", 0.0))
        with pytest.raises(ExtractionBusy, match="Too many"):
            pdf_text(pdfs.saying("Later"), MAX_FILE_TEXT)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda text: pdf_text(pdfs.saying(text), 100), ["a", "b"])) == ["a", "b"]


def read_for(tenant: str | None, text: str) -> str:
    pdf.TENANT.set(tenant)
    return pdf_text(pdfs.saying(text), MAX_FILE_TEXT)


def test_tenant_whose_pdf_is_read_waits_and_another_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_WAIT_SECONDS", 0.0)
    with pdf._limit.hold("busy", 0.0):
        with pytest.raises(ExtractionBusy, match="Your other PDFs") as refused:
            Context().run(read_for, "busy", "Mine")
        assert to_api_error(refused.value).status == 429
        assert Context().run(read_for, "other", "Theirs") == "Theirs"
    assert Context().run(read_for, "busy", "Mine") == "Mine"


def test_where_tenants_are_not_told_apart_all_may_be_read_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_WAIT_SECONDS", 0.0)
    together = Barrier(2)

    def run(*_arguments: object) -> bytes:
        together.wait(PATIENCE_S)
        return b'{"text": "read"}'

    monkeypatch.setattr(bounded_process, "run", run)
    with ThreadPoolExecutor(2) as threads:
        read = threads.map(lambda text: pdf_text(pdfs.saying(text), MAX_FILE_TEXT), ["a", "b"])
        assert list(read) == ["read", "read"]


def test_what_a_busy_machine_had_no_time_for_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as busy:
        busy.setattr(bounded_process, "WALL_SECONDS", 0.0)
        with pytest.raises(ExtractionBusy, match="too busy"):
            pdf_text(pdfs.saying("Again"), MAX_FILE_TEXT)
    assert pdf_text(pdfs.saying("Again"), MAX_FILE_TEXT) == "Again"


@pytest.mark.parametrize("text", ["%41%", "%zz", "ä%e2%82%ac", "a%4", ""])
def test_escapes_of_a_data_url_are_read_wherever_its_pieces_end(text: str) -> None:
    for before in range(pdf._PIECE - 8, pdf._PIECE + 2):
        body = "a" * before + text
        assert file_content(f"data:,{body}") == unquote_to_bytes(body)


def test_escapes_of_a_data_url_take_little_memory() -> None:
    url = "data:text/plain," + "%" * 1_000_000
    tracemalloc.start()
    try:
        assert len(file_content(url)) == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
