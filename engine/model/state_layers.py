"""transformers' `Cache` for a pass through the paged cache: states of linear attention, Mamba, convolutions.

Attention layers get their keys and values back as they are, since the paged cache has them.
"""

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicIndexedLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from engine.config import UnsupportedModel


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keeps nothing. `seen` is the number of tokens before those of the pass."""

    def __init__(self, seen: int = 0, **_settings: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1


class PagedStateLayer(LinearAttentionLayer, PagedLayer):  # type: ignore[no-untyped-call, override]
    """A layer that has both a state and attention."""

    is_compileable = False

    def __init__(self, number_of_states: int = 1, seen: int = 0) -> None:
        PagedLayer.__init__(self, seen)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)


def empty_cache(network: PreTrainedModel) -> Cache:
    """A cache without tokens, of layers of the kinds above. Raises `UnsupportedModel` for other kinds."""
    layers: list[Any] = []
    for own in DynamicCache(config=network.config).layers:
        attends = isinstance(own, CacheLayerMixin)
        if not is_common(own):
            raise UnsupportedModel(f"the paged cache cannot hold layers of the kind {type(own).__name__}.")
        if isinstance(own, LinearAttentionCacheLayerMixin):
            layers.append((PagedStateLayer if attends else LinearAttentionLayer)(own.number_of_states))
        else:
            layers.append(PagedLayer() if attends else DummyLayer())  # type: ignore[no-untyped-call]
    return Cache(layers=layers)


def is_common(layer: Any) -> bool:
    """Whether it keeps all keys, those of a window, or a state; others may depend on a prompt's chunks."""
    return type(layer).__module__ == Cache.__module__ and not isinstance(layer, DynamicIndexedLayer)


def windows_of(network: PreTrainedModel) -> list[int | None]:
    """The window of each layer of transformers' own cache; shorter if that has fewer layers."""
    layers = DynamicCache(config=network.config).layers
    return [getattr(layer, "sliding_window", None) for layer in layers]
