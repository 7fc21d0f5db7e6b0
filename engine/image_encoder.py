"""Pictures in prompts: a model folder's own image processor, and `ImageEncoder`, the model's vision tower.

Uses transformers' processors with their Pillow backend, without their parts for video and sound, which need
torchvision or torchaudio. The encoder, on the engine thread, works for every model with `get_image_features`;
models with rotary positions in three dimensions (time, height, width) have `get_rope_index`, too.
"""

import inspect
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PretrainedConfig, PreTrainedModel, ProcessorMixin
from transformers.models.auto import processing_auto

from engine.config import ModelRefused
from engine.request import MAX_IMAGE_PIXELS, ImageText, PromptImage, describe, one_line

SERVED_FAMILIES = frozenset({
    "gemma3", "gemma4", "glm4v", "glm4v_moe", "internvl", "llava", "mistral3", "qwen2_5_vl", "qwen2_vl",
    "qwen3_vl", "qwen3_vl_moe", "smolvlm",
})  # fmt: skip
"""The `model_type`s whose answers about pictures the tests compare with transformers' own. Others may attend
to pictures, or number them, in ways that are not known here."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

PIXTRAL_PROCESSOR = "PixtralProcessor"
"""transformers cannot import this class without torchvision, so `_PixtralText` does its part."""

GRID = "image_grid_thw"
"""The tensor of models with positions in three dimensions."""


class BadImage(Exception):
    """The picture cannot be read; the message is a sentence for the caller."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """A picture's place in a prompt; small, unlike its pixels."""

    text: ImageText
    grid: Tensor | None
    """`[1, 3]`: patches in time, height and width; None for models with positions in one dimension."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    layout: ImageLayout
    tensors: Mapping[str, Tensor]
    """The arguments of the model's `get_image_features`, and others that it does not take."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


class ImageProcessor:
    """Thread-safe: calls do not change it."""

    def __init__(
        self, processor: Any, texts: Any, arguments: Mapping[str, Any], token_id: int, token: str
    ) -> None:
        """`token_id` is the token in place of which the model takes a row of a picture, `token` its text.

        `texts`, a processor of transformers or `_PixtralText`, writes the text for a picture.
        """
        self._processor = processor
        self._texts = texts
        self._arguments = arguments
        self._token = token
        # The vision tower of Mistral 3 raises for a picture of one token.
        self._min_tokens = 2 if isinstance(texts, _PixtralText) and texts.is_merged else 1
        self.token_id = token_id
        self.placeholder: str = texts.image_token
        """The text that chat templates write for a picture."""

    @staticmethod
    def load(folder: Path, hf_config: PretrainedConfig, max_tokens: int) -> "ImageProcessor":
        """Raises `ModelRefused` if the folder has no image processor that can be used here.

        Where the tokens of a picture grow with its pixels, larger pictures are shrunk to `max_tokens`.
        """
        if hf_config.model_type not in SERVED_FAMILIES:
            raise ModelRefused(f"Pictures are not served for models of the family {hf_config.model_type}.")
        try:
            return _load(folder, hf_config, max_tokens)
        except Exception as error:
            raise ModelRefused(
                f"The image processor of {folder} cannot be used: {describe(error, 500)}"
            ) from error

    def process(self, data: bytes) -> ProcessedImage:
        """`data` is a picture file. Raises `BadImage`.

        5 to 50 ms of CPU for a usual picture, 0.5 to 1 s for one of `MAX_IMAGE_PIXELS`, which takes 230 MB
        while it is shrunk to what the model takes. The tensors have 0.2 to 30 MB for models with a fixed
        size, else up to 24 kB for each of the picture's tokens. Holds the GIL for 20 ms at a time.
        """
        pixels = _decode(data)
        try:
            outputs = self._processor(images=[pixels], **{**self._arguments, "return_tensors": "pt"})
            text = str(self._texts.replace_image_token(outputs, 0))
        except ValueError as error:  # a shape that the model does not take
            raise BadImage(f"The model does not take this picture: {one_line(str(error))}") from error
        tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
        image_text = ImageText(text, text.count(self._token))
        if image_text.tokens < self._min_tokens:
            raise BadImage("The model does not take this picture: it is too small.")
        return ProcessedImage(ImageLayout(image_text, tensors.get(GRID)), tensors)


