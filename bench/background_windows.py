"""What 500 background responses with a window of 8h add to the latency of others on the same replica."""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx

from bench.rounds import tell
from bench.stored import running
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

IDLE_RESPONSES = 500
IDLE_TOKENS = 64
REQUESTS = 200
TOKENS = 32
PER_SECOND = 5
"""Arrivals at random moments, some at once, with pauses in which nothing else is to be computed."""
ROUNDS = 3
SETTINGS: Mapping[str, object] = {"torch_threads": 1}


def run() -> None:
    """p99 of short answers beside 500 background responses with a window of 8h, against without them."""
    ratios = []
    with running(SETTINGS) as server:
        _answers(server, 0, 20)
        for turn in range(ROUNDS):
            alone = _answers(server, turn, REQUESTS)
            waiting = _queue(server)
            beside = _answers(server, turn, REQUESTS)
            left = sum(not _has_ended(server, response) for response in waiting)
            eventually(partial(_have_ended, server, waiting), within=600)
            print(
                f"  p50 {alone[0]:.1f} and {beside[0]:.1f} ms, p99 {alone[1]:.1f} and {beside[1]:.1f} ms;",
                end="",
            )
            print(f" {left} of {IDLE_RESPONSES} were left after the load, and all ended")
            ratios.append(beside[1] / alone[1])
    tell("p99 beside background responses ÷ alone", ratios, "<=1.1")


def _queue(server: ServerProcess) -> list[str]:
    body = {
        "model": MODEL,
        "input": "Go on and on.",
        "background": True,
        "ignore_eos": True,
        "max_output_tokens": IDLE_TOKENS,
        "background_options": {"completion_window": "8h"},
    }
    with httpx.Client() as client:
        return [
            str(client.post(f"{server.api}/responses", json=body, timeout=60).json()["id"])
            for _ in range(IDLE_RESPONSES)
        ]


def _have_ended(server: ServerProcess, responses: Sequence[str]) -> bool:
    return all(_has_ended(server, response) for response in responses)


def _has_ended(server: ServerProcess, response: str) -> bool:
    """Whether it has all of its tokens."""
    answer = httpx.get(f"{server.api}/responses/{response}", timeout=60).json()
    return bool(answer["status"] == "incomplete" and answer["usage"]["output_tokens"] == IDLE_TOKENS)


def _answers(server: ServerProcess, seed: int, count: int) -> tuple[float, float]:
    """The median and the 99th percentile of so many answers, in milliseconds."""
    chance = random.Random(seed)  # noqa: S311 - of arrivals
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
    return latencies[count // 2], latencies[count * 99 // 100]
