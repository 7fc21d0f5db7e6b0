"""Greedy tokens after pictures equal `model.generate` with the processor's own tensors, for every family."""

import functools
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

from engine.request import EngineRequest, PromptImage
from engine.vision.image_processor import ImageProcessor
from tests.support.engines import Bench, make_prompt, make_request, start_model
from tests.support.vision_models import FAMILIES, IMAGE_TOKEN, picture, save_random_vision_model

COUNT = 10
TENSORS = ("pixel_values", "image_grid_thw", "image_sizes", "image_position_ids", "pixel_attention_mask")


class Family:
    """One family's random model, as transformers runs it and as the engine does."""

    def __init__(self, config: str) -> None:
        self.folder: Path = save_random_vision_model(config)
        self.nested = config == "SmolVLMConfig"
        self.processor = ImageProcessor.load(self.folder, AutoConfig.from_pretrained(self.folder))
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder)
        self.reference: Any = AutoModelForImageTextToText.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager"
        )

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
        return make_request(name, tokens, COUNT, images=tuple(images), **settings)

    def generate(self, request: EngineRequest) -> list[int]:
        prompt = torch.tensor([request.prompt])
        is_image = (prompt == IMAGE_TOKEN).long()
        pixels = [Image.open(io.BytesIO(image.data)).convert("RGB") for image in request.images]
        tensors: dict[str, Any] = {}
        if pixels:
            images = [pixels] if self.nested else pixels
            arguments = {**self.processor._arguments, "return_tensors": "pt"}
            tensors = dict(self.processor._processor(images=images, **arguments))
            tensors = {name: tensors[name] for name in TENSORS if name in tensors}
            kind = self.reference.config.model_type
            if kind == "gemma3":
                tensors["token_type_ids"] = is_image
            elif kind == "gemma4" or "image_grid_thw" in tensors:
                tensors["mm_token_type_ids"] = is_image
        out = self.reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=COUNT,
            do_sample=False,
            pad_token_id=0,
            **tensors,
        )
        return list(out[0, prompt.shape[1] :].tolist())


@functools.cache
def family(config: str) -> Family:
    return Family(config)


def start(config: str, **settings: Any) -> Bench:
    return start_model(family(config).folder, **{"token_budget": 24, "max_running": 4, **settings})


@pytest.fixture(params=FAMILIES, ids=lambda config: config.removesuffix("Config"))
def config(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_answers_about_pictures_equal_generate_alone_and_beside_others(config: str) -> None:
    model = family(config)
    bench = start(config)
    text = make_request("text", [token % 90 for token in make_prompt(37, 3)], COUNT)
    requests = [
        model.request("one", "ab ", picture(1), " cde"),
        model.request("two", picture(2), " fg hi ", picture(3), "jkl"),
        model.request("long", "x" * 40, picture(4), "y" * 30),
        text,
    ]

    (alone,) = bench.run(requests[0])
    together = bench.run(*requests[1:])

    for request, outcome in zip(requests, [alone, *together], strict=True):
        assert outcome.tokens == model.generate(request), request.request_id
    other = model.request("another picture", "ab ", picture(5), " cde")
    assert model.generate(other) != alone.tokens, "a model that does not look proves nothing"
    bench.engine.close(drain=True)


@pytest.mark.parametrize("before", [3, 20, 40])
def test_a_cached_prefix_may_end_before_in_or_after_a_picture(config: str, before: int) -> None:
    model = family(config)
    bench = start(config, block_size=4)
    first = model.request("first", "a" * before, picture(1), "b" * 9)
    same = model.request("same", "a" * before, picture(1), "b" * 5 + "cd")
    other = model.request("other", "a" * before, picture(2), "b" * 9)

    outcomes = [bench.run(request)[0] for request in (first, same, other)]

    for request, outcome in zip((first, same, other), outcomes, strict=True):
        assert outcome.tokens == model.generate(request), request.request_id
    image = other.images[0]
    assert outcomes[1].last.usage.cached > image.end
    assert outcomes[2].last.usage.cached <= image.start
    bench.engine.close(drain=True)
