"""A model spread over two processes: here by gloo over CPUs, on GPUs by NCCL."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import ModelRefused
from tests.support.engines import Bench, make_job, make_prompt, save_random_model, start_model
from tests.unit.engine.test_architectures import generate

LISTENS = "0A"
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1 in the kernel's tables."""
SOON = 5.0
"""Seconds; without being told, the engine would wait five minutes."""


def started(model: Path, **settings: Any) -> Bench:
    return start_model(model, tensor_parallel=2, token_budget=24, max_running=4, **settings)


def processes_of(bench: Bench) -> list[subprocess.Popen[bytes]]:
    executor: Any = bench.engine._executor
    return list(executor._ranks._processes)


def test_greedy_tokens_equal_those_of_one_process_and_no_process_is_left() -> None:
    check_tokens("Qwen3Config")


def listening(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, on which a process takes connections."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in links:
                found.add(fields[1].partition(":")[0])
    return found


def check_tokens(config: str, *, shares_heads: bool = True, **settings: Any) -> None:
    """Those of two processes are those of `generate`; no process is left behind."""
    model = save_random_model(config, **settings)
    reference: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    bench = started(model)
    (other,) = processes_of(bench)
    executor: Any = bench.engine._executor
    assert listening(os.getpid()) | listening(other.pid) <= LOOPBACK
    heads = reference.config.num_key_value_heads
    assert executor._store.keys[0].shape[1] == (heads // 2 if shares_heads else heads)
    prompts = [make_prompt(length, length) for length in (5, 13, 29, 50, 7, 31)]
    # More jobs than may run, their prompts in chunks; some tell of their prompts, too.
    jobs = [make_job(str(n), p, 14, prompt_logprobs=1 if n % 2 else None) for n, p in enumerate(prompts)]
    outcomes = bench.run(*jobs)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert outcome.tokens == generate(reference, prompt, 14)
    second_turn = prompts[3] + outcomes[3].tokens + make_prompt(9, 4)
    (outcome,) = bench.run(make_job("second turn", second_turn, 10))
    assert outcome.last.usage.cached == 48
    assert outcome.tokens == generate(reference, second_turn, 10)
    bench.engine.close(drain=True)
    assert other.returncode == 0


def test_a_model_whose_shards_nobody_has_tried_is_refused_by_name() -> None:
    with pytest.raises(ModelRefused, match="gpt2 is not spread over GPUs"):
        started(save_random_model("GPT2Config"))


def test_weights_of_few_bits_are_refused(tmp_path: Path) -> None:
    settings = json.loads((save_random_model("Qwen3Config") / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelRefused, match="few bits"):
        started(tmp_path)


def test_a_model_whose_heads_cannot_be_shared_evenly_is_refused() -> None:
    with pytest.raises(ModelRefused, match="num_key_value_heads is 1"):
        started(save_random_model("LlamaConfig", num_attention_heads=4, num_key_value_heads=1))
