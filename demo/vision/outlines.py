"""The outlines of shapes and the strokes of digits, as points; y grows downwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

Points = Sequence[tuple[float, float]]

#: Points of a curve, and of each straight edge.
_STEPS = 40


def _arc(x: float, y: float, wide: float, high: float, start: float, end: float) -> list[tuple[float, float]]:
    """Return part of an ellipse; angles in turns, clockwise from the right."""
    angles = [math.tau * (start + (end - start) * step / _STEPS) for step in range(_STEPS + 1)]
    return [(x + wide * math.cos(angle), y + high * math.sin(angle)) for angle in angles]


def _edges(corners: Points, *, is_closed: bool = True) -> list[tuple[float, float]]:
    """Return the corners with points between them, so that each edge can be uneven."""
    following = [*corners[1:], *corners[:1]] if is_closed else corners[1:]
    steps = _STEPS // 4
    return [
        (x + (to_x - x) * step / steps, y + (to_y - y) * step / steps)
        for (x, y), (to_x, to_y) in zip(corners, following, strict=False)
        for step in range(steps)
    ] + ([] if is_closed else [corners[-1]])


def _around(radii: Sequence[float]) -> list[tuple[float, float]]:
    """Return corners at even angles around the middle, from the top."""
    angles = [math.tau * place / len(radii) - math.tau / 4 for place in range(len(radii))]
    return [(r * math.cos(angle), r * math.sin(angle)) for r, angle in zip(radii, angles, strict=True)]


def _heart() -> list[tuple[float, float]]:
    angles = [math.tau * step / _STEPS for step in range(_STEPS)]
    return [
        (
            16 * math.sin(t) ** 3 / 17,
            -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17,
        )
        for t in angles
    ]


_ARM = 0.34
_CROSS = [(-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM)]
_ARROW = [(-1, -0.25), (0.1, -0.25), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.25), (-1, 0.25)]

#: The outline of each shape. There is no ring: in a stretched picture it looks like a 0.
SHAPE_OUTLINES = MappingProxyType[str, Points](
    {
        "circle": _arc(0, 0, 1, 1, 0, 1),
        "square": _edges([(-1, -1), (1, -1), (1, 1), (-1, 1)]),
        "triangle": _edges(_around([1, 1, 1])),
        "star": _edges(_around([1, 0.42] * 5)),
        "cross": _edges([*_CROSS, *((-x, -y) for x, y in _CROSS)]),
        "heart": _heart(),
        "arrow": _edges(
            [(-1, -0.25), (0.1, -0.25), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.25), (-1, 0.25)]
        ),
    }
)

#: Strokes of each digit, in a box 0.6 wide and 1 high.
DIGIT_STROKES = MappingProxyType[str, Sequence[Points]](
    {
        "0": (_arc(0.3, 0.5, 0.3, 0.5, 0, 1),),
        "1": (_edges([(0.1, 0.25), (0.38, 0), (0.38, 1)], is_closed=False),),
        "2": (
            [
                *_arc(0.3, 0.28, 0.28, 0.28, 0.55, 1.1),
                *_edges([(0.5, 0.5), (0.02, 1), (0.6, 1)], is_closed=False),
            ],
        ),
        "3": ([*_arc(0.28, 0.25, 0.26, 0.25, 0.6, 1.22), *_arc(0.28, 0.74, 0.3, 0.26, 0.78, 1.4)],),
        "4": (_edges([(0.45, 1), (0.45, 0), (0, 0.7), (0.62, 0.7)], is_closed=False),),
        "5": (
            [
                *_edges([(0.56, 0), (0.1, 0), (0.06, 0.46)], is_closed=False),
                *_arc(0.28, 0.68, 0.31, 0.32, 0.62, 1.4),
            ],
        ),
        "6": (
            [
                *_edges([(0.48, 0), (0.2, 0.3), (0.03, 0.62)], is_closed=False),
                *_arc(0.3, 0.7, 0.28, 0.3, 0.5, 1.5),
            ],
        ),
        "7": (_edges([(0, 0), (0.6, 0), (0.2, 1)], is_closed=False),),
        "8": (_arc(0.3, 0.25, 0.25, 0.25, 0, 1), _arc(0.3, 0.74, 0.3, 0.26, 0, 1)),
        "9": (
            [
                *_arc(0.3, 0.3, 0.28, 0.3, 1, 0),
                *_edges([(0.58, 0.3), (0.5, 0.68), (0.2, 1)], is_closed=False),
            ],
        ),
    }
)
