"""One family's random vision model as transformers runs it, and requests with pictures for the engine."""

import functools
import hashlib
import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

from engine.image_encoder import ImageProcessor
from engine.request import EngineRequest, PromptImage
from tests.support.engines import Bench, make_request, start_model
from tests.support.vision_models import IMAGE_TOKEN, save_random_vision_model

COUNT = 10
"""Output tokens of a request."""
TENSORS = ("pixel_values", "image_grid_thw", "image_sizes", "image_position_ids", "pixel_attention_mask")


class VisionFamily:
    """The folder, its processor and transformers' own network."""

    def __init__(self, name: str) -> None:
        self.folder: Path = save_random_vision_model(name)
        config = AutoConfig.from_pretrained(self.folder)
        self.model_type: str = config.model_type
        self.processor = ImageProcessor.load(self.folder, config, max_tokens=1024)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        self.reference: Any = AutoModelForImageTextToText.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager"
        )
        self._generated: dict[tuple[object, ...], list[int]] = {}

    def start(self, **settings: Any) -> Bench:
        return start_model(self.folder, **{"token_budget": 24, "max_running": 4, **settings})

    def request(self, name: str, *parts: str | bytes, **settings: Any) -> EngineRequest:
        """Text and pictures, in order."""
        tokens: list[int] = []
        images = []
        for part in parts:
            text = part if isinstance(part, str) else self.processor.process(part).layout.text.text
            ids = self.tokenizer(text)["input_ids"]
            if isinstance(part, bytes):
                places = [place for place, token in enumerate(ids, len(tokens)) if token == IMAGE_TOKEN]
                digest, length = hashlib.sha256(part).digest(), places[-1] + 1 - places[0]
                images.append(PromptImage(data=part, digest=digest, start=places[0], length=length))
            tokens += ids
        settings = {"max_tokens": COUNT, **settings}
        return make_request(name, tokens, images=tuple(images), **settings)

    def generate(self, request: EngineRequest) -> list[int]:
        """transformers' own greedy tokens, with the processor's own tensors; computed once."""
        digests = tuple(image.digest for image in request.images)
        asked = (request.prompt, digests, request.max_tokens, request.beams)
        if asked not in self._generated:
            self._generated[asked] = self._generate(request)
        return self._generated[asked]

    def _generate(self, request: EngineRequest) -> list[int]:
        prompt, tensors = self._inputs(request)
        out = self.reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_tokens,
            do_sample=False,
            num_beams=1 if request.beams is None else request.beams.width,
            length_penalty=1.0 if request.beams is None else request.beams.length_penalty,
            pad_token_id=0,
            **tensors,
        )
        return list(out[0, prompt.shape[1] :].tolist())

    def prompt_logits(self, request: EngineRequest) -> torch.Tensor:
        """`[tokens, vocabulary]`."""
        prompt, tensors = self._inputs(request)
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(prompt, **tensors).logits[0]
        return logits

    def _inputs(self, request: EngineRequest) -> tuple[torch.Tensor, dict[str, Any]]:
        prompt = torch.tensor([request.prompt])
        is_image = (prompt == IMAGE_TOKEN).long()
        tensors = self._tensors(request)
        if tensors and self.model_type == "gemma3":
            tensors["token_type_ids"] = is_image
        elif tensors and (self.model_type == "gemma4" or "image_grid_thw" in tensors):
            tensors["mm_token_type_ids"] = is_image
        return prompt, tensors

    def _tensors(self, request: EngineRequest) -> dict[str, Any]:
        pixels = [Image.open(io.BytesIO(image.data)).convert("RGB") for image in request.images]
        if not pixels:
            return {}
        images = [pixels] if self.model_type == "smolvlm" else pixels
        arguments = {**self.processor._arguments, "return_tensors": "pt"}
        tensors = self.processor._processor(images=images, **arguments)
        return {name: tensors[name] for name in TENSORS if name in tensors}


@functools.cache
def vision_family(name: str) -> VisionFamily:
    """Made once a process."""
    return VisionFamily(name)
