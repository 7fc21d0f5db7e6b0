"""`PromptImages`: the pictures of running requests, from file to the embeddings and positions of a step.

`text` is for any thread, all else for the engine thread. What is computed of a picture is shared by requests
of one salt only, as cached prefixes are.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.request import PromptImage, RequestRefused, describe
from engine.runner.input_builder import ForwardInputs, TwoWayImages
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence
from engine.vision.image_encoder import EncodedImage, ImageEncoder, RopePositions
from engine.vision.image_processor import ImageProcessor, ProcessedImage

CACHED_BYTES = 256 * 2**20
"""Of processed and encoded pictures, each."""

Key = tuple[str, bytes]
"""Salt and digest."""


@dataclass(slots=True)
class _Lru:
    """A cache of values with sizes, at most `CACHED_BYTES` or one value. Thread-safe."""

    _values: OrderedDict[Key, tuple[int, object]] = field(default_factory=OrderedDict)
    _size: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Key) -> object | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][1]

    def put(self, key: Key, value: object, tensors: Sequence[Tensor]) -> None:
        size = sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            if key in self._values:
                return
            self._values[key] = (size, value)
            self._size += size
            while self._size > CACHED_BYTES and len(self._values) > 1:
                _, (freed, _) = self._values.popitem(last=False)
                self._size -= freed


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The arguments of the forward pass that pictures change."""

    positions: Tensor
    """`[1, T]`, or `[3, 1, T]` for models with positions in three dimensions."""
    embeddings: Tensor | None = None
    """`[1, T, hidden]` in place of token ids; None if no token of the step is of a picture."""


class PromptImages:
    """Created by the thread that starts the engine."""

    def __init__(self, network: PreTrainedModel, processor: ImageProcessor) -> None:
        self._network = network
        self._processor = processor
        self._encoder = ImageEncoder(network)
        self._processed = _Lru()
        self._encoded = _Lru()
        self._rope: WeakKeyDictionary[TokenSequence, RopePositions | None] = WeakKeyDictionary()
        self._deepstack: tuple[Tensor, list[Tensor]] | None = None
        """The mask `[1, T]` and the rows to add after each of the first layers, in the current step."""
        decoder = getattr(network.model, "language_model", None)
        if decoder is not None:
            decoder.register_forward_pre_hook(self._add_deepstack, with_kwargs=True)

    @property
    def placeholder(self) -> str:
        return self._processor.placeholder

    @property
    def has_3d_positions(self) -> bool:
        return self._encoder.has_3d_positions

    @property
    def two_way(self) -> TwoWayImages | None:
        """How this model's pictures attend to themselves; None if like text."""
        config = self._network.config
        if config.model_type == "gemma3":
            return TwoWayImages(self._encoder.placeholder_id, windowed_layers_only=False)
        if getattr(config.get_text_config(), "use_bidirectional_attention", None) == "vision":
            return TwoWayImages(self._encoder.placeholder_id, windowed_layers_only=True)
        return None

    def text(self, data: bytes, salt: str) -> str:
        """The text for a picture. Raises `RequestRefused` if it cannot be read."""
        try:
            return self._process(data, (salt, hashlib.sha256(data).digest())).text
        except Exception as error:
            raise RequestRefused("bad_image", f"The picture cannot be read: {describe(error)}") from error

    def inputs(self, plan: SchedulerOutput, inputs: ForwardInputs) -> ModelInputs:
        """Runs the vision tower for the picture of this step, if it has not run for it."""
        self._deepstack = None
        chunks = [chunk for chunk in plan if chunk.sequence.request.images]
        if not chunks:
            return ModelInputs(inputs.positions)
        positions = self._positions(chunks, inputs)
        parts = [
            (inputs.begin_of[chunk.sequence] - chunk.start, chunk, image)
            for chunk in chunks
            for image in chunk.sequence.request.images
            if image.start < chunk.start + chunk.count and chunk.start < image.end
        ]
        if not parts:
            return ModelInputs(positions)
        token_ids = inputs.token_ids
        embeddings = self._network.get_input_embeddings()(token_ids).clone()
        mask = torch.zeros(token_ids.shape[1], dtype=torch.bool, device=token_ids.device)
        layers: list[list[Tensor]] = []
        for shift, chunk, image in sorted(parts, key=lambda part: part[0] + part[2].start):
            encoded = self._encode(chunk.sequence, image)
            begin, end = max(image.start, chunk.start), min(image.end, chunk.start + chunk.count)
            tokens = torch.tensor(chunk.sequence.tokens[image.start : end], device=token_ids.device)
            is_row = tokens == self._encoder.placeholder_id
            skipped = int(is_row[: begin - image.start].sum())
            rows = slice(skipped, skipped + int(is_row[begin - image.start :].sum()))
            places = is_row[begin - image.start :].nonzero()[:, 0] + begin + shift
            embeddings[0, places] = encoded.embeddings[rows].to(embeddings.dtype)
            mask[places] = True
            layers.append([layer[rows] for layer in encoded.deepstack])
        if layers[0]:
            self._deepstack = mask[None], [torch.cat(rows) for rows in zip(*layers, strict=True)]
        return ModelInputs(positions, embeddings)

    def _positions(self, chunks: Sequence[ScheduledChunk], inputs: ForwardInputs) -> Tensor:
        if not self.has_3d_positions:
            return inputs.positions
        positions = inputs.positions.repeat(3, 1)
        for chunk in chunks:
            rope = self._rope_of(chunk.sequence)
            if rope is None:
                continue
            begin, prompt = inputs.begin_of[chunk.sequence], rope.prompt.shape[1]
            end = chunk.start + chunk.count
            inside = max(min(end, prompt) - chunk.start, 0)
            if inside:
                own = rope.prompt[:, chunk.start : chunk.start + inside]
                positions[:, begin : begin + inside] = own.to(positions.device)
            positions[:, begin + inside : begin + chunk.count] += rope.delta
        return positions[:, None]

    def _rope_of(self, sequence: TokenSequence) -> RopePositions | None:
        if sequence not in self._rope:
            request = sequence.request
            keys = [(request.cache_salt, image.digest) for image in request.images]
            tensors = [
                self._process(image.data, key).tensors
                for image, key in zip(request.images, keys, strict=True)
            ]
            self._rope[sequence] = self._encoder.rope_positions(request.prompt, tensors)
        return self._rope[sequence]

    def _process(self, data: bytes, key: Key) -> ProcessedImage:
        processed = self._processed.get(key)
        if not isinstance(processed, ProcessedImage):
            processed = self._processor.process(data)
            self._processed.put(key, processed, [*processed.tensors.values()])
        return processed

    def _encode(self, sequence: TokenSequence, image: PromptImage) -> EncodedImage:
        key = (sequence.request.cache_salt, image.digest)
        encoded = self._encoded.get(key)
        if not isinstance(encoded, EncodedImage):
            encoded = self._encoder.encode(self._process(image.data, key).tensors)
            self._encoded.put(key, encoded, [encoded.embeddings, *encoded.deepstack])
        return encoded

    def _add_deepstack(
        self, _decoder: object, arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Qwen3-VL takes rows for its first layers beside the embeddings."""
        if self._deepstack is not None:
            mask, rows = self._deepstack
            keywords = {**keywords, "visual_pos_masks": mask, "deepstack_visual_embeds": rows}
        return arguments, keywords
