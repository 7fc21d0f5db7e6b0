"""`StatePasses`: models with states (linear attention, Mamba, convolutions) beside the paged cache.

A step is one pass `[B, 1]` for all requests that generate, whose states lie side by side, and a pass for each
chunk of a prompt. A request whose state is not at the chunk's start, after a failed step, is computed anew
from its first token on; preemption loses the state as it loses the blocks. States after the last whole block
of each prompt and of its output are kept for requests with the same prefix.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from engine.attention.paged_attention import attending
from engine.model.lora_layers import Adapters
from engine.model.state_layers import PagedLayer, PagedStateLayer
from engine.prefix_states import PrefixStates
from engine.runner.cached_passes import compute_chunk, cut_at, in_plan_order, whole_prompt
from engine.runner.input_builder import ForwardInputs, InputBuilder, PagedInputBuilder, PromptLogitRows
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

LOST = -1
"""The length of a state that a failed pass may have left half written."""

PARTS = ("conv_states", "recurrent_states")


class StateSlots:
    """For each request a row of every state tensor. A cache is a view of neighbouring rows."""

    def __init__(self, template: Cache, rows: int) -> None:
        """`template` is a cache after a pass of one sequence."""
        self._template = template.layers
        self._rows: list[tuple[TokenSequence, list[int]] | None] = [None] * rows
        """Each row's sequence and its block list; with another one the sequence was preempted since."""
        self.lengths = [LOST] * rows
        self._states = [
            {(part, n): tensor.new_zeros(rows, *tensor.shape[1:]) for part, n, tensor in states_of(layer)}
            for layer in template.layers
        ]

    def place(
        self, plan: SchedulerOutput, before: Callable[[ScheduledChunk], Sequence[Tensor] | None]
    ) -> None:
        """Frees the rows of requests that have ended or were preempted, and gives new ones a row.

        It has the states that are kept after the tokens before the chunk, or else zeros.
        """
        for row, held in enumerate(self._rows):
            if held is not None and held[0].blocks is not held[1]:
                self._rows[row] = None
        placed = {held[0] for held in self._rows if held is not None}
        for chunk in plan:
            if chunk.sequence not in placed:
                row = self._rows.index(None)
                self._rows[row] = chunk.sequence, chunk.sequence.blocks
                states = before(chunk)
                self.lengths[row] = 0 if states is None else chunk.start
                for n, tensor in enumerate(self._tensors()):
                    tensor[row] = 0 if states is None else states[n]

    def copy(self, row: int) -> list[Tensor]:
        return [tensor[row].clone() for tensor in self._tensors()]

    def row_of(self, sequence: TokenSequence) -> int:
        return next(row for row, held in enumerate(self._rows) if held is not None and held[0] is sequence)

    def arrange(self, sequences: Sequence[TokenSequence]) -> None:
        """Moves the sequences to the first rows, in this order; mostly they are there."""
        for row, sequence in enumerate(sequences):
            held = self._rows[row]
            if held is not None and held[0] is sequence:
                continue
            other = self.row_of(sequence)
            self._rows[row], self._rows[other] = self._rows[other], held
            self.lengths[row], self.lengths[other] = self.lengths[other], self.lengths[row]
            for tensor in self._tensors():
                tensor[[row, other]] = tensor[[other, row]]

    def cache(self, first: int, last: int, seen: int) -> Cache:
        """The cache of these rows, after `seen` tokens; passes write to it in place."""
        layers: list[Any] = []
        for own, states in zip(self._template, self._states, strict=True):
            if not isinstance(own, LinearAttentionLayer):
                layers.append(PagedLayer(seen) if isinstance(own, PagedLayer) else own)
                continue
            count = own.number_of_states
            layer = (
                PagedStateLayer(count, seen)
                if isinstance(own, PagedStateLayer)
                else LinearAttentionLayer(count)
            )
            layer.device, layer.dtype, layer.conv_kernel_size = own.device, own.dtype, own.conv_kernel_size
            for (part, n), tensor in states.items():
                getattr(layer, part)[n] = tensor[first:last]
                getattr(layer, f"is_{part}_initialized")[n] = True
            layer.has_previous_state = dict.fromkeys(range(count), seen > 0)
            layers.append(layer)
        return Cache(layers=layers)

    def _tensors(self) -> list[Tensor]:
        return [tensor for states in self._states for tensor in states.values()]


