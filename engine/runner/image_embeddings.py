"""`PromptImages`: the pictures of running requests, from file to the embeddings and positions of a step.

`text` is for any thread, all else for the engine thread.
"""

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.bounded_cache import BoundedCache
from engine.device_copies import to_device
from engine.executor import OutOfMemory, SequenceFailed
from engine.image_encoder import (
    BadImage,
    EncodedImage,
    ImageEncoder,
    ImageLayout,
    ImageProcessor,
    ProcessedImage,
    RopePositions,
)
from engine.request import ImageText, PromptImage, RequestRefused, describe
from engine.runner.input_builder import ForwardInputs, TwoWayImages
from engine.runner.torch_errors import translate_errors
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

ImageKey = tuple[str, bytes]
"""Cache salt and SHA-256 of the file. So requests of different salts share nothing, as in the prefix cache: a
request that is fast tells nothing of another tenant's pictures."""


PROCESSED_BYTES = 256 * 2**20
ENCODED_BYTES = 256 * 2**20
"""On the model's device."""
LAYOUT_BYTES = 32 * 2**20
"""Bytes of texts for pictures: about 100 of the largest, 10,000 of 256 tokens."""
CONCURRENT = 2
"""Pictures that are processed at a time on threads of callers; each takes up to 400 MB meanwhile."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    chunk: ScheduledChunk
    places: list[int]
    """Indexes in the sequence of tokens whose embeddings are replaced."""
    first_row: int
    """Index of the row for the first of them; the others follow."""
    encoded: EncodedImage


@dataclass(frozen=True, slots=True)
class StepImages:
    """Changes of a step by the pictures of its requests, computed before its forward pass begins."""

    parts: list[ImagePart]
    rope: list[tuple[ScheduledChunk, RopePositions]]
    """Empty for models with positions in one dimension."""


NO_IMAGES = StepImages([], [])


class PromptImages:
    def __init__(self, network: PreTrainedModel, processor: ImageProcessor) -> None:
        self._network = network
        self._processor = processor
        self._encoder = ImageEncoder(network)
        self._layouts = BoundedCache[ImageKey, ImageLayout](LAYOUT_BYTES)
        self._processed = BoundedCache[ImageKey, ProcessedImage](PROCESSED_BYTES)
        self._encoded = BoundedCache[ImageKey, EncodedImage](ENCODED_BYTES)
        self._callers = threading.BoundedSemaphore(CONCURRENT)
        self._rope: WeakKeyDictionary[TokenSequence, RopePositions] = WeakKeyDictionary()
        self._deepstack: tuple[Tensor, list[Tensor]] | None = None
        """The mask `[1, T]` and the rows to add after each of the first layers, in the current step."""
        decoder = getattr(network.model, "language_model", None)
        if decoder is not None:
            decoder.register_forward_pre_hook(self._add_deepstack, with_kwargs=True)

    @property
    def image_token_id(self) -> int:
        return self._encoder.image_token_id

    @property
    def two_way(self) -> TwoWayImages | None:
        """The two-way attention within pictures of this model; None if they attend like text."""
        config = self._network.config
        if config.model_type == "gemma3":
            return TwoWayImages(self.image_token_id, windowed_layers_only=False)
        if getattr(config.get_text_config(), "use_bidirectional_attention", None) == "vision":
            return TwoWayImages(self.image_token_id, windowed_layers_only=True)
        return None

    def text(self, data: bytes, digest: bytes, salt: str) -> ImageText:
        """The text that stands for a picture in a prompt. Raises `RequestRefused` if it cannot be read."""
        key = (salt, digest)
        try:
            layout = self._layouts.get(key)
            if layout is None:
                with self._callers:
                    layout = self._process(data, key).layout
        except BadImage as error:
            raise RequestRefused("bad_image", str(error)) from error
        except Exception as error:
            raise RequestRefused("bad_image", f"The picture cannot be read: {describe(error)}") from error
        return layout.text

    def prepare(self, plan: SchedulerOutput) -> StepImages:
        """Runs the vision tower for the picture of this step, unless its embeddings are cached.

        Raises `SequenceFailed` for a request whose picture cannot be computed.
        """
        self._deepstack = None
        if not any(chunk.sequence.request.images for chunk in plan):
            return NO_IMAGES
        parts: list[ImagePart] = []
        rope: list[tuple[ScheduledChunk, RopePositions]] = []
        for chunk in plan:
            sequence = chunk.sequence
            if not sequence.request.images:
                continue
            try:
                parts += self._parts(chunk)
                if self._encoder.has_3d_positions:
                    rope.append((chunk, self._rope_of(sequence)))
            except OutOfMemory as error:
                raise SequenceFailed(sequence, "out_of_memory", f"A picture: {error}") from None
            except Exception as error:
                raise SequenceFailed(sequence, "engine_error", f"A picture: {describe(error)}") from error
        return StepImages(parts, rope)

    def inputs(self, images: StepImages, inputs: ForwardInputs) -> tuple[Tensor, Tensor | None]:
        """Positions and embeddings of a forward pass; `images` is the result of `prepare` for its plan.

        Positions are `[1, T]`, or `[3, 1, T]` for models with positions in three dimensions. Embeddings,
        `[1, T, hidden]`, stand in place of token ids; None if no token of the step is of a picture.
        """
        positions = self._positions(images, inputs)
        if not images.parts:
            return positions, None
        # In the order of the packed row, in which models take the rows for their layers.
        parts = sorted(images.parts, key=lambda part: inputs.begin_of[part.chunk.sequence] + part.places[0])
        token_ids = inputs.token_ids
        places: list[int] = []
        for part in parts:
            shift = inputs.begin_of[part.chunk.sequence] - part.chunk.start
            places += [shift + place for place in part.places]
        index = to_device(places, torch.long, token_ids.device)
        embeddings: Tensor = self._network.get_input_embeddings()(token_ids)
        rows = torch.cat([_rows(part, part.encoded.embeddings) for part in parts])
        embeddings[0].index_copy_(0, index, rows.to(embeddings.dtype))
        layers = [
            torch.cat([_rows(part, layer) for part, layer in zip(parts, layers, strict=True)])
            for layers in zip(*(part.encoded.deepstack for part in parts), strict=True)
        ]
        if layers:
            mask = torch.zeros(token_ids.shape, dtype=torch.bool, device=token_ids.device)
            self._deepstack = mask.index_fill_(1, index, True), layers
        return positions, embeddings

    def _positions(self, images: StepImages, inputs: ForwardInputs) -> Tensor:
        if not images.rope:
            return inputs.positions
        shifts = torch.zeros(3, inputs.positions.shape[1], dtype=torch.long)
        for chunk, rope in images.rope:
            begin, end = chunk.start, chunk.start + chunk.count
            row = inputs.begin_of[chunk.sequence]
            own = shifts[:, row : row + chunk.count]
            own += rope.delta
            prompt = rope.prompt[:, begin:end]
            own[:, : prompt.shape[1]] = prompt - torch.arange(begin, begin + prompt.shape[1])
        return (inputs.positions + to_device(shifts, torch.long, inputs.positions.device))[:, None]

    def _parts(self, chunk: ScheduledChunk) -> list[ImagePart]:
        """Usually one: see `scheduling.scheduler.ImageTurn`."""
        parts = []
        tokens, token_id = chunk.sequence.tokens, self.image_token_id
        for image in chunk.sequence.request.images:
            begin, end = max(image.start, chunk.start), min(image.end, chunk.start + chunk.count)
            places = [place for place in range(begin, end) if tokens[place] == token_id]
            if places:
                encoded = self._encode(chunk.sequence, image)
                first = tokens[image.start : begin].count(token_id)
                parts.append(ImagePart(chunk, places, first, encoded))
        return parts

    def _encode(self, sequence: TokenSequence, image: PromptImage) -> EncodedImage:
        """Raises `OutOfMemory` if the vision tower has none even after the cache was emptied."""
        key = (sequence.request.cache_salt, image.digest)
        encoded = self._encoded.get(key)
        if encoded is not None:
            return encoded
        processed = self._process(image.data, key)
        try:
            with translate_errors():
                encoded = self._encoder.encode(processed.tensors)
        except OutOfMemory:
            self._encoded.clear()
            with translate_errors():
                encoded = self._encoder.encode(processed.tensors)
        rows = len(encoded.embeddings)
        tokens = sequence.request.prompt[image.start : image.end].count(self.image_token_id)
        if rows != tokens:
            raise ValueError(f"it has {rows} rows of embeddings and {tokens} tokens")
        self._encoded.put(key, encoded, encoded.nbytes)
        return encoded

    def _rope_of(self, sequence: TokenSequence) -> RopePositions:
        rope = self._rope.get(sequence)
        if rope is None:
            request = sequence.request
            grids = [self._grid(image, request.cache_salt) for image in request.images]
            rope = self._encoder.rope_positions(request.prompt, request.images, grids)
            self._rope[sequence] = rope
        return rope

    def _grid(self, image: PromptImage, salt: str) -> Tensor:
        key = (salt, image.digest)
        layout = self._layouts.get(key) or self._process(image.data, key).layout
        if layout.grid is None:
            raise ValueError("the processor does not say how large it is")
        return layout.grid

    def _process(self, data: bytes, key: ImageKey) -> ProcessedImage:
        processed = self._processed.get(key)
        if processed is None:
            processed = self._processor.process(data)
            self._processed.put(key, processed, processed.nbytes)
        # After a picture's pixels have been evicted, its place in the prompt is still known.
        self._layouts.put(key, processed.layout, len(processed.layout.text.text))
        return processed

    def _add_deepstack(
        self, _decoder: object, arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Qwen3-VL takes rows for its first layers beside the embeddings."""
        if self._deepstack is not None:
            mask, rows = self._deepstack
            self._deepstack = None
            keywords = {**keywords, "visual_pos_masks": mask, "deepstack_visual_embeds": rows}
        return arguments, keywords


def _rows(part: ImagePart, rows: Tensor) -> Tensor:
    """The part of `rows`, `[n, hidden]`, that the step computes."""
    return rows[part.first_row : part.first_row + len(part.places)]
