"""PDFs that were made to keep a reader busy, or to fill its memory: refused, and nothing else suffers."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from server.protocol.input_files import MAX_FILE_TEXT, MEMORY
from tests.acceptance.error_object import check_error
from tests.support import pdfs
from tests.support.rounds import faults_only
from tests.support.server_process import MODEL, REPOSITORY, ServerProcess

HOSTILE: dict[str, Callable[[], bytes]] = {
    "unpacks to a gigabyte": lambda: pdfs.unpacking_to(2**30),
    "unpacks twice": lambda: pdfs.unpacking_twice_to(2**30),
    "pages in circles": pdfs.turning_in_circles,
    "nested": lambda: pdfs.nested(100_000),
    "refers to itself": pdfs.referring_to_itself,
    "draws itself": pdfs.calling_itself,
    "many operators": lambda: pdfs.busy(7),
}

LONG = {"unpacks to a gigabyte", "unpacks twice", "many operators"}
"""Which are read until their seconds are over; the server is sent one of them below."""

READ = """
import json, resource, sys
from server.protocol import bounded_process, input_files as pdf

bounded_process.CPU_SECONDS, bounded_process.WALL_SECONDS = 3, 120.0
try:
    text = pdf.pdf_text(sys.stdin.buffer.read(), int(sys.argv[1]))
except pdf.FileError:
    text = ""
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([len(text), spent.ru_utime + spent.ru_stime, spent.ru_maxrss * 1024]))
"""
"""Reads a PDF in a process of its own: a child's memory counts from before it became another program, when it
was as large as its parent."""


@pytest.mark.parametrize("name", [*sorted(HOSTILE.keys() - LONG), *faults_only(*sorted(LONG))])
def test_hostile_pdf_costs_what_one_may_cost(name: str) -> None:
    command = [sys.executable, "-c", READ, str(MAX_FILE_TEXT)]
    ran = subprocess.run(command, input=HOSTILE[name](), cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    length, seconds, memory = json.loads(ran.stdout)
    assert length <= MAX_FILE_TEXT
    assert 0 < seconds < 5
    assert memory <= MEMORY


@pytest.mark.parametrize("name", ["nested", *faults_only("unpacks twice")])
def test_server_answers_a_hostile_pdf_and_everybody_else(scripted_server: ServerProcess, name: str) -> None:
    data = "data:application/pdf;base64," + base64.b64encode(HOSTILE[name]()).decode()
    part = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    body = {"model": MODEL, "input": [{"role": "user", "content": [part]}]}
    answer = httpx.post(f"{scripted_server.api}/responses", json=body, timeout=120)
    error = check_error(answer, 400, "invalid_request_error")
    assert error["param"] == "input[0].content[0].file_data"
    assert httpx.get(f"{scripted_server.url}/health").status_code == 200
