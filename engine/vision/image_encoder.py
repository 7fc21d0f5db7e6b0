"""`ImageEncoder`: runs a model's vision tower, and computes the rotary positions of prompts with pictures.

Engine thread. Works for every model of transformers with `get_image_features`; models with positions in three
dimensions (time, height, width) have `get_rope_index`, too.
"""

import inspect
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from engine.config import ModelRefused
from engine.request import PromptImage
from engine.vision.image_processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A picture as the language model takes it: one row for each `image_token_id`."""

    embeddings: Tensor
    """`[n, hidden]`."""
    deepstack: tuple[Tensor, ...] = ()
    """`[n, hidden]` each: added to the output of the first layers, one each (Qwen3-VL)."""

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in (self.embeddings, *self.deepstack))


@dataclass(frozen=True, slots=True)
class RopePositions:
    prompt: Tensor
    """`[3, tokens]`, on the host."""
    delta: int
    """The number that is added to the index of a token after the prompt."""


class ImageEncoder:
    def __init__(self, network: PreTrainedModel) -> None:
        self._model = network.model
        self._device, self._dtype = network.device, network.dtype
        self._takes = frozenset(inspect.signature(self._model.get_image_features).parameters)
        self.image_token_id: int = network.config.image_token_id

    @property
    def has_3d_positions(self) -> bool:
        return hasattr(self._model, "get_rope_index")

    def encode(self, tensors: Mapping[str, Tensor]) -> EncodedImage:
        arguments = {
            name: value.to(self._device, self._dtype if value.is_floating_point() else value.dtype)
            for name, value in tensors.items()
            if name in self._takes
        }
        output = self._model.get_image_features(**arguments, return_dict=True)
        layers = getattr(output, "deepstack_features", None) or ()
        return EncodedImage(_rows(output.pooler_output), tuple(map(_rows, layers)))

    def rope_positions(
        self, token_ids: Sequence[int], images: Sequence[PromptImage], grids: Sequence[Tensor]
    ) -> RopePositions:
        """For models with positions in three dimensions.

        `get_rope_index` gets each picture with the text before it, because it takes two pictures without text
        between them for one. After a picture, positions go on from the highest one.
        """
        prompt = torch.tensor(token_ids)
        parts: list[Tensor] = []
        begin = offset = 0
        for image, grid in zip(images, grids, strict=True):
            part = prompt[begin : image.end]
            is_image = part == self.image_token_id
            is_image[: image.start - begin] = False
            own, _ = self._model.get_rope_index(part[None], is_image[None].long(), image_grid_thw=grid)
            parts.append(own[:, 0] + offset)
            begin, offset = image.end, int(parts[-1].max()) + 1
        rest = torch.arange(offset, offset + len(prompt) - begin)
        return RopePositions(torch.cat([*parts, rest.expand(3, -1)], dim=1), offset - begin)


def check_encoder(network: PreTrainedModel, processor: ImageProcessor) -> None:
    """Encodes one picture. Raises `ModelRefused` unless the model has a row for each token of its text."""
    file = io.BytesIO()
    Image.new("RGB", (96, 64), (40, 90, 160)).save(file, "PNG")
    processed = processor.process(file.getvalue())
    with torch.inference_mode():
        rows = ImageEncoder(network).encode(processed.tensors).embeddings
    if len(rows) != processed.layout.text.tokens:
        raise ModelRefused(
            f"For a picture of {processed.layout.text.tokens} tokens it has {len(rows)} rows of embeddings."
        )


def _rows(features: Tensor | Sequence[Tensor]) -> Tensor:
    """`[n, hidden]` from one tensor of any shape or several, as models return the parts of a picture."""
    parts = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
