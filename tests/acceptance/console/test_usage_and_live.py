"""Usage and live: figures of what a real server did, what runs and waits, and the end of its process."""

import csv
import io
import os
import socket
from collections.abc import Iterator

import httpx
import psycopg
import pytest
from openai import OpenAI

from tests.fix_server import PACED
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess


@pytest.fixture(scope="module")
def server(module_database: str) -> Iterator[ServerProcess]:
    """A server without keys that has answered twice, refused once, and runs a long response."""
    server = ServerProcess(module_database, settings={**PACED, "drain_seconds": 0.5})
    server.start()
    with OpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        for user in ("ana", "bo"):
            client.responses.create(model=MODEL, input="Hello", user=user, max_output_tokens=16)
        with pytest.raises(Exception, match="model"):
            client.responses.create(model="none", input="Hello")
        client.responses.create(model=MODEL, input="Hello", background=True, user="cy")
    yield server
    server.stop()


def get(server: ServerProcess, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{server.url}{path}", headers=headers, timeout=30)


def form_token(page: str) -> str:
    return page.partition('name="form_token" value="')[2].partition('"')[0]


def test_usage_has_the_sums_of_the_view(server: ServerProcess, module_database: str) -> None:
    with psycopg.connect(module_database) as connection:
        query = "select sum(input_tokens), sum(output_tokens), sum(responses) from admin.usage_daily"
        found = connection.execute(query).fetchone()
    assert found is not None
    lines = list(csv.DictReader(io.StringIO(get(server, "/console/usage.csv?period=1").text)))
    names = ("input_tokens", "output_tokens", "responses")
    sums = [sum(int(line[name]) for line in lines) for name in names]
    assert sums == [int(value) for value in found]
    assert sums[2] == 2


@pytest.mark.parametrize("by", ["tenant", "model", "key", "user"])
def test_usage_is_a_page_however_it_is_grouped(server: ServerProcess, by: str) -> None:
    page = get(server, f"/console/usage?period=1&by={by}&show=requests")
    assert page.status_code == 200
    assert f'id="by-{by}"' in page.text
    assert "ana of default" in page.text


def test_a_filter_that_is_none_is_named_on_the_page_with_the_filters(server: ServerProcess) -> None:
    page = get(server, "/console/usage?from=yesterday&tenant=acme")
    assert page.status_code == 400
    assert "from must be a day such as" in page.text
    assert 'aria-label="Filters"' in page.text
    assert get(server, "/console/usage.csv?from=yesterday").status_code == 400


def test_live_shows_what_runs_and_where(server: ServerProcess) -> None:
    page = get(server, "/console/live").text
    name = f"{socket.gethostname()}/{server.pid}"
    assert page.count(f"<td>{name}</td>") == 1
    assert f"Stop {name}" in page
    assert page.count('data-href="/console/responses/') == 1
    assert "Cancel resp_" in page


def test_live_says_when_the_first_window_of_what_waits_for_idle_capacity_ends(server: ServerProcess) -> None:
    for window in ("8h", "2h"):
        options = {"background": True, "background_options": {"completion_window": window}}
        body = {"model": MODEL, "input": "Hello", **options}
        httpx.post(f"{server.api}/responses", json=body, timeout=30).raise_for_status()
    page = get(server, "/console/live").text
    queue = page.partition("Queue <small>")[2].partition("</small>")[0]
    left = "of which 2 wait for idle capacity; the first window ends in "
    assert queue.partition(left)[2] in ("2 h 0 min", "1 h 59 min"), queue


def test_a_script_gets_the_changing_part_alone(server: ServerProcess) -> None:
    part = get(server, "/console/live", **{"hx-request": "true"}).text
    assert "<html" not in part
    assert 'data-tokens="' in part


def test_a_wrong_name_stops_nothing(server: ServerProcess) -> None:
    token = form_token(get(server, "/console/live").text)
    form = {"form_token": token, "confirm": f"elsewhere/{os.getpid()}"}
    answer = httpx.post(f"{server.url}/console/live/drain", data=form, timeout=30)
    assert answer.status_code == 400
    assert "nothing was stopped" in answer.text
    assert get(server, "/health/ready").status_code == 200


def test_the_typed_name_stops_the_process_as_a_signal_does(
    server: ServerProcess, module_database: str
) -> None:
    token = form_token(get(server, "/console/live").text)
    form = {"form_token": token, "confirm": f"{socket.gethostname()}/{server.pid}"}
    assert httpx.post(f"{server.url}/console/live/drain", data=form, timeout=30).status_code == 303
    assert server.wait() == 0
    with psycopg.connect(module_database) as connection:
        query = "select count(*) from audit_trail where action = 'process.drain'"
        assert connection.execute(query).fetchone() == (1,)
        left = "select replica_id from responses where end_user = 'cy'"
        eventually(lambda: connection.execute(left).fetchone() == (None,))
