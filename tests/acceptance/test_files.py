"""PDFs within requests are read as their text, on every API that takes files."""

import base64
from collections.abc import Iterator

import pytest

from tests.support import pdfs
from tests.support.contract import Api
from tests.support.server_process import MODEL, ServerProcess

DATA = "data:application/pdf;base64," + base64.b64encode(pdfs.saying("The code is 4711.")).decode()
PART = {"type": "input_file", "filename": "plan.pdf", "file_data": DATA}


@pytest.fixture
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def test_model_reads_the_text_of_a_pdf(api: Api) -> None:
    prompt = api.prompt(input=[{"role": "user", "content": [PART]}])
    assert "[File plan.pdf]\nThe code is 4711.\n[End of file]" in prompt
    assert "%PDF" not in prompt


def test_conversation_goes_on_from_the_text_of_a_pdf(api: Api) -> None:
    first = api.create(input=[{"role": "user", "content": [PART]}])
    assert "The code is 4711." in api.prompt(previous_response_id=first["id"])
    (item,) = api.send("GET", f"responses/{first['id']}/input_items").json()["data"]
    (part,) = item["content"]
    assert base64.b64decode(part["file_data"].partition(",")[2]) == b"The code is 4711."


def test_chat_reads_the_text_of_a_pdf(api: Api) -> None:
    part = {"type": "file", "file": {"filename": "plan.pdf", "file_data": DATA}}
    messages = [{"role": "user", "content": [part]}]
    plain = [{"role": "user", "content": "[File plan.pdf]\nThe code is 4711.\n[End of file]\n"}]
    sent = [
        api.send("POST", "chat/completions", {"model": MODEL, "messages": given})
        for given in (messages, plain)
    ]
    pdf, text = (answer.json()["usage"]["prompt_tokens"] for answer in sent)
    assert pdf == text
