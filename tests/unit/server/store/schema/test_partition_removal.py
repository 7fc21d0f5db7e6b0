from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from server.store.content.deletion import EVERYTHING, HIGHEST, LOWEST, ExpiredRange
from server.store.schema.partitions import (
    GIVEN_UP_AFTER,
    MAX_DEFAULT_ROWS,
    MAX_MOVED,
    MAX_MOVED_ITEMS,
    MIN_DUE,
    Partition,
    Survey,
    TimeRange,
    due_ranges,
    is_dropped,
    row_by_row,
    time_of,
)

NOW = datetime(2026, 11, 23, 16, 40, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
DAYS = 30
WIDTH = 3 * DAY


@pytest.mark.parametrize(
    ("survey", "dropped"),
    [
        (Survey(0, 0, 0, 0), True),
        (Survey(5, 5, 0, 0), True),
        (Survey(MIN_DUE - 1, 0, 0, 0), False),
        (Survey(MIN_DUE, 0, 0, 0), True),
        (Survey(MIN_DUE + MAX_MOVED, MAX_MOVED, MAX_MOVED_ITEMS, 0), True),
        (Survey(10**6, MAX_MOVED + 1, 0, 0), False),
        (Survey(10**6, 1, MAX_MOVED_ITEMS + 1, 0), False),
        (Survey(10**6, 1, 1, MAX_DEFAULT_ROWS), False),
    ],
)
def test_a_partition_is_dropped_if_many_rows_are_due_and_few_stay(survey: Survey, dropped: bool) -> None:
    assert is_dropped(survey) is dropped


def partition(name: str, end: datetime) -> Partition:
    return Partition(name, TimeRange(end - WIDTH, end), -1)


def test_partitions_are_due_when_their_end_is_beyond_the_retention() -> None:
    found = [partition("a", NOW - DAYS * DAY), partition("b", NOW - DAYS * DAY + HOUR)]
    assert due_ranges(found, NOW, DAYS) == found[:1]
    assert due_ranges(found, NOW, 0) == []


def test_rows_of_the_next_partition_wait_if_they_expire_shortly_before_it_goes() -> None:
    end = NOW - DAYS * DAY + DAY
    found = [partition("next", end), partition("later", end + WIDTH)]
    ranges = row_by_row(found, NOW, DAYS)
    assert [(time_of(one.low), one.until) for one in ranges] == [
        (end, None),
        (end - WIDTH, end + DAYS * DAY - WIDTH),
        (time_of(LOWEST), None),
    ]
    assert ranges[0].high == HIGHEST
    assert all(later.low == earlier.high for later, earlier in pairwise(ranges))


def test_nothing_waits_without_retention_or_without_a_partition_that_goes_soon() -> None:
    soon = partition("soon", NOW - DAYS * DAY + HOUR)
    assert row_by_row([soon], NOW, 0) == EVERYTHING
    assert row_by_row([], NOW, DAYS) == EVERYTHING
    assert row_by_row([partition("later", soon.range.end + WIDTH)], NOW, DAYS) == EVERYTHING


def test_nothing_waits_for_a_partition_that_is_not_dropped() -> None:
    due = partition("due", NOW - DAYS * DAY - HOUR)
    assert len(row_by_row([due], NOW, DAYS)) == 3
    assert row_by_row([due], NOW, DAYS, frozenset({"due"})) == EVERYTHING
    assert row_by_row([due], NOW + GIVEN_UP_AFTER, DAYS) == EVERYTHING


def test_the_first_partition_begins_with_the_lowest_id() -> None:
    end = NOW - DAYS * DAY + HOUR
    first = Partition("first", TimeRange(datetime(1970, 1, 1, tzinfo=UTC), end), -1)
    *_, last = row_by_row([first], NOW, DAYS)
    assert last == ExpiredRange(LOWEST, last.high, end + DAYS * DAY - WIDTH)
