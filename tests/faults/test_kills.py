"""F1: kill -9 at random moments, again and again, with streams in flight whose clients come back."""

import random
from collections import Counter

import pytest

from tests.fix_server import StartServer
from tests.support.attached import P2_SECONDS, Attached, Countdown, Crowd, ask, check
from tests.support.rounds import rounds
from tests.support.server_process import ServerProcess

STREAMS = 8
TOKENS = 200
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.005, "max_deaths": 1000}


def kill_and_follow(
    server: ServerProcess, choose: random.Random, kills: int, *, streams: int = STREAMS, tokens: int = TOKENS
) -> list[Attached]:
    """Kills the server so often, each time in the middle of new streams and of what is left of the old ones.

    Every second response runs in the background. Gives the clients once all of them have their ends.
    """
    with Crowd(lambda: server) as crowd:
        for _ in range(kills):
            countdown = Countdown(choose.randint(1, streams * tokens // 2))
            for number in range(streams):
                body = ask(number // 2, choose, background=number % 2 == 0)
                crowd.start(Attached(body, countdown))
            countdown.wait(crowd.is_over)
            server.restart()
        crowd.finish(within=P2_SECONDS)
    return crowd.clients


def test_clients_that_come_back_see_every_byte_once_when_the_server_is_killed_twice(
    start_server: StartServer, tally: Counter[str]
) -> None:
    kill_and_compare(start_server(**PACE), 0, 2, tally)


@pytest.mark.parametrize("seed", rounds(few=0, many=12))
def test_clients_that_come_back_see_every_byte_once_however_often_the_server_is_killed(
    start_server: StartServer, seed: int, tally: Counter[str]
) -> None:
    kill_and_compare(start_server(**PACE), seed, 5, tally)


def kill_and_compare(server: ServerProcess, seed: int, kills: int, tally: Counter[str]) -> None:
    clients = kill_and_follow(server, random.Random(seed), kills)
    tally["tokens compared"] += check(clients, server)
    tally["kills survived"] += kills
    tally["streams followed"] += len(clients)
    assert sum(client.attempts for client in clients) > len(clients), "no kill hit a stream"
