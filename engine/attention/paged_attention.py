"""`paged_attention`, which transformers' layers call; the protocols of a step and of a paged backend.

Each layer's query, key and value go as a `LayerCall` to the `AttentionStep` of the forward pass. A backend
computes over block tables, of which the host knows all shapes, so that calls can be captured as CUDA graphs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.config import UnsupportedModel
from engine.kv_cache import KVCache, LayerShape

IMPLEMENTATION = "holdfast_paged"
"""The name of `paged_attention` in transformers. It has no mask function there, so models build no mask."""

IGNORED_ARGUMENTS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits"}
)
"""Arguments of models that have no effect in inference here. All others are implemented or refused."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    layer: int
    query: Tensor
    """`[T, heads, size]`."""
    key: Tensor
    """`[T, kv_heads, size]`, as is `value`; sizes of key and value may differ."""
    value: Tensor
    scale: float | None
    window: int | None
    """Sliding window: a token attends to this many tokens, itself included; None is no limit."""
    sinks: Tensor | None
    """`[heads]`: attention sink logits."""
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`."""


class AttentionStep(Protocol):
    """Computes attention in one forward pass; `attending` makes it that of the pass."""

    def attend(self, call: LayerCall) -> Tensor:
        """Returns `[T, heads, value size]`."""


current_step: ContextVar[AttentionStep | None] = ContextVar("current_step", default=None)
"""The step of the forward pass that is running; set by `attending`."""


@contextmanager
def attending(step: AttentionStep | None) -> Iterator[None]:
    """Forward passes in this context attend through the step."""
    token = current_step.set(step)
    try:
        yield
    finally:
        current_step.reset(token)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: `[B, heads, n, size]` in, `[B, n, heads, size]` out.

    The step gets the tokens of all rows as one packed row. Raises `UnsupportedModel` for arguments that are
    not implemented.
    """
    name = type(module).__name__
    unknown = sorted(k for k, v in others.items() if v is not None and k not in IGNORED_ARGUMENTS)
    if unknown:
        raise UnsupportedModel(f"{name} uses attention arguments that are not implemented: {unknown}.")
    if attention_mask is not None:
        raise UnsupportedModel(f"{name} brings an attention mask of its own.")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModel(f"{name} is not causal.")
    step = current_step.get()
    assert step is not None, "a forward pass runs outside of `attending`"
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{name} does not number its layers.")
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    attended = step.attend(LayerCall(layer, q, k, v, scaling, sliding_window, s_aux, softcap))
    return attended.contiguous().view(len(query), -1, *attended.shape[1:]), None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


@dataclass(frozen=True, slots=True)
class LayerAttentionSpec:
    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    sinks: bool
    softcap: float | None

    @classmethod
    def of(cls, call: LayerCall) -> "LayerAttentionSpec":
        (_, heads, _), (_, kv_heads, key_size) = call.query.shape, call.key.shape
        sizes = heads, kv_heads, key_size, call.value.shape[2]
        return cls(*sizes, call.window, call.sinks is not None, call.softcap)

    @property
    def kv_shape(self) -> LayerShape:
        return LayerShape(self.num_kv_heads, self.key_size, self.value_size)


NO_ATTENTION = LayerAttentionSpec(0, 0, 0, 0, None, sinks=False, softcap=None)
"""Stands for a layer without keys and values."""


@dataclass(slots=True)
class ProbeForward:
    """Records how each layer calls attention in a forward pass, whose output is meaningless."""

    calls: dict[int, LayerCall] = field(default_factory=dict)

    def attend(self, call: LayerCall) -> Tensor:
        if call.layer in self.calls:
            raise UnsupportedModel(f"layer {call.layer} attends twice in one pass.")
        self.calls[call.layer] = call
        return call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)

    @property
    def specs(self) -> dict[int, LayerAttentionSpec]:
        return {layer: LayerAttentionSpec.of(call) for layer, call in self.calls.items()}


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Block tables and lengths of the requests of one packed row. All tensors are int32."""

    block_tables: Tensor
    """`[requests, blocks]`, padded with blocks whose content is finite."""
    seq_lens: Tensor
    """`[requests]`: tokens of each request, those of this step (its last ones) included."""
    query_start_loc: Tensor
    """`[requests + 1]`: start of each request's tokens in the packed row, and the row's end."""
    kv_start_loc: Tensor
    """`[requests + 1]`: sums of `seq_lens`, from 0."""
    max_query_len: int
    """Maximum of a request's tokens in this step."""
    max_seq_len: int
    """At least the maximum of `seq_lens`, and the same in every step: kernels divide keys by it."""
    num_single: int = 0
    """Leading requests with one token in this step."""

    def part(self, begin: int, end: int, max_query_len: int) -> "AttentionMetadata":
        """The requests `begin` to `end`, whose tokens keep their places in the packed row."""
        return AttentionMetadata(
            self.block_tables[begin:end],
            self.seq_lens[begin:end],
            self.query_start_loc[begin : end + 1],
            self.kv_start_loc[begin : end + 1],
            max_query_len,
            self.max_seq_len,
            max(min(self.num_single, end) - begin, 0),
        )


class PagedAttentionBackend(Protocol):
    """Attention over keys and values in their blocks, to which the step's own have been written."""

    @property
    def name(self) -> str:
        """For the log and `ModelInfo.attention`."""

    def attend(self, call: LayerCall, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
        """`keys` and `values` are `[blocks, block size, heads, size]`; returns `[T, heads, value size]`."""


@dataclass(frozen=True, slots=True)
class PagedForward:
    """One forward pass over block tables; implements `AttentionStep`."""

    kv_cache: KVCache
    slots: Tensor
    """`[T]`: the slot of each token's key and value."""
    metadata: AttentionMetadata
    backend: PagedAttentionBackend

    def attend(self, call: LayerCall) -> Tensor:
        self.kv_cache.write(call.layer, self.slots, call.key, call.value)
        keys, values = self.kv_cache.blocks_of(call.layer)
        return self.backend.attend(call, keys, values, self.metadata)
