"""Budgets of keys and tenants in tokens and in money, by day, month or in all.

They are checked before a response is accepted: the first request after a budget is used up is refused.
Responses that run already may exceed it.
"""

from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

from server.caller import Caller, Limits, Period
from server.errors import BudgetExceeded
from server.store.administration import spend
from server.store.administration.spend import Spent
from server.store.database import Database


@dataclass(frozen=True, slots=True)
class Budgets:
    """Reads what was spent. Any thread."""

    database: Database

    def check(self, caller: Caller) -> None:
        """Raises BudgetExceeded, or DatabaseError. Without a budget there is no query."""
        tenant = caller.tenant
        for whose, key_id, limits in (
            (f"API key {caller.key_id}", caller.counted_as, caller.limits),
            (f"tenant {tenant}", None, caller.settings.limits),
        ):
            if limits.budget_tokens is None and limits.budget_cost is None:
                continue
            period = limits.budget_period
            spent = self.database.autocommit(
                partial(spend.spent, tenant=tenant, key_id=key_id, period=period)
            )
            check_budget(whose, limits, spent)


def check_budget(whose: str, limits: Limits, spent: Spent) -> None:
    """Raises BudgetExceeded if one of the budgets is used up."""
    if limits.budget_tokens is not None and spent.tokens >= limits.budget_tokens:
        what = f"{limits.budget_tokens} tokens"
    elif limits.budget_cost is not None and spent.cost >= limits.budget_cost:
        what = f"{limits.budget_cost:f} in costs"
    else:
        return
    renewal = next_period(spent.today, limits.budget_period)
    when = (
        "in all; it does not renew, so ask this server's operator"
        if renewal is None
        else f"a {limits.budget_period}; it renews on {renewal.isoformat()} at 00:00 UTC"
    )
    raise BudgetExceeded(f"You exceeded your current quota: {whose} has a budget of {what} {when}.")


def next_period(today: date, period: Period) -> date | None:
    """The first day of the next period; None if there is none."""
    match period:
        case "day":
            return today + timedelta(days=1)
        case "month":
            return (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        case "total":
            return None
