"""`forward_ways`: how a model may be computed, the fastest way first; each is still to be checked.

- packed: all tokens of a step as one row, through the paged cache;
- states: requests that generate as one batch and each chunk of a prompt alone, with states beside that cache;
- cached: each request alone, with transformers' own cache.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from engine.attention.paged_attention import (
    IMPLEMENTATION,
    NO_ATTENTION,
    LayerAttentionSpec,
    ProbeForward,
    attending,
)
from engine.config import ModelRefused, UnsupportedModel
from engine.model.state_layers import empty_cache, is_common, windows_of

Attention = dict[str, str]
"""The name of the attention function of each part of a model, or of "" for all of it."""


@dataclass(frozen=True, slots=True)
class ForwardWay:
    kind: Literal["packed", "states", "cached"]
    attention: Attention
    layers: Sequence[LayerAttentionSpec] = ()
    """The attention of each layer; empty where it is not through the paged cache."""
    whole_prompts: bool = False
    states: Cache | None = None
    """A cache after two tokens, for the shapes of the states."""
    reason: str = ""
    """Why no faster way is possible."""

    def use(self, network: PreTrainedModel) -> None:
        parts = (part for part in network.modules() if isinstance(part, PreTrainedModel))
        if not any(part._can_set_attn_implementation() for part in parts):
            return  # transformers would only warn
        names: dict[str, str | None] = dict(self.attention)
        network.set_attn_implementation(names.get("", names))  # type: ignore[arg-type]

    def __str__(self) -> str:
        way = {
            "packed": "one packed row",
            "states": "a batch with states beside the KV cache",
            "cached": f"each request alone with transformers' own cache and {self.text_attention} attention",
        }[self.kind]
        return f"{way}, prompts whole" if self.whole_prompts else way

    @property
    def text_attention(self) -> str:
        """The attention function of the language model."""
        return next(reversed(self.attention.values()))


def own_attention(network: PreTrainedModel, implementation: str | None = None) -> Attention:
    """The attention functions that are set, with another one for the language model if it is named."""
    text = network.config.get_text_config()
    chosen = implementation or text._attn_implementation
    if text is network.config:
        return {"": chosen}
    configs = {name: getattr(network.config, name, None) for name in network.config.sub_configs}
    towers = {n: c._attn_implementation for n, c in configs.items() if c is not None and c is not text}
    return {**towers, **{name: chosen for name, config in configs.items() if config is text}}


def forward_ways(network: PreTrainedModel, say: Callable[[Exception], str]) -> list[ForwardWay]:
    """`say` puts an error into a sentence."""
    own, eager = own_attention(network), own_attention(network, "eager")
    paged = ForwardWay("packed", own_attention(network, IMPLEMENTATION))
    ways: list[ForwardWay] = []
    reason = ""
    for kind, probe in (("packed", _probe_packed), ("states", _probe_states)):
        try:
            paged.use(network)
            specs, states = probe(network)
        except Exception as error:  # noqa: BLE001 - whatever an architecture raises, another way may do
            name = type(network).__name__
            sentence = str(error) if isinstance(error, ModelRefused) else say(error)
            reason = reason or f"{name} cannot be run in one packed row: {sentence}"
        else:
            ways.append(ForwardWay(kind, paged.attention, specs, states=states, reason=reason))  # type: ignore[arg-type]
            break
    if ways and ways[0].kind == "states":
        ways.append(replace(ways[0], whole_prompts=True))
    choices = [own] if own == eager else [own, eager]
    layers = DynamicCache(config=network.config).layers
    has_states = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)
    # Some models lose their state before a chunk, by too little to be seen in few bits.
    chunked = all(map(is_common, layers)) and not has_states and not network._is_stateful
    for whole in (False, True) if chunked else (True,):
        ways += [ForwardWay("cached", names, whole_prompts=whole, reason=reason) for names in choices]
    ways[0].use(network)
    return ways


def _probe_packed(network: PreTrainedModel) -> tuple[list[LayerAttentionSpec], None]:
    """Runs two tokens: returns each layer's attention, or raises `UnsupportedModel`."""
    if network._is_stateful:
        raise UnsupportedModel("it keeps a state beside keys and values.")
    if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in empty_cache(network).layers):
        raise UnsupportedModel("it has layers with states.")
    specs = _probe(network, None)
    layers = network.config.get_text_config().num_hidden_layers
    if sorted(specs) != list(range(layers)):
        raise UnsupportedModel(f"of its {layers} layers {len(specs)} attend as they should.")
    return [specs[layer] for layer in range(layers)], None


def _probe_states(network: PreTrainedModel) -> tuple[list[LayerAttentionSpec], Cache]:
    """Runs two tokens through a model with states: returns each layer's attention, and the cache after them.

    Raises `UnsupportedModel`.
    """
    cache = empty_cache(network)
    attention_layers = [n for n, layer in enumerate(cache.layers) if isinstance(layer, CacheLayerMixin)]
    states = [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
    specs = _probe(network, cache)
    if not states or not attention_layers or sorted(specs) != attention_layers:
        raise UnsupportedModel("its layers are not of attention and states.")
    if not all(any(layer.has_previous_state.values()) for layer in states):
        raise UnsupportedModel("a layer keeps its state elsewhere than in transformers' cache.")
    return [specs.get(layer, NO_ATTENTION) for layer in range(len(cache.layers))], cache


def _probe(network: PreTrainedModel, cache: Cache | None) -> dict[int, LayerAttentionSpec]:
    if "logits_to_keep" not in inspect.signature(network.forward).parameters:
        raise UnsupportedModel("it cannot compute the logits of chosen tokens only.")
    step = ProbeForward()
    pair = torch.tensor([[0, 1]], device=network.device)
    cached = {} if cache is None else {"past_key_values": cache}
    with torch.inference_mode(), attending(step):
        network(
            input_ids=pair,
            position_ids=pair,
            use_cache=cache is not None,
            logits_to_keep=torch.tensor([1], device=network.device),
            **cached,
        )
    specs = step.specs
    for layer, window in enumerate(windows_of(network)):
        spec = specs.get(layer)
        if spec is not None and spec.window is None and window is not None:
            raise UnsupportedModel(f"its window of {window} tokens is known to transformers' cache only.")
    return specs


def smallest_window(network: PreTrainedModel, way: ForwardWay) -> int | None:
    windows = [*windows_of(network), *(spec.window for spec in way.layers)]
    return min((window for window in windows if window is not None), default=None)
