"""`ImageEncoder`: runs a model's vision tower, and computes the rotary positions of prompts with pictures.

Engine thread. Works for every model of transformers with `get_image_features`; models with positions in three
dimensions (time, height, width) have `get_rope_index`, too.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A picture as the language model takes it: one row for each placeholder token."""

    embeddings: Tensor
    """`[n, hidden]`."""
    deepstack: tuple[Tensor, ...] = ()
    """`[n, hidden]` each: added to the output of the first layers, one each (Qwen3-VL)."""


@dataclass(frozen=True, slots=True)
class RopePositions:
    """Rotary positions of a prompt with pictures."""

    prompt: Tensor
    """`[3, tokens]`."""
    delta: int
    """What is added to the index of a token after the prompt."""


class ImageEncoder:
    """The vision side of a network that transformers loaded."""

    def __init__(self, network: PreTrainedModel) -> None:
        config = network.config
        self._network = network
        self._model = network.model
        self._device = network.device
        self._takes = frozenset(inspect.signature(self._model.get_image_features).parameters)
        self.placeholder_id: int = config.image_token_id
        """The token whose embedding is replaced."""

    @property
    def has_3d_positions(self) -> bool:
        return hasattr(self._model, "get_rope_index")

    def encode(self, tensors: Mapping[str, Tensor]) -> EncodedImage:
        """`tensors` are those of one `ProcessedImage`."""
        arguments = {name: value.to(self._device) for name, value in tensors.items() if name in self._takes}
        output = self._model.get_image_features(**arguments, return_dict=True)
        layers = getattr(output, "deepstack_features", None) or ()
        return EncodedImage(_rows(output.pooler_output), tuple(map(_rows, layers)))

    def rope_positions(
        self, token_ids: Sequence[int], images: Sequence[Mapping[str, Tensor]]
    ) -> RopePositions | None:
        """None if the model numbers its tokens in one dimension. `images` are in the prompt's order."""
        if not self.has_3d_positions:
            return None
        prompt = torch.tensor([token_ids])
        grids = torch.cat([tensors["image_grid_thw"] for tensors in images])
        is_image = (prompt == self.placeholder_id).long()
        positions, deltas = self._model.get_rope_index(prompt, is_image, image_grid_thw=grids)
        return RopePositions(positions[:, 0], int(deltas[0, 0]))


def _rows(features: Tensor | Sequence[Tensor]) -> Tensor:
    """`[n, hidden]` from one tensor of any shape or several, as models return the parts of a picture."""
    parts = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
