"""Budgets of keys and tenants in tokens and in money, by day, month or in all, over all replicas. A
response's prompt and most output are reserved before it is accepted, and replaced at its end. So no budget is
exceeded, but by prices that rise while a response runs.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import Final, Literal
from uuid import UUID

from server.caller import Caller, Limits, Period
from server.errors import BudgetExceeded
from server.store.administration import budget_standings, stored_keys
from server.store.administration.budget_standings import BudgetOwner, ModelPrice, NewReservation, Standing
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError

log = logging.getLogger("holdfast.budgets")

OUTPUT_PART: Final = 16
"""The part of what is left that a request without an output limit reserves for its output, at most."""
OUTPUT_TOKENS: Final = 4096
"""Reserved for its output even where they are more than that part."""
Unit = Literal["tokens", "costs"]
_MILLION: Final = Decimal(1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The most that a response may use."""

    response: UUID
    model: str
    stored: bool
    prompt_tokens: int
    output_tokens: int
    limited: bool
    """Whether the request itself limits its output; if not, the budget may."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of a key or a tenant in one unit, and how it stands."""

    owner: str
    period: Period
    today: date
    unit: Unit
    amount: Decimal
    spent: Decimal
    reserved: Decimal

    @property
    def left(self) -> Decimal:
        """The part that is neither spent nor reserved."""
        return max(Decimal(0), self.amount - self.spent - self.reserved)

    def output_room(self, prompt_tokens: int, price: ModelPrice) -> int | None:
        """The output tokens that fit beside a prompt, -1 if not even that fits; None for any number."""
        of_input, of_output = Decimal(1), Decimal(1)
        if self.unit == "costs":
            of_input, of_output = price.input / _MILLION, price.output / _MILLION
        rest = self.left - prompt_tokens * of_input
        if rest < 0:
            return -1
        return int(rest // of_output) if of_output else None


@dataclass(eq=False, slots=True)
class BudgetReservation:
    """The reservations of one request, until it is accepted."""

    tenant: str
    responses: list[UUID] = field(default_factory=list)


class Budgets:
    """Reserves of budgets, and gives back. Any thread."""

    def __init__(self, database: Database, replica: UUID) -> None:
        self._database = database
        self._replica = replica
        self._unreleased: list[BudgetReservation] = []

    @contextmanager
    def reserving(self, caller: Caller) -> Iterator[BudgetReservation]:
        """Surrounds the acceptance of a request; if it raises, what has no row is given back."""
        reservation = BudgetReservation(caller.tenant)
        try:
            yield reservation
        except BaseException:
            self._release(reservation)
            raise

    def reserve(
        self, caller: Caller, reservation: BudgetReservation, demands: Sequence[Demand]
    ) -> list[int] | None:
        """Reserves anew for a request; returns the output of each response, None without a budget. Raises
        BudgetExceeded or DatabaseError.
        """
        limits = caller.settings.limits
        owners = _owners(caller.tenant, caller.key_id, caller.counted_as, caller.limits, limits)
        if not owners:
            return None
        if reservation.responses:
            self._release(reservation)
        reservation.responses = [demand.response for demand in demands]
        model = demands[0].model

        def book(connection: Connection) -> list[int]:
            _lock(connection, owners)
            price = budget_standings.price_now(connection, model)
            outputs = granted_outputs(_read(connection, owners), price, demands)
            new = [_reservation(*each, price) for each in zip(demands, outputs, strict=True)]
            budget_standings.reserve(connection, caller.tenant, caller.counted_as, self._replica, new)
            return outputs

        return self._database.retry(book)

    def reserve_turn(
        self, tenant: str, key_id: str | None, response: UUID, model: str, prompt_tokens: int
    ) -> bool:
        """Reserves the prompt of a further turn; False if a budget has no room. Raises DatabaseError."""

        def book(connection: Connection) -> bool:
            held = stored_keys.limits_of(connection, tenant, key_id)
            owners = _owners(tenant, key_id, held.counted_as, held.key, held.tenant)
            if not owners or not budget_standings.has_reservation(connection, tenant, response):
                return True
            _lock(connection, owners)
            price = budget_standings.price_now(connection, model)
            rooms = [budget.output_room(prompt_tokens, price) for budget in _read(connection, owners)]
            if any(room is not None and room < 0 for room in rooms):
                return False
            cost = prompt_tokens * price.input / _MILLION
            more = NewReservation(response_id=response, stored=True, tokens=prompt_tokens, cost=cost)
            budget_standings.reserve(connection, tenant, held.counted_as, self._replica, [more])
            return True

        return self._database.retry(book)

    def _release(self, reservation: BudgetReservation) -> None:
        if reservation.responses:
            self._unreleased.append(BudgetReservation(reservation.tenant, reservation.responses))
            reservation.responses = []
            self.release_refused()

    def release_refused(self) -> None:
        """Gives back what requests had reserved that were not accepted, as soon as the database answers."""
        for refused in list(self._unreleased):
            release = partial(budget_standings.release, tenant=refused.tenant, responses=refused.responses)
            try:
                self._database.autocommit(release)
            except DatabaseError as error:
                log.warning("reservations of budgets are given back later: %s", type(error).__name__)
                return
            with suppress(ValueError):  # another thread gave it back, too
                self._unreleased.remove(refused)


_Owner = tuple[str, Limits, BudgetOwner]
"""The words for the owner of budgets, the amounts, and the key of the look-up."""


def _owners(
    tenant: str, key_id: str | None, counted_as: str, of_key: Limits, of_tenant: Limits
) -> list[_Owner]:
    """The owners of budgets that hold for a request: its tenant and its key. Pure."""
    owners = [
        (f"tenant {tenant}", of_tenant, BudgetOwner(tenant, None, of_tenant.budget_period)),
        (f"API key {key_id}", of_key, BudgetOwner(tenant, counted_as, of_key.budget_period)),
    ]
    return [owner for owner in owners if owner[1].has_budget]


def _lock(connection: Connection, owners: Sequence[_Owner]) -> None:
    """Locks the tenant's budget, which is that of its keys, too, or else the key's."""
    owner = owners[0][2]
    budget_standings.lock(connection, owner.tenant, owner.key_id)


def _read(connection: Connection, owners: Sequence[_Owner]) -> list[Budget]:
    standings = budget_standings.standings(connection, [owner for _, _, owner in owners])
    return [
        budget
        for (owner, limits, _), standing in zip(owners, standings, strict=True)
        for budget in budgets_of(owner, limits, standing)
    ]


def budgets_of(owner: str, limits: Limits, standing: Standing) -> list[Budget]:
    """The owner's budgets in tokens and in costs, as they stand. Pure."""
    of_owner = (owner, limits.budget_period, standing.today)
    held: list[Budget] = []
    if limits.budget_tokens is not None:
        amounts = (limits.budget_tokens, standing.spent_tokens, standing.reserved_tokens)
        held.append(Budget(*of_owner, "tokens", *map(Decimal, amounts)))
    if limits.budget_cost is not None:
        held.append(
            Budget(*of_owner, "costs", limits.budget_cost, standing.spent_cost, standing.reserved_cost)
        )
    return held


def _reservation(demand: Demand, output: int, price: ModelPrice) -> NewReservation:
    cost = (demand.prompt_tokens * price.input + output * price.output) / _MILLION
    tokens = demand.prompt_tokens + output
    return NewReservation(response_id=demand.response, stored=demand.stored, tokens=tokens, cost=cost)


def granted_outputs(held: Sequence[Budget], price: ModelPrice, demands: Sequence[Demand]) -> list[int]:
    """The output tokens that each response of a request may have. Raises BudgetExceeded. Pure. Without a
    limit of its own a response may have OUTPUT_PART of what is left, or OUTPUT_TOKENS, so that one request
    does not reserve the whole budget.
    """
    prompt = sum(demand.prompt_tokens for demand in demands)
    granted = [demand.output_tokens for demand in demands]
    for budget in held:
        check_budget(budget)
        room = budget.output_room(prompt, price)
        if room is None:
            continue
        most = max(room // OUTPUT_PART, min(room, OUTPUT_TOKENS)) // len(demands)
        granted = [
            output if demand.limited else min(output, most)
            for demand, output in zip(demands, granted, strict=True)
        ]
        too_short = any(
            output <= 0 < demand.output_tokens for demand, output in zip(demands, granted, strict=True)
        )
        if sum(granted) > room or too_short:
            raise _exceeded(budget, prompt + max(sum(granted), 1))
    return granted


def check_budget(budget: Budget) -> None:
    if not budget.left:
        raise _exceeded(budget)


def _exceeded(budget: Budget, tokens: int | None = None) -> BudgetExceeded:
    """The refusal of a request that may use so many tokens, or of any request."""
    renewal = next_period(budget.today, budget.period)
    when = (
        "in all; it does not renew, so ask this server's operator"
        if renewal is None
        else f"a {budget.period}; it renews on {renewal.isoformat()} at 00:00 UTC"
    )
    message = (
        f"You exceeded your current quota: {budget.owner} has a budget of {budget.amount:f} "
        f"{'tokens' if budget.unit == 'tokens' else 'in costs'} {when}. "
        f"{budget.spent:f} are spent, {budget.reserved:f} are reserved by unfinished responses."
    )
    if tokens is not None:
        message += f" This request may use {tokens} tokens: ask for fewer with max_output_tokens."
    return BudgetExceeded(message)


def next_period(today: date, period: Period) -> date | None:
    """The first day of the next period; None if there is none."""
    match period:
        case "day":
            return today + timedelta(days=1)
        case "month":
            return (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        case "total":
            return None
