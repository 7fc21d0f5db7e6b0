"""`CachedPasses`: every request alone, with transformers' own cache, as `generate` computes it.

For models that the paged cache cannot hold. The scheduler's blocks are only counted. A request whose cache is
not at the chunk's start, after a failed step, is computed anew from its first token on.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.generation.utils import ALL_CACHE_NAMES

from engine.model.lora_layers import Adapters
from engine.runner.input_builder import PackedRow, PromptLogitRows, sampling_first
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

PROBE_TOKENS = 11
"""No dimension of a cache is likely to have this size, unless it is that of the tokens."""


@dataclass(frozen=True, slots=True)
class _RequestCache:
    state: Mapping[str, Any]
    """The cache, under the name of the argument of the model's forward."""
    blocks: list[int]
    """The sequence's list; with another one it was preempted since."""
    length: int


class CachedPasses:
    def __init__(self, network: PreTrainedModel, adapters: Adapters, *, whole_prompts: bool = False) -> None:
        self._network: Any = network
        self._settings = GenerationConfig()  # type: ignore[no-untyped-call]
        self._adapters = adapters
        self._whole_prompts = whole_prompts
        self._parameters = inspect.signature(network.forward).parameters
        self._caches: WeakKeyDictionary[TokenSequence, _RequestCache] = WeakKeyDictionary()

    def logits(self, plan: SchedulerOutput, prompt_rows: Sequence[PromptLogitRows]) -> Tensor:
        """Logits `[rows, vocabulary]`: of last tokens, in `sampling_first`'s order, then of `prompt_rows`."""
        for sequence, cache in list(self._caches.items()):
            if sequence.blocks is not cache.blocks:
                del self._caches[sequence]
        pieces = whole_prompt if self._whole_prompts else lambda chunk: [chunk]
        logits = {}
        for chunk in plan:
            held, compute = self._caches.get(chunk.sequence), self._pass
            current = held is not None and held.length == chunk.start
            logits[chunk.sequence] = compute_chunk(chunk, prompt_rows, compute, pieces, is_current=current)
        return in_plan_order(plan, prompt_rows, logits)

    def _pass(self, chunk: ScheduledChunk, rows: Sequence[PromptLogitRows]) -> Tensor:
        """Logits of the last token, and of `rows`. A model that has no cache computes all anew."""
        sequence, end = chunk.sequence, chunk.start + chunk.count
        cache = self._caches.pop(sequence, None)  # gone if the pass fails
        if cache is None or not chunk.start:
            chunk, rows, cache = *from_start(chunk, rows), None
        row = PackedRow((chunk,), (chunk,), rows, self._adapters.indexes)
        row.send(self._network.device)
        inputs = row.inputs(None)
        self._adapters.step = inputs.adapters
        state = self._new_state() if cache is None else cache.state
        outputs = self._network(**self._arguments(sequence.tokens[:end], chunk.start, state, inputs.ends))
        states = {name: outputs[name] for name in ALL_CACHE_NAMES if outputs.get(name) is not None}
        logits: Tensor = outputs.logits[0]
        if len(logits) != len(inputs.ends):
            logits = logits.index_select(0, inputs.ends)
        if states:
            self._caches[sequence] = _RequestCache(states, sequence.blocks, end)
        return logits

    def _new_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        self._network._prepare_cache_for_generation(self._settings, state, None, 1, 0)
        return state

    def _arguments(
        self, tokens: Sequence[int], start: int, state: Mapping[str, Any], ends: Tensor
    ) -> dict[str, Any]:
        """The arguments that `generate` would pass."""
        token_ids = torch.tensor([tokens], device=self._network.device)
        arguments: dict[str, Any] = {**state, "use_cache": True}
        if "position_ids" in self._parameters:
            seen = {**state, "attention_mask": torch.ones_like(token_ids)}
            arguments["position_ids"] = self._network._prepare_position_ids_for_generation(token_ids, seen)
        if "attention_mask" in self._parameters:
            arguments["attention_mask"] = None  # nothing is padded
        arguments = self._network.prepare_inputs_for_generation(
            token_ids, next_sequence_length=len(tokens) - start, is_first_iteration=start == 0, **arguments
        )
        if "logits_to_keep" in self._parameters:
            arguments["logits_to_keep"] = ends
        return {**arguments, "return_dict": True}

    def token_bytes(self) -> tuple[int, int]:
        """The bytes of a cache a token, and those that do not grow; runs a short prompt."""
        with torch.inference_mode():
            last = torch.tensor([PROBE_TOKENS - 1], device=self._network.device)
            outputs = self._network(**self._arguments([1] * PROBE_TOKENS, 0, self._new_state(), last))
        growing = fixed = 0
        for tensor in _tensors([outputs[name] for name in ALL_CACHE_NAMES if outputs.get(name) is not None]):
            if PROBE_TOKENS in tensor.shape:
                growing += tensor.nbytes // PROBE_TOKENS
            else:
                fixed += tensor.nbytes
        return growing, fixed


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif type(value).__module__.startswith("transformers.") and not isinstance(value, PreTrainedConfig):
        yield from _tensors(getattr(value, "__dict__", {}))


def compute_chunk(
    chunk: ScheduledChunk,
    prompt_rows: Sequence[PromptLogitRows],
    compute: Callable[[ScheduledChunk, Sequence[PromptLogitRows]], Tensor],
    pieces: Callable[[ScheduledChunk], Sequence[ScheduledChunk]],
    *,
    is_current: bool,
) -> Tensor:
    """Logits of the chunk's last token and then of its prompt rows, which must be in its first piece.

    `compute` runs a plan of one piece. Unless `is_current`, all tokens before the chunk are computed anew.
    """
    rows = [replace(rows, chunk=0) for rows in prompt_rows if rows.sequence is chunk.sequence]
    if not is_current:
        chunk, rows = from_start(chunk, rows)
    first, *others = pieces(chunk)
    logits = compute(first, rows)
    for piece in others:
        logits = torch.cat((compute(piece, ()), logits[1:]))
    return logits


def from_start(
    chunk: ScheduledChunk, rows: Sequence[PromptLogitRows]
) -> tuple[ScheduledChunk, list[PromptLogitRows]]:
    """The chunk with all tokens before it."""
    start, end = chunk.start, chunk.start + chunk.count
    shifted = [replace(r, places=range(r.places.start + start, r.places.stop + start)) for r in rows]
    return ScheduledChunk(chunk.sequence, 0, end), shifted


def whole_prompt(chunk: ScheduledChunk) -> list[ScheduledChunk]:
    """The prompt whole and each generated token alone, as they were first computed."""
    request = chunk.sequence.request
    return cut_at(chunk, range(len(request.prompt) - request.output_offset, chunk.start + chunk.count))


def cut_at(chunk: ScheduledChunk, places: Iterable[int]) -> list[ScheduledChunk]:
    end = chunk.start + chunk.count
    cuts = [chunk.start, *(place for place in places if chunk.start < place < end), end]
    return [ScheduledChunk(chunk.sequence, start, stop - start) for start, stop in pairwise(cuts)]


def in_plan_order(
    plan: SchedulerOutput, prompt_rows: Sequence[PromptLogitRows], logits: Mapping[TokenSequence, Tensor]
) -> Tensor:
    """`logits` has, for each sequence, the row of its last token and then those of its prompt rows."""
    last = [logits[chunk.sequence][:1] for chunk in sampling_first(plan)]
    return torch.cat([*last, *(logits[rows.sequence][1:] for rows in prompt_rows)])
