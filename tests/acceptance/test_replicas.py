"""Two servers on one database: either shows what the other keeps, and neither takes the other for dead."""

import httpx

from tests.fix_server import PACED, StartServer
from tests.support.server_process import MODEL
from tests.support.sse import create, parse, replay

LONG = {"model": MODEL, "input": "Hello", "max_output_tokens": 60}


def test_running_stream_is_followed_through_another_replica(start_server: StartServer) -> None:
    one, other = start_server(**PACED), start_server()
    with create(one.url, LONG) as stream:
        response_id = stream.take(5)[0].json["response"]["id"]
        with replay(other.url, response_id) as followed:
            raw = followed.read()
        assert stream.read() == raw
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
