"""What 500 background responses with a window of 8h add to the latency of others on the same replica.

BENCH_ROUNDS is how many rounds there are in place of eight.

Short phases of the same arrivals alternate, without the queue and with it. Each phase beside it is divided by
the mean of the two around it, so that a machine that grows slower weighs on neither. How far apart two phases
without the queue are is told, too: a difference within that range is none.
"""

import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import httpx

from bench.rounds import divide, tell
from bench.stored import running
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

IDLE_RESPONSES = 500
IDLE_TOKENS = 768
"""So many that some are left at the end of a phase."""
REQUESTS = 100
TOKENS = 32
PER_SECOND = 5
"""Arrivals at random moments, some at once, with pauses in which nothing else is to be computed."""
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "8"))
SENDERS = 8
"""Threads that send and cancel the queue."""
SETTINGS: Mapping[str, object] = {"torch_threads": 1}
ENDED = ("completed", "incomplete", "failed", "cancelled")

Latencies = tuple[float, float]
"""The median and the 99th percentile, in milliseconds."""


def run() -> None:
    """Short answers beside 500 background responses with a window of 8h, against without them."""
    with running(SETTINGS) as server:
        _answers(server, 20)
        alone = [_answers(server)]
        beside: list[Latencies] = []
        for turn in range(ROUNDS):
            waiting = _queue(server)
            beside.append(_answers(server))
            left = [response for response in waiting if not _has_ended(server, response)]
            assert left, "the queue ended before the answers: IDLE_TOKENS is too low"
            if turn + 1 < ROUNDS:
                _cancel(server, left)
            else:
                eventually(partial(_are_whole, server, waiting), within=600)
            alone.append(_answers(server))
            print(f"  {_shown(beside[-1])} beside, {_shown(alone[-1])} after; {len(left)} left", flush=True)
    print(f"  all {IDLE_RESPONSES} of the last round ended with all of their tokens")
    for place, name in enumerate(("p50", "p99")):
        without = [each[place] for each in alone]
        around = [statistics.mean(pair) for pair in pairwise(without)]
        ratios = divide([each[place] for each in beside], around)
        tell(f"{name} alone ÷ alone one round before", divide(without[1:], without[:-1]), "<=1.1")
        tell(f"{name} beside background responses ÷ alone", ratios, "<=1.1")


def _shown(latencies: Latencies) -> str:
    return f"p50 {latencies[0]:.1f} and p99 {latencies[1]:.1f} ms"


def _queue(server: ServerProcess) -> list[str]:
    body = {
        "model": MODEL,
        "input": "Go on and on.",
        "background": True,
        "ignore_eos": True,
        "max_output_tokens": IDLE_TOKENS,
        "background_options": {"completion_window": "8h"},
    }
    with httpx.Client() as client, ThreadPoolExecutor(SENDERS) as pool:

        def send(_number: int) -> str:
            answer = client.post(f"{server.api}/responses", json=body, timeout=60).raise_for_status()
            return str(answer.json()["id"])

        return list(pool.map(send, range(IDLE_RESPONSES)))


def _cancel(server: ServerProcess, responses: Sequence[str]) -> None:
    """Returns when they have ended."""
    with httpx.Client() as client, ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(lambda one: client.post(f"{server.api}/responses/{one}/cancel", timeout=60), responses))
    eventually(lambda: all(_has_ended(server, response) for response in responses), within=600)


def _read(server: ServerProcess, response: str) -> Any:
    return httpx.get(f"{server.api}/responses/{response}", timeout=60).json()


def _has_ended(server: ServerProcess, response: str) -> bool:
    return _read(server, response)["status"] in ENDED


def _are_whole(server: ServerProcess, responses: Sequence[str]) -> bool:
    """Whether all have ended with all of their tokens."""
    answers = (_read(server, response) for response in responses)
    return all(a["status"] == "incomplete" and a["usage"]["output_tokens"] == IDLE_TOKENS for a in answers)


def _answers(server: ServerProcess, count: int = REQUESTS) -> Latencies:
    """The median and the 99th percentile of so many answers, in milliseconds."""
    chance = random.Random(0)  # noqa: S311 - of arrivals, the same in each phase
    with httpx.Client(limits=httpx.Limits(max_connections=64)) as client, ThreadPoolExecutor(32) as pool:

        def ask(number: int) -> float:
            body = {
                "model": MODEL,
                "input": f"Say {number}.",
                "max_output_tokens": TOKENS,
                "ignore_eos": True,
            }
            began = time.monotonic()
            client.post(f"{server.api}/responses", json=body, timeout=60).raise_for_status()
            return (time.monotonic() - began) * 1000

        asked = []
        for number in range(count):
            time.sleep(chance.expovariate(PER_SECOND))
            asked.append(pool.submit(ask, number))
        latencies = sorted(answer.result() for answer in asked)
    return statistics.median(latencies), latencies[-(-count * 99 // 100) - 1]
