from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from server.console import value_formats

SPACE = "\N{NARROW NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, value_formats.NOTHING),
        (0.0, "0 ms"),
        (0.0842, "84 ms"),
        (1.4219, "1.42 s"),
        (59.96, "60.0 s"),
        (60, "1 min 0 s"),
        (185.2, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (timedelta(days=4, hours=3), "4 d 3 h"),
    ],
)
def test_a_duration_is_written_in_its_largest_units(value: float | None, text: str) -> None:
    assert value_formats.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, value_formats.NOTHING),
        (0, "0"),
        (1234567, f"1{SPACE}234{SPACE}567"),
        (0.5, "0.5"),
        (1234.5678, f"1{SPACE}234.568"),
        (Decimal("0.10"), "0.1"),
    ],
)
def test_a_number_has_spaces_between_its_thousands(value: float | None, text: str) -> None:
    assert value_formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, value_formats.NOTHING), (999, "999 B"), (1500, "1.5 kB"), (10**9, "1 GB"), (10**19, "1e+04 PB")],
)
def test_bytes_are_written_in_units_of_a_thousand(value: int | None, text: str) -> None:
    assert value_formats.size(value) == text


def test_a_time_is_written_in_utc() -> None:
    time = datetime.fromisoformat("2026-01-31T23:30:00.123456-02:00")
    assert value_formats.time_of_day(time) == "02-01 01:30:00"
    assert value_formats.exact_time(time) == "2026-02-01 01:30:00.123"
    assert value_formats.exact_time(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01 00:00:00.000"


def test_a_short_id_keeps_the_prefix_and_the_random_end() -> None:
    assert value_formats.short_id("resp_01a209f68b83741f90afb3df2a03899e") == "resp_…2a03899e"
    assert value_formats.short_id("key_1") == "key_1"


@pytest.mark.parametrize(("value", "text"), [('{"a":1}', '{\n  "a": 1\n}'), ("{", "{"), ([1], "[\n  1\n]")])
def test_json_is_indented_and_other_texts_stay(value: object, text: str) -> None:
    assert value_formats.pretty_json(value) == text


def test_json_does_not_grow_by_more_than_a_few_times_its_length() -> None:
    nested = "[" * 900 + "]" * 900
    hostile = f"[{','.join([nested] * 100)}]"
    assert value_formats.pretty_json(hostile) == hostile
    assert len(value_formats.pretty_json({"a": [nested, *([1] * 1000)]})) < 20_000
    usual = '{"a": {"b": [{"c": [1, 2, {"d": "e"}]}]}}'
    assert value_formats.pretty_json(usual).count("\n") == 14
