"""Many at once: 32 streams of 60 tokens share their steps, and the server answers meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, text_of

STREAMS = 32
TOKENS = 60
QUICK_S = 5.0
"""Within which a GET is answered under that load, on a machine that does other things too."""


def count_up(server: ServerProcess, tokens: int = TOKENS) -> list[Frame]:
    request = {"model": MODEL, "input": "Count to 100", "temperature": 0, "max_output_tokens": tokens}
    with create(server.url, request) as stream:
        return list(stream)


def test_32_streams_take_far_less_than_32_times_one_and_gets_are_answered_meanwhile(
    demo_server: ServerProcess,
) -> None:
    count_up(demo_server, 16)
    started = time.monotonic()
    alone = count_up(demo_server)
    one = time.monotonic() - started
    with ThreadPoolExecutor(STREAMS) as pool:
        started = time.monotonic()
        running = [pool.submit(count_up, demo_server) for _ in range(STREAMS)]
        gets = []
        while not all(stream.done() for stream in running):
            asked = time.monotonic()
            for path in ("/health/ready", f"/v1/responses/{alone[0].json['response']['id']}"):
                assert httpx.get(demo_server.url + path, timeout=60).status_code == 200
            gets.append(time.monotonic() - asked)
        together = time.monotonic() - started
        streams = [stream.result() for stream in running]
    for frames in streams:
        assert frames[-1].json["response"]["usage"]["output_tokens"] == TOKENS
        assert text_of(frames) == text_of(alone)
    assert text_of(alone).startswith("1, 2, 3, 4, 5")
    assert together < 0.5 * STREAMS * one, f"{together:.1f} s, one alone {one:.1f} s"
    assert len(gets) >= 3
    assert max(gets) < QUICK_S
