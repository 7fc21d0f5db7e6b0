"""F9: webhooks of a thousand ends, to receivers that fail, hang, redirect and die, of servers that die."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from server.crashpoints import CRASHPOINTS, KILLED_EXIT
from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.webhook_receiver import Arrival, Arrivals, Reply, WebhookReceiver

ENDS = 1000
ALL = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
SECONDS = 2.0
"""For an attempt; a claim of a server that dies ends five seconds later."""
PATIENCE_S = 240.0
SETTINGS: dict[str, object] = {
    "engine": "scripted",
    "scripted_tokens": 32,
    "scripted_step_seconds": 0.01,
    "lease_seconds": 2,
    "webhook_seconds": SECONDS,
    "webhook_retry_seconds": 0.05,
}
INSIDE = (
    "http://127.0.0.1:{port}/inside",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::1]:{port}/",
)


@dataclass
class Unreliable:
    """A receiver that fails half the time in every way, and looks up what it accepts."""

    sentinel_port: int
    api: str = ""
    choose: random.Random = field(default_factory=lambda: random.Random(0))
    wrong: list[str] = field(default_factory=list)
    """Events that say something else than the server says when they arrive."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    receiver: WebhookReceiver | None = None
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    def decide(self, arrival: Arrival) -> Reply:
        with self.lock:
            fate = self.choose.random()
            place = self.choose.choice(INSIDE).format(port=self.sentinel_port)
        if fate < 0.25:
            return Reply(500)
        if fate < 0.45:
            return Reply(307, {"location": place})
        if fate < 0.48:
            raise OSError
        if fate < 0.5:
            time.sleep(2 * SECONDS)
            raise OSError
        self.check(arrival)
        return Reply(204)

    def check(self, arrival: Arrival) -> None:
        """Asks the server, on a connection of its own, for the response that the event is about."""
        assert self.receiver is not None
        event = self.receiver.unwrap(arrival)
        found = self.client.get(f"{self.api}/responses/{event.data.id}")
        if found.status_code != 200 or f"response.{found.json()['status']}" != event.type:
            self.wrong.append(f"{event.type} {event.data.id}: {found.status_code} {found.text[:200]}")


def make_endpoint(server: ServerProcess, receiver: WebhookReceiver) -> None:
    body = {"name": "ends", "url": receiver.url, "event_types": ALL}
    answer = httpx.post(f"{server.api}/webhook_endpoints", json=body, timeout=60)
    answer.raise_for_status()
    receiver.secret = answer.json()["signing_secret"]


def begin(server: ServerProcess, number: int) -> None:
    """Begins a background response that completes, is cut off or is cancelled, or one in the foreground."""
    body: dict[str, Any] = {"model": MODEL, "input": "Hello", "background": number % 20 != 0}
    if number % 5 == 1:
        body["max_output_tokens"] = 16
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
    answer.raise_for_status()
    if number % 10 == 2:
        httpx.post(f"{server.api}/responses/{answer.json()['id']}/cancel", timeout=60)


def ended(database_url: str) -> dict[str, str]:
    """The background responses that have ended, and the event types of their ends."""
    query = "select id, status from responses where background and finished_at is not null"
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(query).fetchall()
    return {f"resp_{identifier.hex}": f"response.{status}" for identifier, status in rows}


def unfinished(database_url: str) -> int:
    query = "select count(*) from responses where finished_at is null"
    with psycopg.connect(database_url) as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)


def has_received(arrivals: Arrivals, count: int) -> bool:
    return len(arrivals.received) >= count


def check_all_arrived(database_url: str, arrivals: Arrivals) -> dict[str, str]:
    """Every end, and none that did not happen, arrived; returns the ends."""
    eventually(lambda: unfinished(database_url) == 0, within=PATIENCE_S)
    ends = ended(database_url)
    eventually(partial(has_received, arrivals, len(ends)), within=PATIENCE_S)
    assert arrivals.types == ends
    assert arrivals.problems == []
    return ends


@pytest.fixture
def sentinel() -> Iterator[WebhookReceiver]:
    """What must not be reached."""
    with WebhookReceiver() as inside:
        yield inside
    assert inside.arrivals.all == []


@pytest.mark.faults
def test_a_thousand_ends_arrive_at_receivers_that_fail_redirect_hang_and_die(
    start_server: StartServer, database_url: str, sentinel: WebhookReceiver, tally: Tally
) -> None:
    unreliable, arrivals = Unreliable(sentinel.port), Arrivals()
    with ExitStack() as stack:
        stack.enter_context(unreliable.client)
        receiver = stack.enter_context(WebhookReceiver(unreliable.decide, arrivals=arrivals))
        reliable = stack.enter_context(WebhookReceiver())
        hosts = f"http://127.0.0.1:{receiver.port},http://127.0.0.1:{reliable.port}"
        servers = [start_server(**SETTINGS, webhook_hosts=hosts) for _ in range(2)]
        unreliable.api, unreliable.receiver = servers[1].api, receiver
        make_endpoint(servers[0], receiver)
        make_endpoint(servers[0], reliable)
        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(begin, servers[number % 2], number) for number in range(ENDS)]
            for received in (ENDS // 16, ENDS // 4, ENDS // 2):
                eventually(partial(has_received, arrivals, received), within=PATIENCE_S)
                port, secret = receiver.port, receiver.secret
                receiver.close()
                time.sleep(0.5)
                receiver = stack.enter_context(WebhookReceiver(unreliable.decide, port, arrivals))
                receiver.secret, unreliable.receiver = secret, receiver
            for one in work:
                one.result()
        ends = check_all_arrived(database_url, arrivals)
        check_all_arrived(database_url, reliable.arrivals)
        assert unreliable.wrong == []
    assert len(ends) == ENDS - ENDS // 20
    assert set(ends.values()) >= {"response.completed", "response.incomplete", "response.cancelled"}
    tally["F9", "ends delivered"] += len(ends)
    tally["F9", "attempts at a receiver that fails"] += len(arrivals.all)
    tally["F9", "events received more than once"] += sum(n > 1 for n in arrivals.received.values())


@pytest.mark.faults
def test_a_server_that_is_killed_at_any_point_loses_no_webhook(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    points = [point for point in CRASHPOINTS if point.startswith(("webhook.", "end."))]
    assert len(points) == 7
    with WebhookReceiver() as receiver, ExitStack() as stack:
        settings = {**SETTINGS, "webhook_hosts": f"http://127.0.0.1:{receiver.port}"}
        first = start_server(**settings)
        make_endpoint(first, receiver)
        first.kill()
        for point in sorted(points):
            server = ServerProcess(database_url, settings={**settings, "crash_at": f"{point}:3"})
            stack.callback(server.stop)
            server.launch()
            begin_until_dead(server)
            assert server.wait() == KILLED_EXIT, point
            tally["F9", "deaths survived"] += 1
        start_server(**settings)
        ends = check_all_arrived(database_url, receiver.arrivals)
        tally["F9", "ends delivered after deaths"] += len(ends)
    assert len(ends) > len(points)


def begin_until_dead(server: ServerProcess) -> None:
    """Begins background responses, a few at a time, until the server has died."""

    def try_once() -> bool:
        with suppress(httpx.HTTPError):
            httpx.post(
                f"{server.api}/responses",
                json={"model": MODEL, "input": "Hello", "background": True},
                timeout=5,
            )
        return server.has_ended

    eventually(try_once, within=60)
