"""A whole step, from a plan to sampled tokens, on the device without numbers: the host never waits for it."""

from typing import Any

import pytest
import torch

from engine.attention import sdpa
from engine.attention.paged_attention import PagedAttentionBackend
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.model.lora_layers import install_adapters
from engine.runner.model_runner import ModelRunner
from engine.runner.static_decode import GraphBucket, StaticDecoder, StaticInputs
from engine.scheduling.scheduler import ScheduledChunk
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import make_prompt, make_request, save_random_model
from tests.support.host_reads import NoHostReads, load_without_numbers

META = torch.device("meta")
WANTED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.9, "logprobs": 3},
    {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.1},
    {"temperature": 1.0, "min_p": 0.1, "allowed_token_ids": (1, 2, 3, 50)},
    {"temperature": 1.0, "min_tokens": 5, "stop_ids": frozenset({7})},
]


class Kernel:
    """A kernel for pages on the device without numbers."""

    name = "a kernel"

    def attend(self, call: Any, _keys: Any, values: Any, _metadata: Any) -> torch.Tensor:
        query: torch.Tensor = call.query
        return query.new_empty(*query.shape[:2], values.shape[3])


def make_runner(config_name: str, backend: PagedAttentionBackend | None, *, static: bool) -> ModelRunner:
    path = save_random_model(
        config_name, num_hidden_layers=2, sliding_window=12, num_local_experts=4, num_experts_per_tok=2
    )
    # On a GPU, experts are computed by operations that there are in bfloat16 only.
    config = EngineConfig(model=path, device="cpu", dtype="bfloat16", torch_threads=1, pipelined=True)
    model = load_without_numbers(config)
    store = KVCache([layer.kv_shape for layer in model.layers], 16, 16, model.dtype, META)
    decoder = None
    if static:
        inputs = StaticInputs(model.network, store, backend or Kernel(), GraphBucket(8, 8))
        decoder = StaticDecoder(inputs, [GraphBucket(8, 8)], inputs.compute)
    adapters = install_adapters(model.network, (), lambda _line: None)
    return ModelRunner(model, adapters, config, store, backend, decoder)


def make_sequences() -> list[TokenSequence]:
    sequences = []
    for row, fields in enumerate(WANTED):
        sequence = TokenSequence(make_request(str(row), make_prompt(5 + row, row), 20, **fields))
        sequence.blocks = [row + 1]
        sequences.append(sequence)
    return sequences


@pytest.fixture(autouse=True)
def _attention_is_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a fused kernel computes it."""
    monkeypatch.setattr(
        sdpa,
        "scaled_dot_product_attention",
        lambda query, _key, value, **_others: query.new_empty(*query.shape[:-1], value.shape[-1]),
    )


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("backend", [None, Kernel()], ids=["sdpa", "kernel"])
@pytest.mark.parametrize("config_name", ["Qwen3Config", "GptOssConfig"])
def test_pipelined_steps_ask_the_device_for_nothing(
    config_name: str, backend: PagedAttentionBackend | None, static: bool
) -> None:
    """A prefill, a mixed step of tokens in flight and a new prompt, a decode step without one request."""
    runner, sequences = make_runner(config_name, backend, static=static), make_sequences()
    with torch.no_grad(), NoHostReads():
        *old, new = sequences
        prefill = tuple(ScheduledChunk(each, 0, each.length) for each in old)
        runner.begin(prefill).sample(lambda _sequence: True)
        for each in old:
            each.in_flight = True
        decode = [ScheduledChunk(each, each.length - 1, 1) for each in old]
        mixed = (*decode, ScheduledChunk(new, 0, new.length - 2))
        forward = runner.begin(mixed)
        for each in old:
            each.append(1)
        forward.sample(lambda _sequence: True)
        for each in old:
            each.in_flight = True
        forward = runner.begin(tuple(ScheduledChunk(each, each.length - 1, 1) for each in old))
        for each in old:
            each.append(2)
        pending = forward.sample(lambda sequence: sequence is not old[1])
        assert len(pending.read().sampled) == len(old) - 1
    runner.close()
