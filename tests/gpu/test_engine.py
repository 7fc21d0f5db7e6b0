"""The engine on a GPU gives what it gives on a CPU, many requests at once, in the memory that it may take.

Not run by `make test`, which asks for no device. Here nothing is compared with other numbers than the
CPU's in float32, because in bfloat16 two right answers may differ.
"""

import warnings
from collections.abc import Callable

import pytest
import torch

from engine.request import Failed
from tests.support.engines import Bench, make_prompt, make_request, save_random_model, start_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

Start = Callable[..., Bench]


@pytest.fixture(scope="module", params=["Qwen3Config", "GptOssConfig", "Gemma2Config", "DeepseekV3Config"])
def start(request: pytest.FixtureRequest) -> Start:
    """A plain model, one with sinks and experts, one with capped scores, one with values of another size."""
    path = save_random_model(
        request.param,
        sliding_window=12,
        num_local_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        **(DEEPSEEK if request.param == "DeepseekV3Config" else {}),
    )
    return lambda **settings: start_model(path, **settings)


DEEPSEEK = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4, "moe_intermediate_size": 24,
}  # fmt: skip


def tokens_of(bench: Bench, count: int) -> list[list[int]]:
    requests = [make_request(str(n), make_prompt(5 + 4 * n, n), 20) for n in range(count)]
    outcomes = bench.run(*requests)
    bench.engine.close(drain=True)
    assert not any(isinstance(outcome.last, Failed) for outcome in outcomes)
    return [outcome.tokens for outcome in outcomes]


def test_greedy_tokens_are_those_of_the_cpu(start: Start) -> None:
    settings = {"token_budget": 24, "max_running": 4}
    expected = tokens_of(start(device="cpu", **settings), 6)
    assert tokens_of(start(device="cuda", **settings), 6) == expected


def test_thirty_two_requests_at_once_give_what_each_gives_alone(start: Start) -> None:
    together = tokens_of(start(device="cuda"), 32)
    assert together == tokens_of(start(device="cuda", max_running=1), 32)


def test_bfloat16_ends_every_request(start: Start) -> None:
    assert [len(tokens) for tokens in tokens_of(start(device="cuda", dtype="bfloat16"), 32)] == [20] * 32


def test_the_cache_is_made_to_fit_what_is_free() -> None:
    path = save_random_model("Qwen3Config", num_hidden_layers=2)
    free = torch.cuda.mem_get_info()[0]
    bench = start_model(path, device="cuda", kv_blocks=None)
    stats = bench.engine.stats()
    assert stats.kv_blocks_total >= 32 * 256 // 16
    assert torch.cuda.mem_get_info()[0] > free // 10
    bench.engine.close(drain=True)


def test_a_step_waits_for_the_device_only_where_tokens_are_read() -> None:
    """In a step that generates greedily: the ids, and whether they are numbers."""
    bench = start_model(save_random_model("Qwen3Config", num_hidden_layers=2), device="cuda")
    bench.run(make_request("warm", make_prompt(20), 4))
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            steps = bench.engine.stats().steps
            bench.run(make_request("a", make_prompt(20, 1), 30))
            steps = bench.engine.stats().steps - steps
        finally:
            torch.cuda.set_sync_debug_mode("default")
    bench.engine.close(drain=True)
    assert len([wait for wait in waits if "synchroniz" in str(wait.message)]) <= 2 * steps
