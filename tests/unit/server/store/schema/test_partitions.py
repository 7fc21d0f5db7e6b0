from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest

from server.protocol import ids
from server.store.schema.partitions import HOUR, TimeRange, missing_ranges, time_of, width_of

NOW = datetime(2026, 11, 23, 16, 40, tzinfo=UTC)


@pytest.mark.parametrize(
    ("retention_days", "hours"), [(0, 720), (1, 2), (7, 16), (30, 72), (365, 720), (36500, 720)]
)
def test_a_partition_is_a_tenth_of_the_retention_wide(retention_days: int, hours: int) -> None:
    assert width_of(retention_days) == timedelta(hours=hours)


def test_ranges_follow_the_last_one_without_gaps_up_to_two_widths_ahead() -> None:
    end = NOW.replace(hour=0, minute=0)
    found = list(missing_ranges(end + timedelta(days=2), NOW, timedelta(days=3)))
    assert found[0].start == end + timedelta(days=2)
    assert all(left.end == right.start for left, right in pairwise(found))
    assert found[-1].end >= NOW + timedelta(days=6)
    assert found[-1].start < NOW + timedelta(days=6)


def test_ranges_end_at_multiples_of_the_width_and_none_is_narrower_than_half_of_it() -> None:
    width = timedelta(days=3)
    for hours in range(1, 100):
        for start, end in missing_ranges(NOW.replace(minute=0) + hours * HOUR, NOW, width):
            assert (end - datetime(1970, 1, 1, tzinfo=UTC)) % width == timedelta(0)
            assert width / 2 <= end - start <= width * 1.5


def test_nothing_is_missing_where_partitions_reach_far_enough() -> None:
    assert list(missing_ranges(NOW + timedelta(days=6), NOW, timedelta(days=3))) == []


def test_after_a_gap_the_first_range_begins_where_no_row_can_be_yet() -> None:
    """Rows of the gap are in the default partition, which must not overlap a new one."""
    first = next(missing_ranges(NOW - timedelta(days=40), NOW, timedelta(days=3)))
    assert first.start == datetime(2026, 11, 23, 18, tzinfo=UTC)


def test_narrow_partitions_are_made_for_a_day() -> None:
    found = list(missing_ranges(NOW.replace(minute=0) + HOUR, NOW, timedelta(hours=2)))
    assert found[-1] == TimeRange(NOW.replace(hour=16, minute=0) + 24 * HOUR, found[-1].end)


def test_the_time_of_an_id_is_that_of_its_making() -> None:
    at = 1_800_000_000_123
    assert time_of(ids.min_uuid_at(at)) == datetime.fromtimestamp(at / 1000, UTC)
    assert time_of(UUID(int=0)) == datetime(1970, 1, 1, tzinfo=UTC)


def test_an_items_id_names_its_response() -> None:
    response = ids.new_uuid()
    for side in ("i", "o"):
        assert ids.response_of_item(ids.item_id("msg", response, side, 300)) == response
    assert ids.response_of_item(f"mcpr_{response.hex}o1_{response.hex}") == response
    for odd in ("msg_1", ids.item_id("msg", response, "c", 0), ids.response_id(response), ""):
        assert ids.response_of_item(odd) is None
