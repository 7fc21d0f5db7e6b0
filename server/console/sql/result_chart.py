"""A result as a chart: times, numbers or names of its first column, and its numbers as series. Pure."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, Literal, NamedTuple

MAX_POINTS: Final = 2000
MAX_SERIES: Final = 8
NUMBERS: Final = frozenset({20, 21, 23, 26, 700, 701, 1700})
"""Postgres' types of numbers, by oid."""
TIMES: Final = frozenset({1082, 1114, 1184})
"""date, timestamp, timestamptz."""
NOTHING: Final = "-"
"""For a null among the texts of a series."""
Row = Sequence[str | None]


class ResultChart(NamedTuple):
    """`x` are Unix seconds or numbers, ascending; of names, their places in `names`."""

    kind: Literal["time", "number", "name"]
    x: list[float]
    names: list[str]
    series: list[tuple[str, list[float | None]]]
    """Name and values, one for each x."""


def chart_of(names: Sequence[str], types: Sequence[int], rows: Sequence[Row]) -> ResultChart | None:
    """The chart of a result's first rows; None if there is nothing to draw.

    Where several rows have the same first value, their first number is drawn, a series for each of the texts
    beside it, of which the largest are kept.
    """
    numbers = [place for place in range(1, len(types)) if types[place] in NUMBERS]
    if not numbers or len(rows) < 2:
        return None
    kind: Literal["time", "number", "name"] = (
        "time" if types[0] in TIMES else "number" if types[0] in NUMBERS else "name"
    )
    points = [(_place(row[0], kind), row) for row in rows[:MAX_POINTS]]
    known = [(place, row) for place, row in points if place is not None]
    places = list(dict.fromkeys(place for place, _row in known))
    if kind != "name":
        places.sort()
    index = {place: number for number, place in enumerate(places)}
    if len(places) < 2:
        return None
    texts = [place for place in range(1, len(types)) if types[place] not in NUMBERS]
    found: dict[str, list[float | None]] = {}
    for place, row in known:
        for series, value in _values(names, row, numbers, texts, grouped=len(places) < len(known)):
            found.setdefault(series, [None] * len(places))[index[place]] = value
    largest = sorted(found.items(), key=lambda pair: -sum(abs(value or 0) for value in pair[1]))
    kept = {name for name, _values in largest[:MAX_SERIES]}
    drawn = [(name, values) for name, values in found.items() if name in kept]
    if kind == "name":
        return ResultChart(
            kind, [float(number) for number in range(len(places))], [str(p) for p in places], drawn
        )
    return ResultChart(kind, [float(place) for place in places], [], drawn)


def _values(
    names: Sequence[str], row: Row, numbers: Sequence[int], texts: Sequence[int], *, grouped: bool
) -> list[tuple[str, float | None]]:
    """The series to which a row belongs, each with its value."""
    if not grouped:
        return [(names[place], _number(row[place])) for place in numbers]
    group = ", ".join(row[place] or NOTHING for place in texts)
    first = numbers[0]
    return [(f"{names[first]} {group[:60]}".strip(), _number(row[first]))]


def _place(value: str | None, kind: str) -> Any:
    if value is None:
        return None
    if kind == "name":
        return value[:60]
    return _number(value) if kind == "number" else _unix_seconds(value)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unix_seconds(value: str) -> float | None:
    """The time that Postgres has written; None for infinity and years that Python lacks."""
    try:
        if len(value) == 10:
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=time.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
