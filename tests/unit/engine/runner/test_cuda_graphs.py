"""Recording static steps: what is recorded is checked, and what cannot be is explained and left.

There is no recording without a GPU; the recorders here keep what they are given, or spoil it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.sdpa import GatherSdpaBackend
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.model.loader import load_model
from engine.runner.cuda_graphs import GraphReplay, capture_graphs, choose_buckets
from engine.runner.static_decode import GraphBucket, StaticInputs
from tests.support.engines import save_random_model
from tests.support.host_reads import load_without_numbers

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHAPES = choose_buckets(8, 128, 16, gathers=False)


def make_buffers(config_name: str = "Qwen3Config", device: str = "cpu") -> StaticInputs:
    return make_buffers_and_cache(config_name, device)[0]


def make_buffers_and_cache(config_name: str, device: str) -> tuple[StaticInputs, KVCache]:
    path = save_random_model(config_name, num_hidden_layers=2, sliding_window=12, **EXPERTS)
    # Experts are computed by other operations, which a GPU has in bfloat16 only.
    dtype = "float32" if device == "cpu" else "bfloat16"
    config = EngineConfig(model=path, device="cpu", dtype=dtype, torch_threads=1)  # type: ignore[arg-type]
    model = load_model(config, lambda _line: None) if device == "cpu" else load_without_numbers(config)
    store = KVCache([layer.kv_shape for layer in model.layers], 32, 16, model.dtype, model.device)
    return StaticInputs(model.network, store, GatherSdpaBackend(), max(SHAPES)), store


@pytest.fixture(autouse=True)
def _as_on_the_engine_thread() -> Any:
    with torch.inference_mode():
        yield


def record_well(act: Callable[[], Tensor]) -> GraphReplay:
    """Has the result in one place, as a recording does."""
    place = act().clone()
    return lambda: place.copy_(act())


def test_a_replay_reads_what_the_buffers_hold_by_then() -> None:
    buffers = make_buffers()
    compute = capture_graphs(buffers, SHAPES, record_well)
    assert compute is not None
    assert not buffers.inputs.any()
    for token in (5, 9):
        buffers.inputs[0] = token
        for shape in SHAPES:
            assert torch.equal(compute(shape), buffers.compute(shape))


def test_the_largest_shape_is_recorded_first() -> None:
    rows: list[int] = []

    def record(act: Callable[[], Tensor]) -> GraphReplay:
        rows.append(len(act()))
        return record_well(act)

    assert capture_graphs(make_buffers(), SHAPES, record) is not None
    assert rows == [8, 4, 2, 1]


def test_a_replay_of_what_was_computed_once_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    def record(act: Callable[[], Tensor]) -> GraphReplay:
        once = act().clone()
        return lambda: once

    assert capture_graphs(make_buffers(), SHAPES, record) is None
    (line,) = caplog.messages
    assert "8 rows over 8 blocks: logits differ" in line


def test_a_replay_of_no_numbers_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    def record(act: Callable[[], Tensor]) -> GraphReplay:
        return lambda: act() * float("nan")

    assert capture_graphs(make_buffers(), SHAPES, record) is None
    assert "logits differ" in caplog.text


def test_a_model_that_cannot_be_recorded_is_explained_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def record(_act: Callable[[], Tensor]) -> GraphReplay:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    buffers = make_buffers()
    assert capture_graphs(buffers, SHAPES, record) is None
    (line,) = caplog.messages
    assert "operation not permitted when stream is capturing" in line
    assert not buffers.inputs.any()


def test_the_check_writes_into_the_spare_block_only() -> None:
    buffers, cache = make_buffers_and_cache("Qwen3Config", "cpu")
    assert capture_graphs(buffers, SHAPES, record_well) is not None
    keys, _ = cache.blocks_of(0)
    assert keys[buffers.spare_block].any()
    assert not keys[: buffers.spare_block].any()


@pytest.mark.parametrize("config_name", ["Qwen3Config", "GptOssConfig", "MixtralConfig", "Gemma2Config"])
def test_a_pass_asks_the_host_for_nothing(config_name: str) -> None:
    """On the device that has no numbers, whatever depends on one, or is made on the host, raises."""
    buffers = make_buffers(config_name, "meta")
    for shape in (GraphBucket(1, 8), GraphBucket(8, 8)):
        logits = buffers.compute(shape)
        assert (logits.shape[0], logits.device.type) == (shape.rows, "meta")
