"""Two servers on one database: either shows what the other keeps, and neither takes the other for dead."""

from statistics import median

import httpx
import psycopg
import pytest

from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL
from tests.support.sse import create, parse, replay

LONG = {"model": MODEL, "input": "Hello", "max_output_tokens": 60}


@pytest.mark.parametrize("delivery", ["notify", "poll"])
def test_running_stream_is_followed_through_another_replica(start_server: StartServer, delivery: str) -> None:
    one, other = start_server(delivery=delivery, **PACED), start_server(delivery=delivery)
    with create(one.url, LONG) as stream:
        response_id = stream.take(5)[0].json["response"]["id"]
        with replay(other.url, response_id) as followed:
            raw = followed.read()
        assert stream.read() == raw
    together = [len(parse(written)) for written in followed.writes]
    assert median(together) <= 20, "a look every half a second would find 25 tokens each time"
    address = f"/responses/{response_id}"
    assert httpx.get(one.api + address).content == httpx.get(other.api + address).content


def test_streams_of_killed_replica_are_ended_by_the_one_that_is_left(start_server: StartServer) -> None:
    one, other = start_server(**PACED), start_server()
    with create(one.url, LONG | {"max_output_tokens": 5000}) as stream:
        seen = stream.take(20)
        one.kill()
    with replay(other.url, seen[0].json["response"]["id"]) as followed:
        frames = parse(followed.read())
    assert frames[:20] == seen
    assert frames[-1].event == "response.failed"


def test_key_of_an_unstored_response_is_free_when_its_replica_has_died(start_server: StartServer) -> None:
    one, other = start_server(**PACED), start_server()
    body = {**LONG, "max_output_tokens": 3000, "store": False, "stream": True}
    key = {"Idempotency-Key": "order-4711"}

    def send_again() -> int:
        return httpx.post(f"{other.api}/responses", json=body, headers=key, timeout=60).status_code

    with httpx.stream("POST", f"{one.api}/responses", json=body, headers=key) as lost:
        pieces = (
            lost.iter_bytes()
        )  # without the iterator the connection is closed, and the response cancelled
        assert next(pieces)
        assert send_again() == 409
        one.kill()
    eventually(lambda: send_again() == 200, within=30)


def test_running_response_is_stopped_when_it_is_deleted_through_another_replica(
    start_server: StartServer, database_url: str
) -> None:
    one, other = start_server(**PACED), start_server()
    with create(one.url, {"model": MODEL, "input": "Hello"}) as stream:
        response_id = stream.take(5)[0].json["response"]["id"]
        assert httpx.delete(f"{other.api}/responses/{response_id}").json()["deleted"]
        assert parse(stream.read())[-1].event == "response.incomplete"
    query = "select status from usage_ledger"
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(query).fetchall() == [("cancelled",)])


@pytest.mark.parametrize("delivery", ["notify", "poll"])
def test_response_goes_on_while_it_is_read_through_another_replica_and_ends_without_readers(
    start_server: StartServer, delivery: str
) -> None:
    settings: dict[str, object] = {**PACED, "delivery": delivery, "grace_seconds": 0.5}
    one, other = start_server(**settings), start_server(**settings)
    with create(one.url, {"model": MODEL, "input": "Hello"}) as stream:
        seen = stream.take(5)
    address = f"{one.api}/responses/{seen[0].json['response']['id']}"
    with replay(other.url, address.rpartition("/")[2]) as followed:
        assert followed.take(150)[:5] == seen  # three seconds, six times the grace
        assert httpx.get(address).json()["status"] == "in_progress"
    eventually(lambda: httpx.get(address).json()["status"] == "cancelled", within=60)
