"""F5: an engine that fails, runs out of memory, dies or hangs: who is told what, and what goes on."""

import random
from collections.abc import Sequence

import httpx
import pytest

from server.recovery.claimer import GIVEN_UP
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S, Attached, Body, Crowd, ask, check, output_text, retrieve
from tests.support.eventually import eventually
from tests.support.rounds import faults_only
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import text_of

TOKENS = 120
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.02, "lease_seconds": 2}
UNLUCKY = 666
"""The seed of the answers in which the fault is."""
START_AGAIN_EXIT = 70
LIMIT = 3
WHEN = [10, *faults_only(0, 1, TOKENS - 1)]


def unlucky(*, background: bool = False) -> Body:
    return {"model": MODEL, "input": "Go on.", "seed": UNLUCKY, "temperature": 1, "background": background}


def run(server: ServerProcess, last: Body, *, background: bool) -> list[Attached]:
    """Eight others that have begun, then the unlucky one; all of them at their ends, that one last."""
    choose = random.Random(0)
    with Crowd(lambda: server) as crowd:
        for number in range(8):
            crowd.start(Attached(ask(number, choose, background=background and number % 2 == 0)))
        eventually(
            lambda: all(b"output_text.delta" in client.received for client in crowd.clients),
            within=PATIENCE_S,
        )
        crowd.start(Attached(last))
        crowd.finish()
    return crowd.clients


def check_failed(client: Attached) -> None:
    """It was told, in a whole stream, and what it had is kept."""
    assert [frame.number for frame in client.frames] == list(range(len(client.frames)))
    assert client.final["status"] == "failed"
    assert client.final["error"]["code"] == "server_error"
    assert output_text(client.final) == text_of(client.frames)


def milliseconds_apart(clients: Sequence[Attached]) -> int:
    """Between the first and the last of them that was told."""
    times = [client.ended_at for client in clients if client.ended_at is not None]
    return round(1000 * (max(times) - min(times)))


@pytest.mark.parametrize("at", WHEN)
def test_a_step_that_fails_ends_what_was_in_it_and_nothing_else(
    start_server: StartServer, at: int, tally: Tally
) -> None:
    server = start_server(scripted_fault=f"raise@{at}:{UNLUCKY}", **PACE)
    clients = run(server, unlucky(), background=True)
    failed = [client for client in clients if client.final["status"] == "failed"]
    assert clients[-1] in failed
    for client in failed:
        check_failed(client)
    check([client for client in clients if client not in failed], server)
    tally["F5", "engine faults"] += 1


def test_a_step_that_does_not_fit_into_memory_ends_nobody(start_server: StartServer, tally: Tally) -> None:
    server = start_server(scripted_fault=f"oom@10:{UNLUCKY}", **PACE)
    clients = run(server, unlucky(), background=True)
    assert {client.final["status"] for client in clients} == {"completed"}
    check(clients, server)
    tally["F5", "engine faults"] += 1


@pytest.mark.parametrize("at", WHEN)
def test_an_engine_that_dies_is_told_to_who_waits_and_what_runs_in_the_background_goes_on(
    start_server: StartServer, at: int, tally: Tally
) -> None:
    server = start_server(scripted_fault=f"crash@{at}:{UNLUCKY}", **PACE)
    *others, last = run(server, unlucky(), background=True)
    check_failed(last)
    check(others, server)
    told = [client for client in (*others, last) if client.final["status"] == "failed"]
    assert len(told) > 1 or at > 10
    slowest = "ms between the first and the last that were told of a dead engine, at most"
    tally["F5", slowest] = max(tally["F5", slowest], milliseconds_apart(told))
    tally["F5", "engine faults"] += 1


@pytest.mark.parametrize(
    ("fault", "settings"),
    faults_only(("die@0", {}), ("hang@0", {"hang_seconds": 1}), ("crash@0", {})),
)
def test_a_background_response_of_which_engines_die_before_a_further_token_is_given_up_at_last(
    start_server: StartServer, fault: str, settings: dict[str, object], tally: Tally
) -> None:
    server = start_server(scripted_fault=f"{fault}:{UNLUCKY}", max_deaths=LIMIT, **settings, **PACE)
    deaths_a_process = 2 if fault.startswith("crash") else 1
    made = HTTP.post(f"{server.api}/responses", json=unlucky(background=True)).json()["id"]
    for _ in range(LIMIT // deaths_a_process):
        assert server.wait() == START_AGAIN_EXIT
        server.launch()
    eventually(lambda: is_ready(server), within=PATIENCE_S)
    eventually(lambda: retrieve(server, made)["status"] == "failed", within=PATIENCE_S)
    final = retrieve(server, made)
    assert final["error"] == {"code": "server_error", "message": GIVEN_UP}
    assert is_ready(server)
    tally["F5", "engine faults"] += LIMIT


@pytest.mark.parametrize(
    ("fault", "settings"),
    [("die@10", {}), *faults_only(("hang@10", {"hang_seconds": 1}))],
)
def test_who_waits_is_told_before_a_process_ends_whose_engine_is_gone(
    start_server: StartServer, fault: str, settings: dict[str, object], tally: Tally
) -> None:
    server = start_server(scripted_fault=f"{fault}:{UNLUCKY}", **settings, **PACE)
    clients = run(server, unlucky(), background=False)
    assert server.wait() == START_AGAIN_EXIT
    for client in clients:
        if client.final["status"] != "completed":
            check_failed(client)
    check_failed(clients[-1])
    assert [client.torn for client in clients] == [0] * len(clients)
    tally["F5", "engine faults"] += 1


def is_ready(server: ServerProcess) -> bool:
    try:
        return HTTP.get(f"{server.url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False
