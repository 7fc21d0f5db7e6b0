"""The seam to transformers: the registered attention function `paged_attention` and its step protocol.

Engine thread. Each layer of the model calls `paged_attention`, which passes the layer's query, key and value
as a `LayerCall` to the `AttentionStep` of the forward pass.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.config import ModelRefused
from engine.kv.kv_cache import LayerShape

IMPLEMENTATION = "holdfast_paged"
"""The name of `paged_attention` in transformers. No mask function is registered for it, so models build no
mask."""

IGNORED_ARGUMENTS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_router_logits"}
)
"""Arguments of models that have no effect in inference here. All others are implemented or refused."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """The arguments of one layer's attention in one step."""

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
    """Computes attention in one forward pass; passed through the model as the argument `step`."""

    def attend(self, call: LayerCall) -> Tensor:
        """Returns `[T, heads, value size]`."""


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: AttentionStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers: `[1, heads, T, size]` in, `[1, T, heads, size]` out.

    Raises `ModelRefused` for arguments that are not implemented.
    """
    name = type(module).__name__
    unknown = sorted(k for k, v in others.items() if v is not None and k not in IGNORED_ARGUMENTS)
    if unknown:
        raise ModelRefused(f"{name} uses attention arguments that are not implemented: {unknown}")
    if attention_mask is not None:
        raise ModelRefused(f"{name} brings an attention mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise ModelRefused(f"{name} is not causal")
    if step is None:
        raise ModelRefused(f"{name} does not hand arguments on to its attention")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelRefused(f"{name} does not number its layers")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return step.attend(LayerCall(layer, q, k, v, scaling, sliding_window, s_aux, softcap))[None], None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


@dataclass(slots=True)
class ProbeForward:
    """Records the shapes of all layers in a forward pass; its output is meaningless."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)

    def attend(self, call: LayerCall) -> Tensor:
        if call.layer in self.shapes:
            raise ModelRefused(f"layer {call.layer} attends twice in one pass")
        _, heads, size = call.value.shape
        self.shapes[call.layer] = LayerShape(heads, call.key.shape[2], size)
        return call.value.repeat_interleave(call.query.shape[1] // heads, dim=1)
