"""Drawn pictures are the same for a seed, of the promised sizes, and show one colour on light paper."""

from __future__ import annotations

import io
import math
import random
from collections import Counter

import pytest
from PIL import Image

from demo.vision.pictures import (
    COLOURS,
    LARGEST,
    MOST_STRETCHED,
    SHADES,
    SMALLEST,
    THINGS,
    draw,
    random_picture,
    random_size,
)


def test_the_same_seed_draws_the_same_picture() -> None:
    one, same, other = (random_picture(random.Random(seed)) for seed in (1, 1, 2))

    assert (one.colour, one.thing, one.image.tobytes()) == (same.colour, same.thing, same.image.tobytes())
    assert one.image.tobytes() != other.image.tobytes()


def test_sizes_are_within_their_bounds() -> None:
    chooser = random.Random(3)
    sizes = [random_size(chooser) for _ in range(2000)]

    assert min(map(min, sizes)) >= SMALLEST
    assert max(map(max, sizes)) <= LARGEST
    assert max(max(size) / min(size) for size in sizes) <= MOST_STRETCHED


@pytest.mark.parametrize("thing", THINGS)
def test_everything_is_drawn_in_its_colour_on_light_paper(thing: str) -> None:
    for colour in COLOURS:
        image = draw(random.Random(f"{thing} {colour}"), colour, thing, (300, 270)).image

        ink, paper = sorted(two_most_frequent(image), key=sum)

        assert min(math.dist(ink, shade) for shade in SHADES[colour]) < 25
        assert min(paper) >= 205


def two_most_frequent(image: Image.Image) -> list[tuple[int, ...]]:
    pixels = image.tobytes()
    counts = Counter(zip(pixels[0::3], pixels[1::3], pixels[2::3], strict=True))
    return [shade for shade, _ in counts.most_common(2)]


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
def test_a_picture_can_be_any_file(file_format: str) -> None:
    picture = random_picture(random.Random(4))

    with Image.open(io.BytesIO(picture.encoded(file_format, 60))) as read:
        assert (read.format, read.size) == (file_format, picture.image.size)
