"""F35: tool servers that are silent, slow or lie, and a tenant that sends everybody to them at once."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.acceptance.test_code_runner import tool_call
from tests.acceptance.test_tool_tenants import response_hex_of
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.fake_mcp import Behaviour, FakeMcp, running_fakes
from tests.support.server_process import MODEL, ServerProcess

pytestmark = pytest.mark.faults

AT_ONCE = 64
POSTS = 60
LIST_S = 6.0
CALL_S = 8.0
LYING: list[Behaviour] = ["silent", "slow", "endless", "dense", "events", "large"]
ANSWERS = json.dumps(
    [
        ("Found it.", "There it is."),
        ("Look", tool_call("good__find", q="what")),
        ("Hang", tool_call("bad__find", q="what")),
    ]
)


class Tenant:
    """One key's client."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        limits = httpx.Limits(max_connections=2 * AT_ONCE)
        self._client = httpx.Client(
            base_url=server.api, timeout=60, headers={"authorization": f"Bearer {key}"}, limits=limits
        )

    def close(self) -> None:
        self._client.close()

    def post(self, path: str = "/responses", /, **wanted: Any) -> tuple[httpx.Response, float]:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3, **wanted}
        began = monotonic()
        answer = self._client.post(path, json=body)
        return answer, monotonic() - began

    def read(self, response: str) -> dict[str, Any]:
        told: dict[str, Any] = self._client.get(f"/responses/{response}").raise_for_status().json()
        return told

    def timed(self, least: int, until: Callable[[], bool]) -> float:
        """The time that 99 of 100 posts keep to; all of them must succeed."""
        times: list[float] = []
        while len(times) < least or not until():
            answer, seconds = self.post()
            assert answer.status_code == 200, answer.text
            times.append(seconds)
        return sorted(times)[len(times) * 99 // 100]


@contextmanager
def scene(
    start_server: StartServer, database_url: str, bad: list[FakeMcp], good: FakeMcp
) -> Iterator[tuple[Tenant, Tenant]]:
    """A server that has the tool servers, and its two tenants."""
    server = start_server(
        tool_server=f"good={good.url},bad={bad[0].url}",
        mcp_hosts=",".join(f"http://127.0.0.1:{fake.port}" for fake in bad),
        mcp_list_seconds=LIST_S,
        mcp_seconds=CALL_S,
        scripted_answers=ANSWERS,
        lease_seconds=10,
    )
    tenants = [Tenant(server, response_hex_of(database_url, name)) for name in ("mallory", "alice")]
    try:
        yield tenants[0], tenants[1]
    finally:
        for tenant in tenants:
            tenant.close()


def naming(fakes: list[FakeMcp], number: int) -> dict[str, Any]:
    """A request that names one of them; every one has credentials of its own, so that no list is known."""
    place = number % (len(fakes) + 1)
    tool = {"type": "mcp", "require_approval": "never", "headers": {"X-Number": str(number)}}
    if place == len(fakes):
        return {"tools": [{**tool, "server_label": "bad"}]}
    return {"tools": [{**tool, "server_label": f"mine{place}", "server_url": fakes[place].url}]}


def test_requests_that_name_bad_tool_servers_keep_nobody_else_waiting(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    with running_fakes(len(LYING)) as bad, running_fakes(1) as (good,):
        for fake, behaviour in zip(bad, LYING, strict=True):
            fake.behaviour = behaviour
        with (
            scene(start_server, database_url, bad, good) as (mallory, alice),
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            quiet = alice.timed(POSTS, lambda: True)
            running, _ = alice.post(background=True, max_output_tokens=24)
            sent = [pool.submit(mallory.post, **naming(bad, number)) for number in range(AT_ONCE)]
            eventually(lambda: any(fake.count("tools/list") for fake in bad))
            cancelled, took = alice.post(f"/responses/{running.json()['id']}/cancel")
            beside = alice.timed(POSTS, lambda: all(one.done() for one in sent))
            statuses = [one.result()[0].status_code for one in sent]
    assert cancelled.status_code == 200
    assert beside <= 2 * quiet, f"{beside} s beside, {quiet} s alone"
    assert took <= 2 * quiet
    assert set(statuses) <= {200, 429, 503}
    tally["F35", "requests at once that name bad tool servers"] += len(statuses)
    tally["F35", "of these answered, the others told to come back"] += statuses.count(200)
    tally["F35", "ms p99 of others' posts alone"] += round(1000 * quiet)
    tally["F35", "ms p99 of others' posts beside them"] += round(1000 * beside)
    tally["F35", "ms of a cancel beside them"] += round(1000 * took)


def test_calls_that_hang_stop_neither_others_calls_nor_anybodys_next_turn(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    with running_fakes(1) as bad, running_fakes(1) as (good,):
        bad[0].says_in_calls = "silent"
        with scene(start_server, database_url, bad, good) as (mallory, alice):
            never = {"type": "mcp", "require_approval": "never"}
            hanging = {"input": "Hang", "tools": [{**never, "server_label": "bad"}], "background": True}
            looking = {"input": "Look", "tools": [{**never, "server_label": "good"}]}
            more: dict[str, Any] = {"max_output_tokens": 200}
            alice.post(**looking, **more)  # after which the list is known
            _, quiet = alice.post(**looking, **more)
            begun = [mallory.post(**hanging, **more)[0].json()["id"] for _ in range(AT_ONCE)]
            eventually(lambda: bad[0].count("tools/call") >= 16)
            told, beside = alice.post(**looking, **more)
            waiting = sum(mallory.read(one)["status"] == "in_progress" for one in begun)
            eventually(
                lambda: all(mallory.read(one)["status"] not in ("queued", "in_progress") for one in begun),
                within=120,
            )
    assert told.json()["status"] == "completed"
    assert "mcp_call" in [item["type"] for item in told.json()["output"]]
    assert waiting > 0
    assert beside <= 2 * quiet
    tally["F35", "calls that hang at once"] += AT_ONCE
    tally["F35", "ms of another's call alone"] += round(1000 * quiet)
    tally["F35", "ms of another's call beside them"] += round(1000 * beside)