def _decode(data: bytes) -> Image.Image:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise BadImage(
                    f"The picture has {image.width} x {image.height} pixels; {MAX_IMAGE_PIXELS} are allowed."
                )
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise BadImage("The picture is no PNG, JPEG, WebP or GIF file.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"The picture has more than {MAX_IMAGE_PIXELS} pixels.") from error
    except (OSError, SyntaxError, ValueError) as error:  # as Pillow's readers raise them
        raise BadImage(f"The picture cannot be read: {one_line(str(error))}") from error


def _load(folder: Path, hf_config: PretrainedConfig, max_tokens: int) -> ImageProcessor:
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    images: Any = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        folder, backend="pil", **options
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    token_id: int = hf_config.image_token_id
    token = str(tokenizer.convert_ids_to_tokens(token_id))
    name, settings = _processor_class_name(folder, hf_config)
    if name == PIXTRAL_PROCESSOR:
        text = _PixtralText(hf_config, settings)
        arguments = {"patch_size": {"height": text.patch, "width": text.patch}}
        most = min(images.size["longest_edge"], math.isqrt(max_tokens) * text.patch)
        arguments["size"] = {"longest_edge": most}
        return ImageProcessor(images, text, arguments, token_id, token)
    processor_class = _without_other_media(processing_auto.processor_class_from_name(name))
    parts = {"image_processor": images, "tokenizer": tokenizer}
    processor = processor_class.from_args_and_dict(
        [parts.get(part) for part in processor_class.get_attributes()], settings
    )
    arguments = processor._merge_kwargs(processor.valid_processor_kwargs, tokenizer_init_kwargs={})
    arguments = {**arguments["images_kwargs"], **_bounded_area(images, max_tokens)}
    return ImageProcessor(images, processor, arguments, token_id, token)


def _bounded_area(images: Any, max_tokens: int) -> Mapping[str, Any]:
    """The size of the families of Qwen-VL and GLM-V, which is an area in pixels; empty for others."""
    if not hasattr(images, "merge_size"):
        return {}
    pixels_per_token = (images.patch_size * images.merge_size) ** 2
    if type(images).__name__.startswith("Glm4v"):  # counts a picture as so many frames
        pixels_per_token *= images.temporal_patch_size
    most = max_tokens * pixels_per_token
    return {"size": {edge: min(images.size[edge], most) for edge in ("shortest_edge", "longest_edge")}}


def _processor_class_name(folder: Path, hf_config: PretrainedConfig) -> tuple[str, Mapping[str, Any]]:
    """The name that the folder's files give, or else the usual one of the model; and the settings."""
    settings, _ = ProcessorMixin.get_processor_dict(folder, local_files_only=True)
    names = processing_auto.PROCESSOR_MAPPING_NAMES[  # type: ignore[attr-defined]
        hf_config.model_type
    ]
    return settings.get("processor_class") or (names if isinstance(names, str) else names[0]), settings


def _without_other_media(processor_class: Any) -> Any:
    """A subclass that can be made without its parts for video and sound."""

    class ImagesOnly(processor_class):  # type: ignore[misc]  # a class known at run time only
        def check_argument_for_proper_class(self, argument_name: str, argument: object) -> object:
            if argument is None:
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    ImagesOnly.__name__ = processor_class.__name__  # its configuration is looked up by this name
    return ImagesOnly


class _PixtralText:
    """A row of `[IMG]` for each row of patches, `[IMG_BREAK]` between them, `[IMG_END]` at the end."""

    def __init__(self, hf_config: PretrainedConfig, settings: Mapping[str, Any]) -> None:
        self.image_token = settings.get("image_token", "[IMG]")
        self._break = settings.get("image_break_token", "[IMG_BREAK]")
        self._end = settings.get("image_end_token", "[IMG_END]")
        merged = int(settings.get("spatial_merge_size") or getattr(hf_config, "spatial_merge_size", 0) or 1)
        self.is_merged = merged > 1
        self.patch: int = (settings.get("patch_size") or hf_config.vision_config.patch_size) * merged

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int) -> str:
        height, width = (int(pixels) for pixels in image_inputs["image_sizes"][image_idx])
        row = self.image_token * (width // self.patch)
        return str(self._break.join([row] * (height // self.patch)) + self._end)


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
