"""F43: real vLLM servers that are killed, run out of memory or are stopped in the middle of greedy streams.

Skipped without vLLM: `make vllm`, or TEST_VLLM for one that is elsewhere. TEST_VLLM_KILLS says how many
servers end; each end takes a quarter of a minute on two cores.
"""

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import PATIENCE_S, Attached, Body, Crowd, Times, check, uncut
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.vllm_server import PATIENCE_S as START_S
from tests.support.vllm_server import VllmServer, installed

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not installed(), reason="make vllm")]

KILLS = int(os.environ.get("TEST_VLLM_KILLS", "4"))
ENDS = ("killed", "worker killed", "out of memory", "stopped")
"""How a server ends, by turns."""
FOLDER = Path(__file__).parents[2] / "demo" / MODEL
STREAMS = 8
TOKENS = 600
BEGUN = 6
"""Events of a stream after which its server may end: with two servers on two cores one of them may send a
hundred tokens at a time."""
OUTPUT_BYTES = 1_000_000
"""Of a server's output, in which every call that failed has a traceback."""

Engines = list[VllmServer]


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Two, with the demo model."""
    servers = [VllmServer(FOLDER, MODEL, "--enforce-eager", forked=True) for _ in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            eventually(server.is_ready, within=START_S)
            leave_a_core(server)
        yield servers
    finally:
        for server in servers:
            server.stop()


def leave_a_core(engine: VllmServer) -> None:
    """Keeps the server off one core, as a GPU's server leaves the processors to others.

    Two servers that compute on both of two cores let nothing else run for seconds.
    """
    _, *others = sorted(os.sched_getaffinity(0))
    if others:
        engine.keep_to(others)


def greedy(choose: random.Random, number: int) -> Body:
    """Text of a fixed length, with words of its own in the prompt."""
    words = f"Tell me a story about {choose.randrange(10**6)} ships."
    return {
        "model": MODEL,
        "input": words,
        "temperature": 0,
        "background": number % 2 == 0,
        "ignore_eos": True,
        "max_output_tokens": TOKENS,
    }


def begin(crowd: Crowd, choose: random.Random) -> list[Attached]:
    """So many clients, each of which has received a part of its answer."""
    clients = [Attached(greedy(choose, number), Times()) for number in range(STREAMS)]
    crowd.start(*clients)
    eventually(lambda: all(client.received.count(b"\n\n") > BEGUN for client in clients), within=PATIENCE_S)
    return clients


def running(engine: VllmServer) -> int:
    return int(metric(engine, "num_requests_running"))


def metric(engine: VllmServer, name: str) -> float:
    rows = re.findall(
        rf"^vllm:{name}{{[^}}]*}} (\S+)$", httpx.get(f"{engine.url}/metrics").text, re.MULTILINE
    )
    return sum(map(float, rows))


def end(engine: VllmServer, how: str) -> None:
    """Whatever it does afterwards, it has to be started again."""
    if how == "killed":
        engine.kill()
    elif how == "worker killed":
        engine.kill_worker()
    elif how == "out of memory":
        engine.take_memory()
        ask_for_memory(engine)
    else:
        engine.ask_to_end()


def ask_for_memory(engine: VllmServer) -> None:
    """Prompts that are long enough for their prefill to need memory that the process does not have yet."""
    body = {"model": MODEL, "prompt": [[7] * 6000] * 2, "max_tokens": 1}
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"{engine.url}/v1/completions", json=body, timeout=PATIENCE_S).raise_for_status()
    eventually(engine.has_ended, within=PATIENCE_S)
    assert "alloc" in engine.said(OUTPUT_BYTES)


def end_in_mid_stream(crowd: Crowd, engine: VllmServer, how: str, choose: random.Random) -> tuple[int, int]:
    """How many calls the engine had, and the longest pause of a stream in milliseconds."""
    clients = begin(crowd, choose)
    calls = running(engine)
    end(engine, how)
    eventually(crowd.is_over, within=2 * PATIENCE_S)
    return calls, round(1000 * max(pauses(clients)))


def pauses(clients: Sequence[Attached]) -> list[float]:
    """The longest of each client in seconds, ascending."""
    times = [client.countdown for client in clients]
    return sorted(one.longest_pause for one in times if isinstance(one, Times))


def test_vllm_servers_that_end_in_any_way_in_mid_stream_cost_no_token(
    start_server: StartServer, engines: Engines, tally: Tally
) -> None:
    server = start_server(engine="vllm", engine_url=",".join(engine.url for engine in engines), model=FOLDER)
    choose, total = random.Random(KILLS), 0
    with Crowd(lambda: server) as crowd:
        for number in range(KILLS):
            how, engine = ENDS[number % len(ENDS)], engines[number // len(ENDS) % 2]
            calls, pause = end_in_mid_stream(crowd, engine, how, choose)
            total += calls
            longest = "F43", f"ms of the longest pause of a stream, {how}"
            tally[longest] = max(tally[longest], pause)
            tally["F43", f"vLLM servers: {how}"] += 1
            tally["F43", f"calls on vLLM servers: {how}"] += calls
            restart(engine, server)
        crowd.finish()
    assert [client.attempts for client in crowd.clients] == [1] * len(crowd.clients)
    tally["F43", "tokens compared with a run without any end"] += check(crowd.clients, server, STREAMS)
    of_each = pauses(crowd.clients)
    tally["F43", "ms of the longest pause of a stream, p50"] = round(1000 * of_each[len(of_each) // 2])
    tally["F43", "ms of the longest pause of a stream, p99"] = round(1000 * of_each[int(len(of_each) * 0.99)])
    assert total >= KILLS


def restart(engine: VllmServer, server: ServerProcess) -> None:
    """Returns when the server uses it again."""
    engine.kill()
    engine.start()
    leave_a_core(engine)
    eventually(lambda: is_used(server, engine), within=PATIENCE_S)


def is_used(server: ServerProcess, engine: VllmServer) -> bool:
    """Whether it gets one of several calls at a time."""
    before = metric(engine, "request_success_total")
    uncut(server, [{"model": MODEL, "input": "Hello", "max_output_tokens": 20}] * STREAMS)
    return metric(engine, "request_success_total") > before


def test_more_streams_than_the_kv_cache_of_vllm_holds_fail_in_no_way(
    start_server: StartServer, tally: Tally
) -> None:
    engine = VllmServer(
        FOLDER, MODEL, "--enforce-eager", "--max-model-len=2048", "--num-gpu-blocks-override=96"
    )
    try:
        engine.start()
        server = start_server(engine="vllm", engine_url=engine.url, model=FOLDER)
        choose = random.Random(1)
        with Crowd(lambda: server) as crowd:
            begin(crowd, choose)
            crowd.finish(within=4 * PATIENCE_S)
        preemptions = int(metric(engine, "num_preemptions_total"))
        assert preemptions > 0
        assert [client.attempts for client in crowd.clients] == [1] * STREAMS
        tally["F43", "tokens compared with a run that fits"] += check(crowd.clients, server, at_once=1)
        tally["F43", "requests preempted by vLLM"] += preemptions
    finally:
        engine.stop()
