"""Standings of budgets: the tokens and costs that are spent, and reserved for responses that have not ended.

A row of `budget_reservations` is a reservation of one response. The statement that meters the response
deletes it, in the transaction of its end, whichever replica that is on. It counts while its response is
unfinished; one without a row in `responses` counts while the replica that runs it lives, so that nothing has
to be cleared up after a crash before others may use the budget.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.caller import Limits, Period
from server.store import arrays
from server.store.administration.stored_keys import StoredKey
from server.store.administration.tenants import StoredTenant


class BudgetOwner(NamedTuple):
    """The key or the tenant that has a budget, and its period."""

    tenant: str
    key_id: str | None
    """The key as which requests are counted; None for the tenant with all its keys."""
    period: Period


@dataclass(frozen=True, slots=True)
class Standing:
    """Tokens and costs spent in the current period, and reserved for unfinished responses."""

    spent_tokens: int
    spent_cost: Decimal
    reserved_tokens: int
    reserved_cost: Decimal
    today: date
    """The day of the question in UTC."""

    def tokens_left(self, limits: Limits) -> int | None:
        """Tokens that are neither spent nor reserved; None without a budget of tokens."""
        if limits.budget_tokens is None:
            return None
        return max(0, limits.budget_tokens - self.spent_tokens - self.reserved_tokens)

    def cost_left(self, limits: Limits) -> Decimal | None:
        """Costs that are neither spent nor reserved; None without a budget of costs."""
        if limits.budget_cost is None:
            return None
        return max(Decimal(0), limits.budget_cost - self.spent_cost - self.reserved_cost)


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The price of a million tokens now; of input, the higher one of cached and other tokens."""

    input: Decimal
    output: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReservation:
    """Tokens and their cost at most, for a response that may get a row or not."""

    response_id: UUID
    stored: bool
    tokens: int
    cost: Decimal


SETTLE: Final = """
    delete from budget_reservations r using metered m
    where r.tenant = m.tenant and r.response_id = m.response_id
"""
"""SQL that deletes the reservations of the ledger's rows in the CTE `metered`."""
_UNFINISHED = "('queued', 'in_progress')"
_COUNTS = f"""
    case when p.status is not null then p.status in {_UNFINISHED}
    else (not r.stored or r.created_at > clock_timestamp() - interval '10 minutes') and exists (
        select from replicas a where a.id = r.replica_id and a.state = 'alive') end
"""
"""Whether a reservation `r` counts. A response that gets a row has it long before these minutes are over."""
_WITH_RESPONSE = """
    left join lateral (
        select status from responses where tenant = r.tenant and id = r.response_id) p on true
"""
_TODAY = "cast(clock_timestamp() at time zone 'utc' as date)"
_STANDINGS = text(f"""
    select coalesce(s.tokens, 0)::bigint, coalesce(s.cost, 0), coalesce(h.tokens, 0)::bigint,
        coalesce(h.cost, 0), {_TODAY}
    from {arrays.unnest("b", BudgetOwner, place=True)}
    cross join lateral (
        select case b.period when 'day' then {_TODAY}
            when 'month' then cast(date_trunc('month', {_TODAY}) as date)
            else cast('-infinity' as date) end as first_day) d
    cross join lateral (
        select sum(tokens) as tokens, sum(cost) as cost from (
            select tokens, cost from spend
            where b.key_id is null and tenant = b.tenant and day >= d.first_day
            union all
            select tokens, cost from spend
            where b.key_id is not null and tenant = b.tenant and key_id = b.key_id and day >= d.first_day
        ) one) s
    cross join lateral (
        select sum(r.tokens) as tokens, sum(r.cost) as cost from budget_reservations r {_WITH_RESPONSE}
        where r.tenant = b.tenant and (b.key_id is null or r.key_id = b.key_id) and {_COUNTS}) h
    order by b.place
""")
_LOCK_TENANT = text("""
    select set_config('synchronous_commit', 'off', true),
        (select tenant from tenants where tenant = :tenant for no key update)
""")
_LOCK_KEY = text("""
    select set_config('synchronous_commit', 'off', true),
        (select id from api_keys where tenant = :tenant and id = :key_id for no key update)
""")
"""The transaction's commit does not wait for the disk: that of the response follows it in the log."""
_PRICE = text("""
    select greatest(input, cached_input), output from prices
    where model = :model and valid_from <= clock_timestamp() order by valid_from desc limit 1
""")
_INSERT = text(f"""
    insert into budget_reservations (tenant, key_id, replica_id, response_id, stored, tokens, cost)
    select :tenant, :key_id, :replica_id, response_id, stored, tokens, cost
    from {arrays.unnest("n", NewReservation)}
    on conflict (tenant, response_id) do update
        set tokens = budget_reservations.tokens + excluded.tokens,
            cost = budget_reservations.cost + excluded.cost
""")
_RELEASE = text("""
    delete from budget_reservations r where tenant = :tenant and response_id = any(cast(:responses as uuid[]))
        and not exists (select from responses p where p.tenant = r.tenant and p.id = r.response_id)
""")
_EXISTS = text("select from budget_reservations where tenant = :tenant and response_id = :response_id")
_BATCH = 1000
_DELETE_OVER = text(f"""
    delete from budget_reservations where (tenant, response_id) in (
        select r.tenant, r.response_id from budget_reservations r {_WITH_RESPONSE}
        where not ({_COUNTS}) limit {_BATCH})
""")


