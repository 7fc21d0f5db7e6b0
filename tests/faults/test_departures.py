"""F19: SIGTERM with many streams open: the server ends in good order, another goes on, no byte is lost."""

import random

import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, P2_SECONDS, PATIENCE_S, Attached, Crowd, ask, check
from tests.support.eventually import eventually
from tests.support.rounds import rounds
from tests.support.server_process import ServerProcess

PACE: dict[str, object] = {"scripted_tokens": 100, "scripted_step_seconds": 0.02}


def is_draining(server: ServerProcess) -> bool:
    return HTTP.get(f"{server.url}/health/ready").status_code == 503


def end_in_good_order(leaving: ServerProcess, staying: ServerProcess, streams: int, seed: int) -> int:
    """Asks a server to end under that many streams, half of them in the background; the tokens compared."""
    choose = random.Random(seed)
    here = [leaving]
    with Crowd(lambda: here[0]) as crowd:
        crowd.start(
            *(Attached(ask(number // 2, choose, background=number % 2 == 0)) for number in range(streams))
        )
        eventually(lambda: all(client.received for client in crowd.clients), within=PATIENCE_S)
        leaving.ask_to_end()
        here[0] = staying
        eventually(lambda: is_draining(leaving), within=P2_SECONDS)
        assert leaving.wait() == 0
        crowd.finish(within=P2_SECONDS)
    assert [client.torn for client in crowd.clients] == [0] * streams
    assert {client.final["status"] for client in crowd.clients} == {"completed"}
    return check(crowd.clients, staying)


@pytest.mark.faults
def test_a_server_that_is_asked_to_end_finishes_or_hands_over_what_it_runs(
    start_server: StartServer, tally: Tally
) -> None:
    tally["F19", "tokens compared"] += end_in_good_order(start_server(**PACE), start_server(**PACE), 20, 0)


@pytest.mark.faults
def test_two_servers_that_are_asked_to_end_by_turns_lose_none_of_50_streams(
    start_server: StartServer, tally: Tally
) -> None:
    one, other = start_server(**PACE), start_server(**PACE)
    for seed in (1, 2):
        tally["F19", "tokens compared"] += end_in_good_order(one, other, 50, seed)
        tally["F19", "streams of a server asked to end"] += 50
        one.start()
        one, other = other, one


@pytest.mark.parametrize("seed", rounds(few=0, many=2))
def test_a_rolling_restart_loses_nothing(start_server: StartServer, seed: int, tally: Tally) -> None:
    choose = random.Random(seed)
    servers = [start_server(**PACE), start_server(**PACE)]
    with Crowd(lambda: choose.choice(servers)) as crowd:
        for server in servers:
            for number in range(16):
                crowd.start(Attached(ask(number // 2, choose, background=number % 2 == 0)))
            eventually(lambda: all(client.received for client in crowd.clients), within=PATIENCE_S)
            server.ask_to_end()
            assert server.wait() == 0
            server.start()
        crowd.finish()
    assert {client.final["status"] for client in crowd.clients} == {"completed"}
    tally["F19", "tokens compared"] += check(crowd.clients, servers[0])
    tally["F19", "rolling restarts"] += 1
