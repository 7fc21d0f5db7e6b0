"""Requests are read side by side or gathered from their blocks; their tokens do not show which."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.kv_cache import (
    ContiguousBuffer,
    ContiguousKVCache,
    KVCache,
    LayerShape,
)
from engine.scheduling.scheduler import ScheduledChunk
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import Bench, make_prompt, make_request, save_random_model, start_model

JOBS = [make_request(str(n), make_prompt(7 + 29 * n, n), 6 + 16 * n) for n in range(6)]
SHAPES = [LayerShape(2, 4, 3)] * 2


@pytest.fixture(scope="module", params=["Qwen3Config", "GptOssConfig", "Gemma2Config"])
def start(request: pytest.FixtureRequest) -> Callable[[], Bench]:
    """A plain model, one with windows and sinks, one with windows and capped scores."""
    path = save_random_model(
        request.param, sliding_window=12, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2
    )
    return lambda: start_model(path)


@pytest.mark.parametrize("room", [0, 200, 400], ids="room for {} tokens".format)
def test_tokens_are_the_same_however_few_find_a_row(start: Callable[[], Bench], room: int) -> None:
    whole, scarce = start(), start()
    executor: Any = scarce.executor
    executor._input_builder._contiguous_cache._max_tokens = room
    expected = [outcome.tokens for outcome in whole.run(*JOBS)]
    assert [outcome.tokens for outcome in scarce.run(*JOBS)] == expected
    for bench in (whole, scarce):
        bench.engine.close(drain=True)


# The books

STORE_BLOCKS, BLOCK = 40, 16


def make_store() -> KVCache:
    """Every slot of it holds its own number."""
    store = KVCache(SHAPES, STORE_BLOCKS, BLOCK, torch.float32, torch.device("cpu"))
    for tensor in (*store.keys, *store.values):
        tensor.add_(torch.arange(len(tensor))[:, None, None])
    return store


def make_chunk(name: int, held: int, blocks: list[int]) -> ScheduledChunk:
    sequence = TokenSequence(make_request(str(name), make_prompt(held + 1, name)))
    sequence.blocks = blocks
    sequence.num_computed_tokens = held
    return ScheduledChunk(sequence, held, 1)


def after(chunk: ScheduledChunk) -> ScheduledChunk:
    return ScheduledChunk(chunk.sequence, chunk.start + 1, 1)


def slots_of(shelf: ContiguousBuffer, row: int) -> list[int]:
    return [int(number) for number in shelf.keys[1][row, :, 0, 0]]


def test_a_row_is_what_the_blocks_hold_and_zero_beyond() -> None:
    shelves = ContiguousKVCache(make_store())
    (((shelf, chunks),), left_out) = shelves.arrange([make_chunk(0, 20, [3, 1])])
    assert (len(chunks), left_out) == (1, [])
    assert slots_of(shelf, 0) == [*range(48, 64), *range(16, 20), *[0] * (shelf.capacity - 20)]


def test_the_last_row_takes_the_place_of_one_that_goes() -> None:
    shelves = ContiguousKVCache(make_store())
    chunks = [make_chunk(n, 3 + n, [n + 1]) for n in range(4)]
    shelves.arrange(chunks)
    (((shelf, now),), _) = shelves.arrange([after(chunks[0]), after(chunks[2]), after(chunks[3])])
    assert [chunk.sequence for chunk in now] == [chunks[n].sequence for n in (0, 3, 2)]
    assert slots_of(shelf, 1)[:6] == [64, 65, 66, 67, 68, 69]


def test_a_row_is_copied_anew_when_its_request_began_again() -> None:
    shelves = ContiguousKVCache(make_store())
    chunk = make_chunk(0, 5, [1])
    shelves.arrange([chunk])
    chunk.sequence.blocks = [2]
    (((shelf, _),), _) = shelves.arrange([chunk])
    assert slots_of(shelf, 0)[:6] == [32, 33, 34, 35, 36, 0]


def test_a_request_moves_to_longer_rows_when_it_has_outgrown_its_own() -> None:
    shelves = ContiguousKVCache(make_store())
    chunk = make_chunk(0, 90, list(range(1, 10)))
    (((shelf, _),), _) = shelves.arrange([chunk])
    for _ in range(60):
        chunk = after(chunk)
        (((shelf, _),), left_out) = shelves.arrange([chunk])
        assert shelf.capacity >= chunk.start + 2
        assert left_out == []
    assert shelf.capacity == 256


def test_shelves_hold_no_more_than_the_store() -> None:
    shelves = ContiguousKVCache(make_store())
    chunks = [make_chunk(n, 10, [n + 1]) for n in range(12)]
    ((shelf, seated),), left_out = shelves.arrange(chunks)
    assert shelf.rows * shelf.capacity <= (STORE_BLOCKS + 1) * BLOCK
    assert len(seated) == 5
    assert left_out == chunks[5:]
    # The rows of a shelf that nobody is on are given to another.
    ((longer, _),), left_out = shelves.arrange([make_chunk(20, 150, list(range(1, 12)))])
    assert longer.capacity == 256
    assert left_out == []
