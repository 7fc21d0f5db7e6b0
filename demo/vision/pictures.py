"""Drawn pictures: one shape or digit of one colour on a light background, always the same for a seed."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from PIL import Image, ImageDraw, ImageFont

from demo.vision.outlines import DIGIT_STROKES, SHAPE_OUTLINES, Points

#: Shades of each colour, red, green and blue from 0 to 255; each picture's own is near one of them.
SHADES = MappingProxyType(
    {
        "red": ((220, 30, 35), (245, 15, 15), (190, 25, 30)),
        "orange": ((245, 130, 20), (250, 150, 15)),
        "yellow": ((250, 215, 30), (248, 235, 20)),
        "green": ((40, 160, 60), (15, 130, 25), (60, 200, 60)),
        "blue": ((40, 80, 210), (20, 20, 235), (50, 110, 220)),
        "purple": ((130, 50, 165), (120, 15, 130), (150, 70, 200)),
        "pink": ((245, 120, 180), (250, 105, 175), (245, 145, 190)),
        "black": ((20, 20, 20), (10, 10, 10), (45, 45, 45)),
    }
)
COLOURS = tuple(SHADES)
SHAPES = tuple(SHAPE_OUTLINES)
DIGITS = tuple(DIGIT_STROKES)
#: Everything that a picture can show.
THINGS = SHAPES + DIGITS

#: Pixels of a side, and how many times as long the long side may be.
SMALLEST, LARGEST, MOST_STRETCHED = 40, 800, 2.0

_SHADE_NOISE = 12
_LEAST_CONTRAST = 90.0
#: The size of the thing as a share of the short side.
_SIZES = (0.4, 0.9)
#: How far digits lean, in degrees; shapes turn all the way round.
_LEAN = 20.0
#: How far an outline strays, as a share of the thing's size.
_WOBBLE = 0.025
#: Small pictures are drawn this many times as large, so that edges are as smooth as those of large ones.
_SUPERSAMPLING, _SMOOTH_FROM = 3, 250


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture and what there is to see."""

    image: Image.Image
    colour: str
    #: One of ``THINGS``.
    thing: str

    @property
    def is_digit(self) -> bool:
        """Tell whether it shows a digit, not a shape."""
        return self.thing in DIGITS

    def encoded(self, file_format: str, quality: int = 90) -> bytes:
        """Return the picture as a PNG, JPEG or WEBP file."""
        file = io.BytesIO()
        options = {} if file_format == "PNG" else {"quality": quality}
        self.image.save(file, file_format, **options)
        return file.getvalue()

    def reopened(self, file_format: str, quality: int = 90) -> Image.Image:
        """Return what is left of the picture in such a file."""
        with Image.open(io.BytesIO(self.encoded(file_format, quality))) as image:
            return image.convert("RGB")


def random_size(chooser: random.Random, largest: int = LARGEST) -> tuple[int, int]:
    """Return a width and a height, all sizes and shapes of pages as likely as each other."""
    one = chooser.randint(SMALLEST, largest)
    low, high = max(SMALLEST, math.ceil(one / MOST_STRETCHED)), min(largest, int(one * MOST_STRETCHED))
    other = chooser.randint(low, high)
    return (one, other) if chooser.random() < 0.5 else (other, one)


def random_picture(chooser: random.Random, largest: int = LARGEST) -> Picture:
    """Return a picture of anything in any colour, shapes and digits as likely as each other."""
    thing = chooser.choice(SHAPES if chooser.random() < 0.5 else DIGITS)
    return draw(chooser, chooser.choice(COLOURS), thing, random_size(chooser, largest))


def draw(chooser: random.Random, colour: str, thing: str, size: tuple[int, int]) -> Picture:
    """Return a picture of this thing at a random place, of a random size, turned and a little uneven."""
    ink = _near(chooser, chooser.choice(SHADES[colour]))
    paper = _background(chooser, ink)
    scale = _SUPERSAMPLING if max(size) < _SMOOTH_FROM else 1
    canvas = (size[0] * scale, size[1] * scale)
    mask = Image.new("L", canvas)
    extent = min(canvas) * chooser.uniform(*_SIZES)
    if thing in SHAPE_OUTLINES:
        _draw_shape(chooser, mask, SHAPE_OUTLINES[thing], extent)
    elif chooser.random() < 0.5:
        _draw_strokes(chooser, mask, DIGIT_STROKES[thing], extent)
    else:
        _draw_glyph(chooser, mask, thing, extent)
    if scale > 1:
        mask = mask.resize(size, Image.Resampling.BOX)
    image = Image.new("RGB", size, paper)
    image.paste(ink, (0, 0), mask)
    return Picture(image, colour, thing)


