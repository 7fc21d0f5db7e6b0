from datetime import date
from decimal import Decimal

import pytest

from server.caller import Limits, Period
from server.errors import BudgetExceeded
from server.quotas.budgets import check_budget, next_period
from server.store.administration.spend import Spent

TODAY = date(2026, 12, 31)


@pytest.mark.parametrize(
    ("today", "period", "renewal"),
    [
        (date(2026, 12, 31), "day", date(2027, 1, 1)),
        (date(2026, 12, 31), "month", date(2027, 1, 1)),
        (date(2026, 1, 31), "month", date(2026, 2, 1)),
        (date(2028, 2, 29), "day", date(2028, 3, 1)),
        (date(2026, 11, 1), "total", None),
    ],
)
def test_a_budget_renews_with_its_period(today: date, period: Period, renewal: date | None) -> None:
    assert next_period(today, period) == renewal


def test_the_first_request_beyond_a_budget_is_refused_with_when_it_renews() -> None:
    limits = Limits(budget_tokens=100, budget_period="month")
    check_budget("tenant a", limits, Spent(99, Decimal(0), TODAY))
    with pytest.raises(BudgetExceeded) as refused:
        check_budget("tenant a", limits, Spent(100, Decimal(0), TODAY))
    assert (refused.value.status, refused.value.code) == (429, "insufficient_quota")
    assert (refused.value.type, refused.value.retry) == ("insufficient_quota", False)
    assert "tenant a has a budget of 100 tokens a month; it renews on 2027-01-01" in str(refused.value)


def test_costs_have_a_budget_of_their_own() -> None:
    limits = Limits(budget_cost=Decimal("2.50"), budget_period="total")
    check_budget("API key k", limits, Spent(10**9, Decimal("2.49"), TODAY))
    with pytest.raises(BudgetExceeded, match=r"2\.50 in costs in all; it does not renew"):
        check_budget("API key k", limits, Spent(0, Decimal("2.5"), TODAY))
