"""One process of a model that is spread over several ends: that is the engine's death, at once."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.engine import load
from engine.messages import Failed, JobRefused
from tests.support.engines import Bench, Listener, make_job, make_prompt, save_random_model
from tests.support.eventually import eventually
from tests.unit.engine.test_architectures import EXPERTS, WINDOW
from tests.unit.engine.test_ranks import check_tokens, processes_of, started

SOON = 5.0
"""Seconds; without being told, the engine would wait five minutes."""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("LlamaConfig", {}),
        ("Qwen2Config", {}),
        ("MistralConfig", WINDOW),
        ("Gemma2Config", WINDOW),
        ("MixtralConfig", {**WINDOW, "num_local_experts": 4}),
        ("Qwen3MoeConfig", {**EXPERTS, "num_experts": 4, "hidden_size": 64}),
        ("GptOssConfig", {**WINDOW, **EXPERTS, "num_local_experts": 4, "experts_per_token": 2}),
    ],
)
def test_other_kinds_of_models_have_the_tokens_of_one_process_too(
    config: str, settings: dict[str, Any]
) -> None:
    # gpt-oss's plan gives each process experts of its own, and every one the whole attention.
    check_tokens(config, shares_heads=config != "GptOssConfig", **settings)


@pytest.mark.parametrize("busy", [True, False], ids=["in a step", "idle"])
def test_a_rank_that_is_killed_is_the_engines_death(busy: bool) -> None:
    deaths: list[str] = []
    listener = Listener()
    config = EngineConfig(
        model=save_random_model("Qwen3Config"), device="cpu", torch_threads=1, kv_blocks=64, tensor_parallel=2
    )
    bench = Bench(load(config, listener, on_dead=deaths.append), listener)
    (other,) = processes_of(bench)
    if busy:
        bench.engine.submit(make_job("a", make_prompt(20), 200))
        listener.wait(lambda: len(listener.of("a")) > 3)
    began = time.monotonic()
    os.kill(other.pid, signal.SIGKILL)
    assert eventually(lambda: deaths)
    if busy:
        last = listener.outcome("a").last
        assert isinstance(last, Failed)
        assert last.code == "engine_dead"
    assert time.monotonic() - began < SOON
    assert not bench.engine.stats().alive
    with pytest.raises(JobRefused):
        bench.engine.submit(make_job("b", make_prompt(20)))
    bench.engine.close(drain=True)


def test_a_step_that_waits_for_a_lost_rank_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, where what a lost rank does not send is awaited without an error."""
    bench = started(save_random_model("Qwen3Config"))
    executor: Any = bench.engine._executor
    for_ever = threading.Event()
    computing = threading.Event()

    def wait(_packed: object) -> None:
        computing.set()
        for_ever.wait()

    monkeypatch.setattr(executor, "_forward", wait)
    bench.engine.submit(make_job("a", make_prompt(20)))
    assert computing.wait(10)
    began = time.monotonic()
    processes_of(bench)[0].kill()
    last = bench.listener.outcome("a").last
    assert isinstance(last, Failed)
    assert "rank 1" in last.message
    assert time.monotonic() - began < SOON
    for_ever.set()
    bench.engine.close(drain=True)
