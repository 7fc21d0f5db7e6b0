"""What the process's memory does over 100,000 mixed requests of one engine.

BENCH_REQUESTS is how many there are in place of them.
"""

import ctypes
import gc
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rounds import tell
from engine.config import EngineConfig
from engine.core.local_engine import load
from engine.request import EngineRequest, Failed, Finished, Outbound
from tests.support.engines import make_request
from tests.support.grammars import END, readable_model, schema

REQUESTS = int(os.environ.get("BENCH_REQUESTS", "100000"))
TENTHS = 10
TOGETHER = 64
PAGE = os.sysconf("SC_PAGE_SIZE")
BOOLEAN = {"type": "boolean"}
GOAL = "<=1.02"


class _Waiting:
    """Takes an engine's deliveries and keeps none; lets so many requests run at a time."""

    def __init__(self) -> None:
        self.free = threading.Semaphore(TOGETHER)

    def __call__(self, messages: Sequence[Outbound], /) -> None:
        for message in messages:
            if isinstance(message, Finished | Failed):
                self.free.release()


def run() -> None:
    """Resident memory after each tenth of 100,000 mixed requests ÷ after the second tenth; 15 minutes."""
    waiting, dice = _Waiting(), random.Random(11)  # noqa: S311 - not for secrets
    settings: dict[str, Any] = {"device": "cpu", "torch_threads": 1, "kv_blocks": 512}
    engine = load(EngineConfig(model=readable_model(), **settings), waiting)
    sizes = []
    for tenth in range(TENTHS):
        for number in range(REQUESTS // TENTHS):
            waiting.free.acquire()
            request = _request(f"{tenth}-{number}", dice)
            engine.submit(request)
            if dice.random() < 0.05:
                engine.cancel(request.request_id, "cancelled")
        for _ in range(TOGETHER):
            waiting.free.acquire()
        waiting.free.release(TOGETHER)
        sizes.append(_resident())
        print(
            f"  after {(tenth + 1) * REQUESTS // TENTHS:7d} requests: {sizes[-1] / 2**20:.1f} MiB", flush=True
        )
    engine.close(drain=True)
    tell("memory after each later tenth ÷ after the second", [size / sizes[1] for size in sizes[2:]], GOAL)


def _resident() -> int:
    """Bytes, without what Python and the allocator keep for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _request(request_id: str, dice: random.Random) -> EngineRequest:
    wishes: dict[str, Any] = {"temperature": dice.choice((0.0, 0.7, 1.2)), "seed": dice.randrange(2**31)}
    kind = dice.randrange(8)
    if kind == 0:
        wishes |= {"grammar": schema({"type": "object", "properties": {dice.choice("abcdefgh"): BOOLEAN}})}
    elif kind == 1:
        wishes |= {"logprobs": 3, "prompt_logprobs": 1}
    elif kind == 2:
        wishes |= {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
    elif kind == 3:
        wishes |= {"logit_bias": ((dice.randrange(2, 90), 4.0),), "ignore_eos": True}
    elif kind == 4:
        wishes |= {"top_p": 0.8, "top_k": 20, "cache_salt": str(dice.randrange(50))}
    shared = [dice.randrange(2, 90)] * dice.choice((1, 40))
    own = [dice.randrange(2, 90) for _ in range(dice.randrange(1, 60))]
    return make_request(request_id, shared + own, dice.randrange(1, 12), stop_ids=frozenset({END}), **wishes)