def states_of(layer: Any) -> list[tuple[str, int, Tensor]]:
    """The state tensors of a layer of a cache, each with the name of its part and its number in it."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return []
    parts: Mapping[str, Mapping[int, Tensor | None]] = {part: getattr(layer, part) for part in PARTS}
    return [(part, n, t) for part, tensors in parts.items() for n, t in tensors.items() if t is not None]


class StatePasses:
    def __init__(
        self,
        network: PreTrainedModel,
        adapters: Adapters,
        builder: InputBuilder | PagedInputBuilder,
        slots: StateSlots,
        block_size: int,
        prefix_states: PrefixStates | None,
        *,
        alone: bool,
    ) -> None:
        """`prefix_states` is None if prompts are computed whole. `alone`: each pass has one request only."""
        self._network = network
        self._adapters = adapters
        self._builder = builder
        self._slots = slots
        self._block_size = block_size
        self._prefix_states = prefix_states
        self._alone = alone

    def logits(self, plan: SchedulerOutput, prompt_rows: Sequence[PromptLogitRows]) -> Tensor:
        """Logits `[rows, vocabulary]`: of last tokens, in `sampling_first`'s order, then of `prompt_rows`."""
        self._slots.place(plan, self._states_before)
        current = {c.sequence: self._slots.lengths[self._slots.row_of(c.sequence)] == c.start for c in plan}
        batch = () if self._alone else plan
        singles = tuple(chunk for chunk in batch if chunk.count == 1 and current[chunk.sequence])
        logits = self._decode(singles, prompt_rows) if singles else {}
        for chunk in plan:
            if chunk.sequence not in logits:
                pieces = whole_prompt if self._prefix_states is None else self._pieces
                logits[chunk.sequence] = compute_chunk(
                    chunk, prompt_rows, self._compute_chunk, pieces, is_current=current[chunk.sequence]
                )
        return in_plan_order(plan, prompt_rows, logits)

    def _pieces(self, chunk: ScheduledChunk) -> list[ScheduledChunk]:
        """The chunk in two where a state is to be kept, unless logits of other tokens are asked for."""
        is_cut = chunk.sequence.request.prompt_logprobs is None
        return cut_at(chunk, [self._border(chunk.sequence)] if is_cut else [])

    def _border(self, sequence: TokenSequence) -> int:
        """The last block border before the sequence's last token."""
        return (len(sequence.tokens) - 1) // self._block_size * self._block_size

    def _digest(self, sequence: TokenSequence, end: int) -> bytes:
        return sequence.block_digests(end // self._block_size, self._block_size)[-1]

    def _states_before(self, chunk: ScheduledChunk) -> Sequence[Tensor] | None:
        if self._prefix_states is None or not chunk.start:
            return None
        states: Sequence[Tensor] | None = self._prefix_states.get(self._digest(chunk.sequence, chunk.start))
        return states

    def _keep(self, sequence: TokenSequence, row: int, end: int) -> None:
        """Keeps a row's states at the last border of the tokens so far; of an output, only its last ones."""
        self._slots.lengths[row] = end
        if self._prefix_states is None or end % self._block_size or end < self._border(sequence):
            return
        self._prefix_states.keep(self._digest(sequence, end), self._slots.copy(row))
        if (before := end - self._block_size) >= len(sequence.request.prompt):
            self._prefix_states.drop(self._digest(sequence, before))

    def _decode(
        self, plan: SchedulerOutput, prompt_rows: Sequence[PromptLogitRows]
    ) -> dict[TokenSequence, Tensor]:
        inputs = self._builder.build(plan)
        order = list(inputs.begin_of)
        self._slots.arrange(order)
        starts = {chunk.sequence: chunk.start for chunk in plan}
        # With a state of zeros, the first token of a request is as any other one.
        logits = self._run(inputs, 0, len(order), max(1, *starts.values()), (len(order), 1))[:, 0]
        for row, sequence in enumerate(order):
            self._keep(sequence, row, starts[sequence] + 1)
        copies = {s: 1 + sum(len(r.places) for r in prompt_rows if r.sequence is s) for s in order}
        return {s: logits[row : row + 1].expand(copies[s], -1) for row, s in enumerate(order)}

    def _compute_chunk(self, chunk: ScheduledChunk, rows: Sequence[PromptLogitRows]) -> Tensor:
        inputs = self._builder.build((chunk,), rows)
        row = self._slots.row_of(chunk.sequence)
        logits = self._run(inputs, row, row + 1, chunk.start, (1, chunk.count))[0]
        self._keep(chunk.sequence, row, chunk.start + chunk.count)
        return logits

    def _run(self, inputs: ForwardInputs, first: int, last: int, seen: int, shape: tuple[int, int]) -> Tensor:
        """Logits `[rows, tokens, vocabulary]`: of all rows with one token each, or of a chunk's `ends`."""
        self._slots.lengths[first:last] = [LOST] * (last - first)
        self._adapters.step = inputs.adapters
        with attending(inputs.attention):
            logits: Tensor = self._network(
                input_ids=inputs.token_ids.view(shape),
                position_ids=inputs.positions.view(shape),
                past_key_values=self._slots.cache(first, last, seen),
                use_cache=True,
                logits_to_keep=1 if shape[0] > 1 else inputs.ends,
            ).logits
        return logits
