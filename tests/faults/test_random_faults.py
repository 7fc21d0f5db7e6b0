"""F51: faults at random under clients of every kind, for as many minutes as RANDOM_MINUTES says.

RANDOM_SEED repeats the choices of a run, though not its times.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any

import psycopg
import pytest

from server.hosted_tools.tool_loop import STOPPED
from tests.acceptance.test_code_runner import tool_call
from tests.faults.test_webhooks import ended, make_endpoint
from tests.fix_cluster import Cluster
from tests.fix_proxy import Through
from tests.fix_server import StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.attached import uncut
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.random_clients import DONE, TOOL_STORIES, UNKNOWN, RandomClients, Story, check
from tests.support.random_faults import RandomFaults
from tests.support.server_process import ServerProcess
from tests.support.webhook_receiver import WebhookReceiver

MINUTES = float(os.environ.get("RANDOM_MINUTES", "0"))
SEED = int(os.environ.get("RANDOM_SEED") or random.SystemRandom().randrange(10**6))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not MINUTES, reason="RANDOM_MINUTES says for how long this runs"),
]

REPLICAS, CLIENTS = 3, 10
TOKENS = 120
PATIENCE_S = 120.0
ANSWERS = json.dumps(
    [
        ("Found it.", DONE),
        (STOPPED, UNKNOWN),
        *((f"Buy {n:04}.", tool_call("shop__find", q=f"{n:04}")) for n in range(TOOL_STORIES)),
        *((f"Look {n:04}.", tool_call("shop__add", q=f"{n:04}")) for n in range(TOOL_STORIES)),
    ]
)
PACE: dict[str, object] = {
    "scripted_tokens": TOKENS,
    "scripted_step_seconds": 0.02,
    "lease_seconds": 5,
    "max_deaths": 1000,
    "drain_seconds": 3,
    "durability": "strict",
    "webhook_seconds": 2,
    "webhook_retry_seconds": 0.2,
    "scripted_answers": ANSWERS,
}
UNENDED = "select count(*) from responses where finished_at is null"
SHARED_KEYS = """
    select request::jsonb -> 'metadata' ->> 'key', count(*) from responses
    where request::jsonb -> 'metadata' ? 'key' group by 1 having count(*) > 1
"""


def test_what_clients_were_told_is_stored_whatever_happens(
    own_database_url: str,
    own_cluster: Cluster,
    through: Through,
    start_server: StartServer,
    start_server_on: StartServerOn,
    tally: Tally,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\nRANDOM_SEED={SEED} RANDOM_MINUTES={MINUTES}")  # noqa: T201 - to repeat the run
    proxy = through(own_database_url)
    with WebhookReceiver() as receiver, running_fakes(1) as (shop,):
        servers = [
            start_server_on(
                proxy.url,
                **PACE,
                tool_server=f"shop={shop.url}",
                webhook_hosts=f"http://127.0.0.1:{receiver.port}",
            )
            for _ in range(REPLICAS)
        ]
        make_endpoint(servers[0], receiver)
        clients = RandomClients(servers, SEED, CLIENTS)
        faults = RandomFaults(servers, own_cluster, own_database_url, proxy, random.Random(SEED))
        until = monotonic() + 60 * MINUTES
        try:
            while monotonic() < until:
                faults.next()
        finally:
            clients.finish()
        faults.revive()
        eventually(lambda: count(own_database_url, UNENDED) == 0, within=PATIENCE_S)
        quick = start_server(scripted_tokens=TOKENS)
        outcomes, problems = check_all(clients.stories, servers[0], quick)
        problems += check_calls(shop, clients.stories) + check_keys(own_database_url)
        ends = ended(own_database_url)
        eventually(lambda: receiver.arrivals.types == ends, within=PATIENCE_S)
        problems += receiver.arrivals.problems
    for what, number in [*faults.counts.items(), *outcomes.items()]:
        tally["F51", what] += number
    tally["F51", "webhooks delivered at least once"] += len(ends)
    assert problems == [], f"RANDOM_SEED={SEED}\n" + "\n".join(problems)


def count(database_url: str, query: Any) -> int:
    with psycopg.connect(database_url) as connection:
        (number,) = connection.execute(query).fetchone() or (0,)
    return int(number)


def check_all(
    stories: Sequence[Story], server: ServerProcess, quick: ServerProcess
) -> tuple[Counter[str], list[str]]:
    """The outcomes of all stories by their kinds, and what is wrong with them."""
    plain = [story for story in stories if "tools" not in story.body]
    texts = uncut(quick, [{**story.body, "store": True} for story in plain])
    expected = {story.key: text for story, text in zip(plain, texts, strict=True)}
    outcomes: Counter[str] = Counter()
    problems: list[str] = []
    for story in stories:
        try:
            outcomes[f"{story.kind}: {check(story, server, expected.get(story.key))}"] += 1
        except AssertionError as error:
            problems.append(f"{story.kind} {story.response_id}: {str(error)[:1500]}")
    return outcomes, problems


def check_calls(shop: FakeMcp, stories: Sequence[Story]) -> list[str]:
    """Calls of the tool that is not repeatable that were made twice; completed ones without a call."""
    made = Counter((call["name"], call["arguments"]["q"]) for call in shop.calls)
    wrong = [
        f"{call} was made {times} times" for call, times in made.items() if call[0] == "find" and times > 1
    ]
    for story in stories:
        if story.kind == "repeatable call" and story.final and story.final["status"] == "completed":
            argument = str(story.body["input"])[len("Look ") : -1]
            wrong += [] if made["add", argument] else [f"{story.response_id} made no call"]
    return wrong


def check_keys(database_url: str) -> list[str]:
    with psycopg.connect(database_url) as connection:
        return [f"key {key} has {number} responses" for key, number in connection.execute(SHARED_KEYS)]
