from datetime import date
from decimal import Decimal

import pytest

from server.caller import Limits, Period
from server.errors import BudgetExceeded
from server.limits.budgets import (
    OUTPUT_TOKENS,
    Budget,
    Demand,
    budgets_of,
    check_budget,
    granted_outputs,
    next_period,
)
from server.protocol.ids import new_uuid
from server.store.administration.budget_standings import ModelPrice, Standing

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


FREE = ModelPrice(Decimal(0), Decimal(0))


def budget(limits: Limits, spent: int = 0, cost: str = "0", reserved: int = 0, held: str = "0") -> Budget:
    (one,) = budgets_of("tenant a", limits, Standing(spent, Decimal(cost), reserved, Decimal(held), TODAY))
    return one


def demand(prompt: int, output: int, *, limited: bool = False) -> Demand:
    return Demand(
        response=new_uuid(),
        model="m",
        stored=False,
        prompt_tokens=prompt,
        output_tokens=output,
        limited=limited,
    )


def test_a_request_is_refused_when_a_budget_is_spent_or_reserved_with_when_it_renews() -> None:
    limits = Limits(budget_tokens=100, budget_period="month")
    check_budget(budget(limits, spent=99))
    for spent, reserved in ((100, 0), (60, 40), (170, 0)):
        with pytest.raises(BudgetExceeded) as refused:
            check_budget(budget(limits, spent=spent, reserved=reserved))
        assert (refused.value.status, refused.value.code) == (429, "insufficient_quota")
        assert (refused.value.type, refused.value.retry) == ("insufficient_quota", False)
        assert "tenant a has a budget of 100 tokens a month; it renews on 2027-01-01" in str(refused.value)
        assert f"{spent} are spent, {reserved} are reserved by unfinished" in str(refused.value)


def test_costs_have_a_budget_of_their_own() -> None:
    limits = Limits(budget_cost=Decimal("2.50"), budget_period="total")
    check_budget(budget(limits, spent=10**9, cost="2.49"))
    with pytest.raises(BudgetExceeded, match=r"2\.50 in costs in all; it does not renew"):
        check_budget(budget(limits, cost="2.5"))


def test_a_requests_own_output_limit_is_granted_as_a_whole_or_refused() -> None:
    left = budget(Limits(budget_tokens=500), spent=300, reserved=100)
    assert granted_outputs([left], FREE, [demand(20, 80, limited=True)]) == [80]
    with pytest.raises(BudgetExceeded, match="This request may use 101 tokens"):
        granted_outputs([left], FREE, [demand(20, 81, limited=True)])
    assert granted_outputs([left], FREE, [demand(10, 40, limited=True), demand(10, 40, limited=True)])
    with pytest.raises(BudgetExceeded):
        granted_outputs([left], FREE, [demand(10, 40, limited=True), demand(10, 41, limited=True)])


@pytest.mark.parametrize(
    ("left", "granted"),
    [(21, 1), (120, 100), (20 + OUTPUT_TOKENS, OUTPUT_TOKENS), (20 + 160_000, 10_000), (10**9, 30_000)],
)
def test_without_an_output_limit_a_part_of_what_is_left_is_granted(left: int, granted: int) -> None:
    most = budget(Limits(budget_tokens=left))
    assert granted_outputs([most], FREE, [demand(20, 30_000)]) == [granted]
    assert granted_outputs([], FREE, [demand(20, 30_000)]) == [30_000]


@pytest.mark.parametrize("left", [1, 19, 20])
def test_a_prompt_that_leaves_no_token_of_output_is_refused(left: int) -> None:
    with pytest.raises(BudgetExceeded):
        granted_outputs([budget(Limits(budget_tokens=left))], FREE, [demand(20, 30_000)])


def test_costs_bound_the_output_by_the_price_now() -> None:
    price = ModelPrice(Decimal(1000), Decimal(2000))
    held = [budget(Limits(budget_cost=Decimal(1))), budget(Limits(budget_tokens=10**9))]
    assert granted_outputs(held, price, [demand(400, 30_000)]) == [300]
    with pytest.raises(BudgetExceeded, match="in costs"):
        granted_outputs(held, price, [demand(400, 301, limited=True)])
    assert granted_outputs(held[:1], FREE, [demand(400, 30_000)]) == [30_000]


def test_a_prompt_alone_needs_no_room_for_an_output() -> None:
    assert granted_outputs([budget(Limits(budget_tokens=20))], FREE, [demand(20, 0)]) == [0]