def _near(chooser: random.Random, shade: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (
        min(255, max(0, value + chooser.randint(-_SHADE_NOISE, _SHADE_NOISE))) for value in shade
    )
    return red, green, blue


def _background(chooser: random.Random, ink: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return white or a light colour that the ink can be told from."""
    while chooser.random() >= 0.4:
        red, green, blue = (chooser.randint(205, 255) for _ in range(3))
        if math.dist((red, green, blue), ink) > _LEAST_CONTRAST:
            return red, green, blue
    return 255, 255, 255


def _wobbled(chooser: random.Random, points: Points, amount: float) -> list[tuple[float, float]]:
    """Return the points of an outline moved along two slow waves, as by an unsteady hand."""
    waves = [(chooser.uniform(0, math.tau), chooser.randint(2, 5), chooser.uniform(0, amount)) for _ in "xy"]
    moved = []
    for place, (x, y) in enumerate(points):
        along = math.tau * place / len(points)
        dx, dy = (height * math.sin(times * along + start) for start, times, height in waves)
        moved.append((x + dx, y + dy))
    return moved


def _placed(
    chooser: random.Random,
    lines: Sequence[Sequence[tuple[float, float]]],
    canvas: tuple[int, int],
    extent: float,
    angle: float,
) -> list[list[tuple[float, float]]]:
    """Return the lines turned by the angle, of this extent, and at a random place of the canvas."""
    sine, cosine = math.sin(angle), math.cos(angle)
    turned = [[(x * cosine - y * sine, x * sine + y * cosine) for x, y in line] for line in lines]
    columns = [x for line in turned for x, _ in line]
    rows = [y for line in turned for _, y in line]
    width, height = max(columns) - min(columns), max(rows) - min(rows)
    scale = extent / max(width, height)
    left = chooser.uniform(0, canvas[0] - width * scale) - min(columns) * scale
    top = chooser.uniform(0, canvas[1] - height * scale) - min(rows) * scale
    return [[(left + x * scale, top + y * scale) for x, y in line] for line in turned]


def _draw_shape(chooser: random.Random, mask: Image.Image, outline: Points, extent: float) -> None:
    wobbled = _wobbled(chooser, outline, _WOBBLE)
    (placed,) = _placed(chooser, [wobbled], mask.size, extent, chooser.uniform(0, math.tau))
    ImageDraw.Draw(mask).polygon(placed, fill=255)


def _draw_strokes(
    chooser: random.Random, mask: Image.Image, strokes: Sequence[Points], extent: float
) -> None:
    """Draw a digit as with a pen."""
    thickness = extent * chooser.uniform(0.1, 0.18)
    narrow, slant = chooser.uniform(0.8, 1.1), chooser.uniform(-0.15, 0.15)
    lines = [
        [(x * narrow + y * slant, y) for x, y in _wobbled(chooser, stroke, _WOBBLE)] for stroke in strokes
    ]
    angle = math.radians(chooser.uniform(-_LEAN, _LEAN))
    inner = (mask.width - math.ceil(thickness), mask.height - math.ceil(thickness))
    pen = ImageDraw.Draw(mask)
    half = thickness / 2
    for line in _placed(chooser, lines, inner, extent - thickness, angle):
        moved = [(x + half, y + half) for x, y in line]
        pen.line(moved, fill=255, width=max(1, round(thickness)), joint="curve")
        for x, y in (moved[0], moved[-1]):
            pen.ellipse((x - half, y - half, x + half, y + half), fill=255)


def _draw_glyph(chooser: random.Random, mask: Image.Image, digit: str, extent: float) -> None:
    """Draw a digit of Pillow's own font, of any weight."""
    font = ImageFont.load_default(size=max(8.0, extent))
    weight = round(extent * chooser.uniform(0, 0.05))
    left, top, right, bottom = font.getbbox(digit, stroke_width=weight)
    glyph = Image.new("L", (math.ceil(right - left), math.ceil(bottom - top)))
    ImageDraw.Draw(glyph).text((-left, -top), digit, fill=255, font=font, stroke_width=weight)
    glyph = glyph.rotate(chooser.uniform(-_LEAN, _LEAN), Image.Resampling.BILINEAR, expand=True)
    glyph = glyph.crop(glyph.getbbox())
    scale = extent / max(glyph.size)
    glyph = glyph.resize((max(1, round(glyph.width * scale)), max(1, round(glyph.height * scale))))
    room = mask.width - glyph.width, mask.height - glyph.height
    mask.paste(glyph, (chooser.randint(0, max(0, room[0])), chooser.randint(0, max(0, room[1]))))
