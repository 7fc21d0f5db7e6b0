"""PDFs that were made to keep a reader busy, or to fill its memory: refused, and nothing else suffers."""

import base64
import resource
from collections.abc import Callable

import httpx
import pytest

from server.wire import pdf
from server.wire.files import MAX_FILE_TEXT
from server.wire.pdf import PdfError, pdf_text
from tests.acceptance.error_object import check_error
from tests.support import pdfs
from tests.support.server_process import MODEL, ServerProcess

HOSTILE: dict[str, Callable[[], bytes]] = {
    "unpacks to a gigabyte": lambda: pdfs.unpacking_to(2**30),
    "unpacks twice": lambda: pdfs.unpacking_twice_to(2**30),
    "pages in circles": pdfs.turning_in_circles,
    "nested": lambda: pdfs.nested(100_000),
    "refers to itself": pdfs.referring_to_itself,
    "draws itself": pdfs.calling_itself,
    "many operators": lambda: pdfs.busy(7),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pdf_costs_what_one_may_cost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "CPU_SECONDS", 3)
    monkeypatch.setattr(pdf, "_WALL_SECONDS", 120.0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        text = pdf_text(HOSTILE[name](), MAX_FILE_TEXT)
    except PdfError:
        text = ""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(text) <= MAX_FILE_TEXT
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert after.ru_maxrss * 1024 <= max(before.ru_maxrss * 1024, pdf.MEMORY)


def test_server_answers_a_hostile_pdf_and_everybody_else(scripted_server: ServerProcess) -> None:
    data = "data:application/pdf;base64," + base64.b64encode(pdfs.unpacking_twice_to(2**30)).decode()
    part = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    body = {"model": MODEL, "input": [{"role": "user", "content": [part]}]}
    answer = httpx.post(f"{scripted_server.api}/responses", json=body, timeout=120)
    error = check_error(answer, 400, "invalid_request_error")
    assert error["param"] == "input[0].content[0].file_data"
    assert httpx.get(f"{scripted_server.url}/health").status_code == 200
