"""PDFs become text in a process of their own, whatever is in them."""

import base64
import io
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from threading import Event
from urllib.parse import unquote_to_bytes

import pypdf
import pytest

from server.errors import Overloaded, TooManyRequests
from server.protocol import bounded_process
from server.protocol import input_files as pdf
from server.protocol.input_files import (
    MAX_FILE_TEXT,
    MAX_PAGES,
    MAX_PDF,
    FileError,
    file_content,
    file_text,
    pdf_text,
    storable_file_data,
)
from tests.support import pdfs
from tests.support.eventually import eventually
from tests.support.server_process import PATIENCE_S


class Workers:
    """In place of the processes that read: each reads when it may `go_on`."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.go_on = Event()
        self.go_on.set()

    def run(self, _worker: object, content: bytes, *_bounds: int) -> bytes:
        self.begun.append(content)
        assert self.go_on.wait(PATIENCE_S)
        return b'{"text": "read"}'


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(bounded_process, "run", workers.run)
    return workers


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for another one's PDF."""
    monkeypatch.setattr(pdf, "WAIT_SECONDS", 0.0)


def read_for(tenant: str | None, text: str) -> str:
    """Reads a PDF as a tenant's request does."""

    def read() -> str:
        pdf.TENANT.set(tenant)
        return pdf_text(pdfs.saying(text), MAX_FILE_TEXT)

    return Context().run(read)


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


def test_pdf_is_parsed_once_for_a_request_that_is_read_again_and_again_for_another_tenant(
    workers: Workers,
) -> None:
    for tenant in ("first", "second", "first", "second"):
        assert read_for(tenant, "Sent by two tenants") == "read"
    assert len(workers.begun) == 2


@pytest.mark.usefixtures("impatient")
def test_no_more_pdfs_are_read_at_once_than_there_is_memory_for(workers: Workers) -> None:
    workers.go_on.clear()
    with ThreadPoolExecutor(pdf.MAX_CONCURRENT) as threads:
        reading = [
            threads.submit(read_for, f"tenant {number}", "Now") for number in range(pdf.MAX_CONCURRENT)
        ]
        eventually(lambda: len(workers.begun) == pdf.MAX_CONCURRENT)
        with pytest.raises(Overloaded, match="Too many"):
            read_for("another", "Later")
        workers.go_on.set()
        assert [each.result(PATIENCE_S) for each in reading] == ["read"] * pdf.MAX_CONCURRENT
    assert read_for("another", "Later") == "read"


@pytest.mark.usefixtures("impatient")
def test_tenant_whose_pdf_is_read_waits_and_another_does_not(workers: Workers) -> None:
    workers.go_on.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read_for, "busy", "Being read")
        eventually(lambda: workers.begun)
        with pytest.raises(TooManyRequests, match="Your other PDFs") as refused:
            read_for("busy", "Mine")
        assert refused.value.limit == "files being read"
        other = threads.submit(read_for, "other", "Theirs")
        eventually(lambda: len(workers.begun) == 2)
        workers.go_on.set()
        assert [first.result(PATIENCE_S), other.result(PATIENCE_S)] == ["read"] * 2
    assert read_for("busy", "Mine") == "read"


@pytest.mark.usefixtures("impatient")
def test_where_tenants_are_not_told_apart_all_may_be_read_for_one(workers: Workers) -> None:
    workers.go_on.clear()
    with ThreadPoolExecutor(2) as threads:
        read = threads.map(read_for, [None, None], ["One", "Other"])
        eventually(lambda: len(workers.begun) == 2)
        workers.go_on.set()
        assert list(read) == ["read", "read"]


def test_pdfs_that_are_sent_together_are_all_read() -> None:
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda text: pdf_text(pdfs.saying(text), 100), ["a", "b"])) == ["a", "b"]


def test_what_a_busy_machine_had_no_time_for_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as busy:
        busy.setattr(bounded_process, "WALL_SECONDS", 0.0)
        with pytest.raises(Overloaded, match="too busy"):
            pdf_text(pdfs.saying("Again"), MAX_FILE_TEXT)
    assert pdf_text(pdfs.saying("Again"), MAX_FILE_TEXT) == "Again"


@pytest.mark.parametrize("text", ["%41%", "%zz", "ä%e2%82%ac", "a%4", ""])
def test_escapes_of_a_data_url_are_read_wherever_its_pieces_end(text: str) -> None:
    for before in range(pdf.PIECE - 8, pdf.PIECE + 2):
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
