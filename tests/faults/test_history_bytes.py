"""How much stored content one request makes the server read: sizes are known before contents are read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

MEBIBYTE = 1024 * 1024


def picture(size: int) -> dict[str, Any]:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * size}
    return {"role": "user", "content": [{"type": "input_text", "text": "Look:"}, image]}


def words(size: int) -> dict[str, Any]:
    return {"role": "user", "content": "word " * (size // 5)}


def conversation(server: ServerProcess) -> str:
    made: str = httpx.post(f"{server.api}/conversations", json={}).json()["id"]
    return made


def add(server: ServerProcess, to: str, item: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.api}/conversations/{to}/items", json={"items": [item]}, timeout=60)


def ask(server: ServerProcess, **more: Any) -> httpx.Response:
    return httpx.post(
        f"{server.api}/responses",
        json={"model": MODEL, "input": "Go on.", "max_output_tokens": 1, **more},
        timeout=120,
    )


def memory(server: ServerProcess, what: str) -> int:
    """Bytes, of a line of the process' status."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024


def peak_memory(server: ServerProcess) -> int:
    return memory(server, "VmHWM")


@pytest.mark.faults
def test_pictures_of_a_conversation_are_kept_whole_and_cost_requests_nothing(
    start_server: StartServer,
) -> None:
    server = start_server()
    there = conversation(server)
    for _ in range(8):
        assert add(server, there, picture(9 * MEBIBYTE)).status_code == 200
    before = peak_memory(server)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(server, conversation=there), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 400}
    assert 200 in {answer.status_code for answer in answers}
    assert peak_memory(server) - before < 64 * MEBIBYTE, "the pictures were read"
    items = httpx.get(f"{server.api}/conversations/{there}/items?limit=1&order=asc", timeout=60).json()
    assert len(items["data"][0]["content"][1]["image_url"]) > 9 * MEBIBYTE


def test_refused_requests_of_a_long_conversation_leave_no_memory_behind(start_server: StartServer) -> None:
    """Of each history some copies are in memory, and none when its request has been refused."""
    server = start_server()
    there = conversation(server)
    for _ in range(8):
        assert add(server, there, words(MEBIBYTE)).status_code == 200
    before = peak_memory(server)
    url = f"{server.api}/responses/input_tokens"

    def count(_: int) -> httpx.Response:
        return httpx.post(url, json={"model": MODEL, "conversation": there, "input": "x"}, timeout=120)

    with ThreadPoolExecutor(16) as pool:
        refused = list(pool.map(count, range(32)))
        refused += pool.map(lambda _: ask(server, conversation=there), range(16))
    assert {answer.status_code for answer in refused} <= {400, 429}
    assert "context_length_exceeded" in {answer.json()["error"]["code"] for answer in refused}
    assert peak_memory(server) - before < 200 * MEBIBYTE
    eventually(lambda: memory(server, "VmRSS") - before < 48 * MEBIBYTE, within=10)


def test_a_page_of_items_has_no_more_bytes_than_it_may_and_the_next_page_goes_on(
    start_server: StartServer,
) -> None:
    server = start_server()
    there = conversation(server)
    for _ in range(5):
        assert add(server, there, picture(5 * MEBIBYTE)).status_code == 200
    listed: list[str] = []
    url, more = f"{server.api}/conversations/{there}/items?limit=100&order=asc", True
    pages = 0
    while more:
        after = f"&after={listed[-1]}" if listed else ""
        page = httpx.get(url + after, timeout=60)
        assert len(page.content) < 14 * MEBIBYTE
        body = page.json()
        listed += [item["id"] for item in body["data"]]
        more, pages = body["has_more"], pages + 1
    assert (len(listed), len(set(listed)), pages) == (5, 5, 3)


def test_a_conversation_has_a_bound_of_what_models_read(start_server: StartServer) -> None:
    server = start_server()
    there = conversation(server)
    assert add(server, there, words(9 * MEBIBYTE)).status_code == 200
    refused = check_error(add(server, there, words(9 * MEBIBYTE)), 400, "invalid_request_error")
    assert refused["code"] == "context_length_exceeded"
    assert add(server, there, words(100)).status_code == 200


def test_items_that_a_request_refers_to_count_as_what_it_reads(start_server: StartServer) -> None:
    server = start_server()
    there = conversation(server)
    added = add(server, there, words(6 * MEBIBYTE)).json()["data"][0]["id"]
    many = [{"type": "item_reference", "id": added}] * 200
    refused = check_error(ask(server, input=many), 400, "invalid_request_error")
    assert refused["code"] == "context_length_exceeded"
    assert peak_memory(server) < 400 * MEBIBYTE
    again = httpx.post(f"{server.api}/conversations", json={"items": many}, timeout=60)
    check_error(again, 400, "invalid_request_error")


def test_a_chain_of_responses_has_the_same_bound(start_server: StartServer, database_url: str) -> None:
    server = start_server()
    first = ask(server).json()["id"]
    assert ask(server, previous_response_id=first).status_code == 200
    with psycopg.connect(database_url) as connection:
        connection.execute("update items set size = 17000000 where side = 0")
    refused = check_error(ask(server, previous_response_id=first), 400, "invalid_request_error")
    assert refused["code"] == "context_length_exceeded"


def test_a_page_of_responses_has_no_more_bytes_than_it_may(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    made = [ask(server).json()["id"] for _ in range(5)]
    with psycopg.connect(database_url) as connection:
        connection.execute("update items set size = 5000000 where side = 1")
    listed: list[str] = []
    more = True
    while more:
        after = f"&after={listed[-1]}" if listed else ""
        page = httpx.get(f"{server.api}/responses?limit=100&order=asc{after}").json()
        assert len(page["data"]) <= 2
        listed += [response["id"] for response in page["data"]]
        more = page["has_more"]
    assert listed == made


def test_pictures_of_items_that_a_request_refers_to_count_as_what_it_reads(
    start_server: StartServer,
) -> None:
    """Otherwise the answer, which has their pictures again, could be of any size."""
    server = start_server()
    there = conversation(server)
    added = [add(server, there, picture(6 * MEBIBYTE)).json()["data"][0]["id"] for _ in range(6)]
    many = [{"type": "item_reference", "id": item} for item in added]
    refused = check_error(ask(server, input=many), 400, "invalid_request_error")
    assert refused["code"] == "context_length_exceeded"
    again = httpx.post(f"{server.api}/conversations/{there}/items", json={"items": many}, timeout=60)
    check_error(again, 400, "invalid_request_error")
    assert ask(server, input=many[:2]).status_code == 200
    assert peak_memory(server) < 400 * MEBIBYTE


def test_a_picture_that_a_client_sends_in_every_turn_is_stored_once(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    there = conversation(server)
    for _ in range(6):
        assert add(server, there, picture(5 * MEBIBYTE)).status_code == 200
        assert ask(server, input=[picture(5 * MEBIBYTE)]).status_code == 200
    with psycopg.connect(database_url) as connection:
        sizes = connection.execute(
            "select sum(size), pg_total_relation_size('images') from images"
        ).fetchone()
    assert sizes is not None
    assert sizes[0] == 5 * MEBIBYTE * 3 // 4
    assert sizes[1] < 6 * MEBIBYTE
