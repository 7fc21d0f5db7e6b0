"""Training of the tower: every token of a picture learns to tell the picture's colour and thing.

The language model then needs to look at no token in particular, and learns to answer in minutes.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from demo.vision.model import Shape, image_features
from demo.vision.optimizing import Optimizers
from demo.vision.pictures import COLOURS, THINGS, Picture, random_picture

if TYPE_CHECKING:
    from transformers import LlavaForConditionalGeneration

#: Pictures to train on are drawn small, which is fast: the tower sees them smaller still.
_LARGEST_DRAWN = 220
#: One in so many has been a JPEG file of low quality.
_JPEG_EVERY = 3
_SECONDS_BETWEEN_REPORTS = 20.0


@dataclass(frozen=True, slots=True)
class TowerStage:
    """How long and how fast it is trained."""

    pictures: int
    steps: int
    batch: int
    learning_rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Pictures as the tower sees them, and what they show."""

    #: ``[n, 3, side, side]``, bytes.
    pixels: Tensor
    #: ``[n]``, places in ``COLOURS`` and ``THINGS``.
    colours: Tensor
    things: Tensor

    def __len__(self) -> int:
        """Return how many pictures there are."""
        return len(self.colours)


def draw_pool(count: int, seed: int, side: int) -> Pool:
    """Return so many random pictures."""
    chooser = random.Random(seed)
    pixels = torch.empty(count, 3, side, side, dtype=torch.uint8)
    colours, things = torch.empty(count, dtype=torch.long), torch.empty(count, dtype=torch.long)
    for place in range(count):
        picture = random_picture(chooser, _LARGEST_DRAWN)
        pixels[place] = _seen(chooser, picture, side)
        colours[place], things[place] = COLOURS.index(picture.colour), THINGS.index(picture.thing)
    return Pool(pixels, colours, things)


def _seen(chooser: random.Random, picture: Picture, side: int) -> Tensor:
    """Return a picture as the folder's image processor resizes it."""
    image = picture.image
    if chooser.randrange(_JPEG_EVERY) == 0:
        image = picture.reopened("JPEG", chooser.randint(55, 95))
    resized = image.resize((side, side), Image.Resampling.BICUBIC)
    return (
        torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8).view(side, side, 3).permute(2, 0, 1)
    )


def normalized(pixels: Tensor) -> Tensor:
    """Return bytes as numbers from -1 to 1."""
    return pixels.float() / 127.5 - 1


def _shaken(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Return pictures a little turned, moved and stretched, each in its own way."""
    count = len(pixels)

    def spread(width: float, *size: int) -> Tensor:
        return (torch.rand(count, *size, generator=generator) * 2 - 1) * width

    angle, scale, shift = spread(0.12), 1 + spread(0.15, 2), spread(0.12, 2)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rows = torch.stack(
        [
            torch.stack([cosine * scale[:, 0], -sine * scale[:, 1], shift[:, 0]], dim=1),
            torch.stack([sine * scale[:, 0], cosine * scale[:, 1], shift[:, 1]], dim=1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(rows, list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def train_tower(model: LlavaForConditionalGeneration, shape: Shape, stage: TowerStage) -> float:
    """Train the tower and the projector; return the share of right guesses of late steps."""
    started = time.monotonic()
    pool = draw_pool(stage.pictures, stage.seed, shape.side)
    print(f"tower: {len(pool)} pictures drawn in {time.monotonic() - started:.0f} s", flush=True)
    torch.manual_seed(stage.seed)
    generator = torch.Generator().manual_seed(stage.seed)
    guess = torch.nn.Linear(shape.hidden, len(COLOURS) + len(THINGS))
    parts = {
        "tower": model.model.vision_tower,
        "projector": model.model.multi_modal_projector,
        "guess": guess,
    }
    parameters = [(f"{part}.{name}", p) for part, m in parts.items() for name, p in m.named_parameters()]
    optimizers = Optimizers(parameters, stage.learning_rate)
    started, reported, right_mean, loss_mean = time.monotonic(), 0.0, 0.0, math.nan
    order = torch.randperm(len(pool), generator=generator)
    model.train()
    for step in range(stage.steps):
        places = order[torch.arange(step * stage.batch, (step + 1) * stage.batch) % len(pool)]
        pixels = _shaken(normalized(pool.pixels[places]), generator)
        scores = guess(image_features(model, pixels)).transpose(1, 2)
        loss, right = _judge(scores, pool.colours[places], pool.things[places])
        optimizers.step(loss, step / stage.steps)
        right_mean = right if step == 0 else 0.97 * right_mean + 0.03 * right
        loss_mean = loss.item() if step == 0 else 0.97 * loss_mean + 0.03 * loss.item()
        seconds = time.monotonic() - started
        if step + 1 == stage.steps or seconds - reported > _SECONDS_BETWEEN_REPORTS:
            reported = seconds
            done = (step + 1) / stage.steps
            print(
                f"tower: {done:4.0%}, loss {loss_mean:.4f}, right {right_mean:.1%}, {seconds:.0f} s",
                flush=True,
            )
    return right_mean


def _judge(scores: Tensor, colours: Tensor, things: Tensor) -> tuple[Tensor, float]:
    """Return the loss of ``[n, guesses, tokens]``, and the share of pictures that are guessed right."""
    tokens = scores.shape[2]
    by_colour, by_thing = torch.split(scores, [len(COLOURS), len(THINGS)], dim=1)
    loss = functional.cross_entropy(by_colour, colours[:, None].expand(-1, tokens))
    loss = loss + functional.cross_entropy(by_thing, things[:, None].expand(-1, tokens))
    is_colour = by_colour.mean(2).argmax(1) == colours
    is_thing = by_thing.mean(2).argmax(1) == things
    return loss, (is_colour & is_thing).float().mean().item()
