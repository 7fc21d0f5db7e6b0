"""F1: kill -9 at random moments, again and again, with streams in flight whose clients come back."""

import random
from collections.abc import Callable

import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import P2_SECONDS, Attached, Body, Countdown, Crowd, ask, check
from tests.support.rounds import faults_only, rounds
from tests.support.server_process import ServerProcess

STREAMS = 8
TOKENS = 200
TOPICS = ("Tell me a long story.", "Explain what a database does.", "Write about the sea.", "Count for me.")
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.005, "max_deaths": 1000}


def kill_and_follow(
    server: ServerProcess,
    choose: random.Random,
    kills: int,
    make: Callable[[int], Body],
    *,
    streams: int = STREAMS,
    latest: int = TOKENS // 2,
) -> list[Attached]:
    """Kills the server so often, each time in the middle of new streams and of what is left of the old ones.

    It dies when the new ones have had `latest` events on average, or before. Gives the clients once all of
    them have their ends.
    """
    with Crowd(lambda: server) as crowd:
        for _ in range(kills):
            countdown = Countdown(choose.randint(1, streams * latest))
            for number in range(streams):
                crowd.start(Attached(make(number), countdown))
            countdown.wait(crowd.is_over)
            server.restart()
        crowd.finish(within=P2_SECONDS)
    return crowd.clients


def test_clients_that_come_back_see_every_byte_once_when_the_server_is_killed_twice(
    start_server: StartServer, tally: Tally
) -> None:
    kill_and_compare(start_server(**PACE), 0, 2, tally)


@pytest.mark.parametrize("seed", rounds(few=0, many=12))
def test_clients_that_come_back_see_every_byte_once_however_often_the_server_is_killed(
    start_server: StartServer, seed: int, tally: Tally
) -> None:
    kill_and_compare(start_server(**PACE), seed, 5, tally)


def kill_and_compare(server: ServerProcess, seed: int, kills: int, tally: Tally) -> None:
    choose = random.Random(seed)
    clients = kill_and_follow(
        server, choose, kills, lambda number: ask(number // 2, choose, background=number % 2 == 0)
    )
    tally["F1", "tokens compared"] += check(clients, server)
    tally["F1", "kills survived"] += kills
    tally["F1", "streams followed"] += len(clients)
    assert sum(client.attempts for client in clients) > len(clients), "no kill hit a stream"


@pytest.mark.parametrize(("kills", "streams"), [(1, 4), *faults_only((6, 16))])
def test_what_a_model_says_in_the_background_is_the_same_however_often_its_server_is_killed(
    start_server: StartServer, kills: int, streams: int, tally: Tally
) -> None:
    server = start_server(engine="model", torch_threads=1, max_deaths=1000)
    choose = random.Random(kills)
    clients = kill_and_follow(
        server,
        choose,
        kills,
        lambda number: {
            **ask(number, choose, background=True, max_output_tokens=TOKENS),
            "input": f"{choose.choice(TOPICS)} Begin with the number {choose.randrange(1000)}.",
        },
        streams=streams,
        latest=12,
    )
    tally["F1", "tokens of a model compared"] += check(clients, server)
    tally["F1", "streams of a model killed"] += sum(client.attempts > 1 for client in clients)
    assert all(client.final["status"] in ("completed", "incomplete") for client in clients)
