"""`fuse_layers`: decoder layers of the common shape in few operations, with the same bits.

A layer of Llama, Mistral, Qwen 2 and 3 and many others is norm, attention, norm, gated MLP. transformers
computes it in some sixty operations of Python, which dominate steps of few rows. Here queries and keys are
turned together, in place where nothing else reads it, and attention is called directly. Whether a layer has
this shape is tried: both forms compute one pass, and where one bit differs the layer stays as it is.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import PreTrainedModel

from engine.attention.paged_attention import LayerCall, ProbeForward, attending, current_step
from engine.model.prepacked_linear import FusedLinear

log = logging.getLogger(__name__)

PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
"""The children of a decoder layer of the common shape."""

Forward = Callable[..., Any]


class Rotation:
    """Rotary embedding of the positions of one pass, shared by all layers."""

    def __init__(self) -> None:
        self._sine: Tensor | None = None
        self._factors: tuple[Tensor, Tensor] | None = None

    def factors(self, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        """`[1, T, size]` twice -> `[T, 1, size]` twice, the sine with the signs of a half that is turned."""
        if self._factors is None or sine is not self._sine:
            half = sine.shape[-1] // 2
            signed = torch.cat((-sine[..., :half], sine[..., half:]), dim=-1)
            self._sine = sine
            self._factors = cosine.flatten(0, 1)[:, None], signed.flatten(0, 1)[:, None]
        return self._factors


def _norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """A root mean square norm in few operations, in the order of transformers'."""
    weight, epsilon = norm.weight, norm.variance_epsilon

    def compute(hidden: Tensor) -> Tensor:
        wide = hidden.float()
        mean = wide.pow(2).mean(-1, keepdim=True)
        return wide.mul_(mean.add_(epsilon).rsqrt_()).to(hidden.dtype).mul_(weight)

    return compute


def _head_norm(attention: Any, heads: int, shared: int) -> Callable[[Tensor], Tensor] | None:
    """The norms of queries and keys as one of all their heads, if there are any."""
    if not hasattr(attention, "q_norm"):
        return None
    query, key = attention.q_norm, attention.k_norm
    weights = (query.weight.expand(heads, -1), key.weight.expand(shared, -1))
    both = nn.Module()
    both.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    both.variance_epsilon = query.variance_epsilon
    return _norm(both)


def _mlp(mlp: Any) -> Callable[[Tensor], Tensor]:
    """A gated MLP as one product, its activation and another product; one of another shape as it is."""
    gate, up = getattr(mlp, "gate_proj", None), getattr(mlp, "up_proj", None)
    if not (isinstance(gate, FusedLinear) and isinstance(up, FusedLinear)):
        return mlp  # type: ignore[no-any-return]
    product, width, down = gate.product.whole, gate.out_features, mlp.down_proj

    def compute(hidden: Tensor) -> Tensor:
        both = product(hidden)
        return down(silu(both[..., :width]).mul_(both[..., width:]))  # type: ignore[no-any-return]

    return compute


def _fused_forward(layer: Any, rotation: Rotation, call: LayerCall) -> Forward:
    """The layer's forward; `call` is how it calls attention."""
    attention = layer.self_attn
    product, output = attention.q_proj.product.whole, attention.o_proj
    heads, shared, size = call.query.shape[1], call.key.shape[1], call.key.shape[2]
    first_norm, second_norm = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
    head_norm, mlp = _head_norm(attention, heads, shared), _mlp(layer.mlp)
    original = partial(type(layer).forward, layer)
    turned_heads, half = heads + shared, size // 2

    def forward(hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        step = current_step.get()
        own = named.get("past_key_values"), named.get("attention_mask")
        if step is None or others or own != (None, None):
            return original(hidden_states, *others, **named)  # type: ignore[no-any-return]
        rows = product(first_norm(hidden_states)).view(-1, turned_heads + shared, size)
        turned = rows[:, :turned_heads]
        if head_norm is not None:
            turned = head_norm(turned)
        cosine, sine = rotation.factors(*named["position_embeddings"])
        turned = (turned * cosine).add_(turned.roll(half, -1).mul_(sine))
        attended = step.attend(
            LayerCall(
                call.layer,
                turned[:, :heads],
                turned[:, heads:],
                rows[:, turned_heads:],
                call.scale,
                call.window,
                call.sinks,
                call.softcap,
            )
        )
        hidden = output(attended.reshape(*hidden_states.shape[:-1], -1)).add_(hidden_states)
        added: Tensor = mlp(second_norm(hidden))
        return added.add_(hidden)

    return forward


def _are_equal(call: LayerCall, other: LayerCall) -> bool:
    pairs = ((call.query, other.query), (call.key, other.key), (call.value, other.value))
    return all(torch.equal(*pair) for pair in pairs)


def _try(layer: Any, rotation: Rotation, fused: list[Any], *arguments: Any, **named: Any) -> Any:
    """Computes a pass of the layer in both forms, and gives it the fused one if it has the same bits."""
    expected_calls, calls = ProbeForward(), ProbeForward()
    with attending(expected_calls):
        expected = type(layer).forward(layer, *arguments, **named)
    try:
        (call,) = expected_calls.calls.values()
        forward = _fused_forward(layer, rotation, call)
        with attending(calls):
            output = forward(*arguments, **named)
        if torch.equal(expected, output) and _are_equal(call, *calls.calls.values()):
            fused.append((layer, forward))
    except Exception as error:  # noqa: BLE001 - another shape fails in one way or another
        log.debug("%s is not fused: %r", type(layer).__name__, error)
    return expected


def fuse_layers(network: PreTrainedModel, context_length: int) -> None:
    """Gives decoder layers of the common shape a forward of few operations.

    Only with packed weights in bfloat16 on a CPU, and not where adapters are to be added to the layers. The
    first and the last positions are tried: some models scale late queries.
    """
    rotation = Rotation()
    fused: list[Any] = []
    tried = [
        layer
        for layer in network.modules()
        if {name for name, _ in layer.named_children()} == PARTS
        and isinstance(getattr(layer.self_attn, "q_proj", None), FusedLinear)
    ]
    if not tried:
        return
    for layer in tried:
        layer.forward = partial(_try, layer, rotation, fused)
    places = torch.tensor([[0, 1, context_length // 2, context_length - 1]])
    try:
        with torch.inference_mode():
            network(input_ids=torch.ones_like(places), position_ids=places, use_cache=False)
    except Exception as error:  # noqa: BLE001 - whatever an architecture raises, it is computed as it is
        log.debug("layers are not fused: %r", error)
        fused.clear()
    for layer in tried:
        del layer.forward
    for layer, forward in fused:
        layer.forward = forward
    log.info("%d of %d layers of the common shape are computed in few operations", len(fused), len(tried))