def standings(connection: Connection, owners: Sequence[BudgetOwner]) -> list[Standing]:
    """The standing of each of the owners in its current period, in their order."""
    if not owners:
        return []
    return [Standing(*row) for row in connection.execute(_STANDINGS, arrays.fields(BudgetOwner, owners))]


def of_keys(connection: Connection, keys: Sequence[StoredKey]) -> dict[str, Standing]:
    """The standings of these keys, by the id of those that have a budget; rotated keys share theirs."""
    owners = {
        key.id: BudgetOwner(key.tenant, key.first_key or key.id, key.properties.limits.budget_period)
        for key in keys
        if key.properties.limits.has_budget
    }
    return dict(zip(owners, standings(connection, list(owners.values())), strict=True))


def of_tenants(connection: Connection, tenants: Collection[StoredTenant]) -> dict[str, Standing]:
    """The standings of these tenants, by the name of those that have a budget."""
    owners = {
        stored.tenant: BudgetOwner(stored.tenant, None, stored.settings.limits.budget_period)
        for stored in tenants
        if stored.settings.limits.has_budget
    }
    return dict(zip(owners, standings(connection, list(owners.values())), strict=True))


def lock(connection: Connection, tenant: str, key_id: str | None) -> None:
    """Locks the budget of a key, or with None that of its tenant, until the transaction ends."""
    if key_id is None:
        connection.execute(_LOCK_TENANT, {"tenant": tenant})
    else:
        connection.execute(_LOCK_KEY, {"tenant": tenant, "key_id": key_id})


def price_now(connection: Connection, model: str) -> ModelPrice:
    """The model's price; zero without one."""
    row = connection.execute(_PRICE, {"model": model}).first()
    return ModelPrice(Decimal(0), Decimal(0)) if row is None else ModelPrice(*row)


def reserve(
    connection: Connection, tenant: str, key_id: str, replica: UUID, new: Sequence[NewReservation]
) -> None:
    """Adds reservations of responses that this replica accepts; a response that has one gets more."""
    owner = {"tenant": tenant, "key_id": key_id, "replica_id": replica}
    connection.execute(_INSERT, {**owner, **arrays.fields(NewReservation, new)})


def has_reservation(connection: Connection, tenant: str, response: UUID) -> bool:
    return connection.execute(_EXISTS, {"tenant": tenant, "response_id": response}).first() is not None


def release(connection: Connection, tenant: str, responses: Sequence[UUID]) -> None:
    """Deletes the reservations of responses that were not accepted; those with a row keep theirs."""
    connection.execute(_RELEASE, {"tenant": tenant, "responses": list(responses)})


def delete_over(connection: Connection) -> bool:
    """Deletes reservations that count no more, such as those of a dead replica; whether there may be more."""
    return connection.execute(_DELETE_OVER).rowcount == _BATCH
