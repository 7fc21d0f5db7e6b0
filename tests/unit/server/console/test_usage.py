from datetime import date
from decimal import Decimal

import pytest

from server.console.pages.usage import (
    chart,
    csv_rows,
    failures,
    label,
    lists,
    narrowed,
    read_filter,
    shows_users,
)
from server.errors import InvalidRequest
from server.store.administration.usage_sums import UsageFilter, UsageRow

TODAY = date(2026, 11, 23)


def row(part: str, **values: object) -> UsageRow:
    empty = dict.fromkeys(UsageRow._fields)
    sums = dict.fromkeys(UsageRow._fields[UsageRow._fields.index("responses") :], 0)
    return UsageRow(**{**empty, **sums, "part": part, **values})  # type: ignore[arg-type]


def test_a_page_without_arguments_is_the_last_seven_days_by_tenant() -> None:
    assert read_filter({}, TODAY) == UsageFilter.of_days(date(2026, 11, 17), TODAY, by="tenant")


def test_own_dates_go_before_a_period() -> None:
    wanted = read_filter({"period": "30", "from": "2026-01-31", "to": "2026-02-01"}, TODAY)
    assert (wanted.first, wanted.last) == (date(2026, 1, 31), date(2026, 2, 1))


def test_a_period_ends_with_the_last_day() -> None:
    assert read_filter({"period": "30", "to": "2026-03-30"}, TODAY).first == date(2026, 3, 1)


def test_the_fields_are_conditions() -> None:
    wanted = read_filter({"tenant": "acme", "model": "m", "key": "k", "by": "key"}, TODAY)
    assert (wanted.tenant, wanted.model, wanted.key_id, wanted.by) == ("acme", "m", "k", "key")


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"period": "8"}, "period"),
        ({"period": "1e1"}, "period"),
        ({"from": "yesterday"}, "from"),
        ({"from": "0001-01-01"}, "from"),
        ({"to": "9999-12-31"}, "to"),
        ({"from": "2026-11-24"}, "from"),
        ({"from": "2025-01-01"}, "from"),
        ({"by": "day"}, "by"),
        ({"show": "all"}, "show"),
        ({"user": "ana", "model": "m"}, "user"),
        ({"user": "ana", "by": "key"}, "user"),
        ({"by": "user", "period": "90"}, "by"),
    ],
)
def test_what_cannot_be_summed_is_refused(arguments: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_filter(arguments, TODAY)
    assert refused.value.param == param


def test_one_user_is_summed_over_any_period() -> None:
    assert read_filter({"user": "ana", "period": "90"}, TODAY).end_user == "ana"


def test_users_are_shown_beside_other_sums_of_short_periods() -> None:
    assert shows_users(read_filter({}, TODAY))
    assert not shows_users(read_filter({"period": "30"}, TODAY))
    assert not shows_users(read_filter({"model": "m"}, TODAY))
    assert not shows_users(read_filter({"by": "user"}, TODAY))


def test_a_chart_has_every_day_and_what_its_groups_lack_of_it() -> None:
    wanted = UsageFilter.of_days(date(2026, 11, 21), TODAY)
    rows = [
        row("tenant", tenant="a", input_tokens=9),
        row("tenant", tenant="b", input_tokens=5),
        row("day", day=TODAY, input_tokens=10),
        row("day", day=date(2026, 11, 21), input_tokens=7),
        row("chart", day=TODAY, tenant="a", input_tokens=6),
        row("chart", day=date(2026, 11, 21), tenant="a", input_tokens=3),
        row("chart", day=TODAY, tenant="b", input_tokens=4),
    ]
    drawn = chart(rows, wanted, "input")
    assert drawn.days == ["2026-11-21", "2026-11-22", "2026-11-23"]
    assert drawn.names == ["a", "b", "others"]
    assert drawn.values == [[3, 0, 6], [0, 0, 4], [4, 0, 0]]


def test_a_chart_of_all_groups_has_no_others() -> None:
    rows = [
        row("tenant", tenant="a", cost=Decimal("0.3")),
        row("day", day=TODAY, cost=Decimal("0.3")),
        row("chart", day=TODAY, tenant="a", cost=Decimal("0.3")),
    ]
    drawn = chart(rows, UsageFilter.of_days(TODAY, TODAY), "cost")
    assert (drawn.names, drawn.values) == (["a"], [[0.3]])


def test_groups_have_names_that_people_know() -> None:
    assert label(row("key", key_id="id", key_name="of ana"), "key") == "of ana"
    assert label(row("key", key_id="id"), "key") == "id"
    assert label(row("key"), "key") == "no key"
    assert label(row("user", tenant="acme", end_user="ana"), "user") == "ana of acme"


def test_a_group_leads_to_a_page_of_its_own() -> None:
    arguments = {"period": "30", "tenant": "other"}
    assert narrowed(arguments, row("tenant", tenant="a&b"), "tenant") == "period=30&tenant=a%26b"
    user = row("user", tenant="acme", end_user="ana")
    assert narrowed(arguments, user, "user") == "period=30&tenant=acme&user=ana"


def test_the_list_of_the_grouping_is_first_and_whole() -> None:
    rows = [row(part, tenant=str(n), model=str(n)) for part in ("tenant", "model") for n in range(20)]
    found = lists(rows, [], "model")
    assert [(name, len(shown)) for name, shown in found.items()] == [("model", 20), ("tenant", 10)]


def test_failures_are_those_that_did_not_complete_the_most_frequent_first() -> None:
    rows = [
        row("failure", status="completed", responses=9),
        row("failure", status="cancelled", responses=1),
        row("failure", status="failed", error_code="server_error", responses=2),
    ]
    assert [one.status for one in failures(rows)] == ["failed", "cancelled"]


def test_a_file_has_the_columns_that_its_rows_have() -> None:
    names, line = csv_rows([row("chart", day=TODAY, tenant="a", responses=3)])
    assert names[:3] == ["day", "tenant", "responses"]
    assert line[:3] == [TODAY, "a", 3]
