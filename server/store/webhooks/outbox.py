"""The outbox of webhooks: `enqueue` with a response's end, claims, results of attempts, giving up, retention;
deliveries as operators see them: lists, and attempts made anew.

A delivery waits while `next_attempt_at` is set. A claim moves that time to its own end, so that the delivery
of a replica that dies is due again then. An attempt's number fences its result: a failure that is reported
after another replica has claimed the delivery changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, and_, func, select, text, update

from server.protocol.list_pages import PageRequest
from server.store import arrays
from server.store.content.responses import ResponseKey
from server.store.driver_statements import execute_later
from server.store.keyset_page import distinct, rows_after
from server.store.tables import webhook_deliveries

RETRIED_FOR = timedelta(hours=72)
"""The time of attempts after a response's end or a redelivery; OpenAI's value."""
ENDED_KEPT = timedelta(days=7)
"""The time for which a delivery is kept that was delivered or given up."""
MAX_PENDING = 10_000
"""Deliveries of one endpoint that wait; of more the oldest are given up."""
_BATCH = 1000
_ENQUEUE = arrays.with_numbers(f"""
    with ended as materialized (
        select r.tenant, r.id, 'response.' || r.status as type, r.background, r.finished_at,
               gen_random_uuid() as event_id
        from {arrays.unnest("k", ResponseKey)}
        join responses r on r.tenant = k.tenant and r.id = k.id
        where exists (select from webhook_endpoints)
          and r.finished_at is not null and r.deleted_at is null and r.choice is null)
    insert into webhook_deliveries
        (tenant, endpoint_id, event_id, response_id, type, created_at, next_attempt_at, give_up_at)
    select e.tenant, w.id, e.event_id, e.id, e.type, e.finished_at, clock_timestamp(),
           clock_timestamp() + interval '{RETRIED_FOR.days} days'
    from ended e join webhook_endpoints w on w.tenant = e.tenant
    where w.disabled_at is null and e.type = any(w.event_types) and (e.background or w.all_responses)
""")


def enqueue(connection: Connection, ended: Sequence[ResponseKey]) -> None:
    """Adds deliveries of the ends of these responses, in the transaction that ends them. Responses that are
    not stored, deleted, or choices of chat completions have none.
    """
    if ended:
        execute_later(connection, _ENQUEUE, arrays.fields(ResponseKey, ended))


class Claimed(NamedTuple):
    """A delivery to attempt, and where to."""

    tenant: str
    id: UUID
    endpoint_id: UUID
    event_id: UUID
    response_id: UUID
    type: str
    created_at: datetime
    attempt: int
    url: str
    secret: str
    old_secret: str | None
    """Sealed, as `secret`."""


_WAITING = distinct("waiting", "endpoint_id", "webhook_deliveries", "next_attempt_at is not null")
"""The endpoints with deliveries that wait, by the index of due ones."""
_DUE_ENDPOINTS = text(f"""
    with recursive {_WAITING}
    select w.id from waiting join webhook_endpoints w on w.id = waiting.endpoint_id
    where w.disabled_at is null and exists (
        select from webhook_deliveries d
        where d.endpoint_id = w.id and d.next_attempt_at <= clock_timestamp())
    order by exists (
        select from webhook_deliveries d
        where d.endpoint_id = w.id and d.next_attempt_at is not null and d.attempts > 0)
""")


def due_endpoints(connection: Connection) -> list[UUID]:
    """The endpoints that are not disabled and have due deliveries; last those that wait for a repetition."""
    return list(connection.scalars(_DUE_ENDPOINTS))


_CLAIM = text("""
    with candidates as materialized (
        select c.*, row_number() over (partition by w.id order by c.next_attempt_at) as of_endpoint
        from unnest(cast(:endpoints as uuid[]), cast(:room as integer[])) as w (id, room)
        cross join lateral (
            select d.tenant, d.id, d.next_attempt_at from webhook_deliveries d
            where d.endpoint_id = w.id and d.next_attempt_at <= clock_timestamp()
            order by d.next_attempt_at limit w.room) c),
    turns as materialized (
        select *, row_number() over (partition by tenant order by of_endpoint, next_attempt_at) as of_tenant
        from candidates),
    chosen as materialized (
        select d.tenant, d.id from turns t join webhook_deliveries d on d.tenant = t.tenant and d.id = t.id
        where d.next_attempt_at <= clock_timestamp()
        order by t.of_tenant, t.next_attempt_at limit :limit for update of d skip locked),
    claimed as (
        update webhook_deliveries d
        set attempts = d.attempts + 1, next_attempt_at = clock_timestamp() + cast(:lease as interval)
        from chosen c where d.tenant = c.tenant and d.id = c.id
        returning d.tenant, d.id, d.endpoint_id, d.event_id, d.response_id, d.type, d.created_at, d.attempts)
    select d.*, w.url, w.secret, case when w.old_secret_until > clock_timestamp() then w.old_secret end
    from claimed d join webhook_endpoints w on w.tenant = d.tenant and w.id = d.endpoint_id
""")


def claim(connection: Connection, *, limit: int, lease: timedelta, room: Mapping[UUID, int]) -> list[Claimed]:
    """Claims due deliveries for `lease`, as many of each endpoint as `room` says, in turns by tenant."""
    parameters = {"limit": limit, "lease": lease, "endpoints": list(room), "room": list(room.values())}
    return [Claimed(*row) for row in connection.execute(_CLAIM, parameters)]


@dataclass(frozen=True, slots=True)
class AttemptResult:
    tenant: str
    id: UUID
    attempt: int
    status: int | None
    """The HTTP status of the answer; None without one."""
    error: str | None
    """None if it was delivered."""
    pause: timedelta = timedelta(0)
    """Until the next attempt, of one that failed."""


_SETTLE = text(f"""
    update webhook_deliveries d set
        last_attempt_at = clock_timestamp(), last_status = s.status, last_error = s.error,
        delivered_at = case when s.error is null then clock_timestamp() end,
        given_up_at = case when s.error is not null and clock_timestamp() + s.pause > d.give_up_at
            then clock_timestamp() end,
        next_attempt_at = case when s.error is not null and clock_timestamp() + s.pause <= d.give_up_at
            then clock_timestamp() + s.pause end
    from {arrays.unnest("s", AttemptResult)}
    where d.tenant = s.tenant and d.id = s.id and d.delivered_at is null
      and (s.error is null or d.attempts = s.attempt)
    returning d.tenant, d.given_up_at is not null
""")


def settle(connection: Connection, results: Sequence[AttemptResult]) -> int:
    """Writes the results of attempts; returns how many of the deliveries are given up with them."""
    if not results:
        return 0
    settled = connection.execute(_SETTLE, arrays.fields(AttemptResult, results))
    return sum(given_up for _, given_up in settled)


class GivenUp(NamedTuple):
    """Deliveries of an endpoint that are not attempted any more."""

    endpoint_id: UUID
    deliveries: int
    reason: str


DELETED, LATE, TOO_MANY = "the endpoint was deleted", "its time is over", "too many wait"
_GIVE_UP = text(f"""
    with recursive {_WAITING},
    unwanted as materialized (
        select d.tenant, d.id, case when w.id is null then '{DELETED}'
                                    when d.give_up_at < clock_timestamp() then '{LATE}'
                                    else '{TOO_MANY}' end as reason
        from waiting
        left join webhook_endpoints w on w.id = waiting.endpoint_id
        cross join lateral (
            select p.tenant, p.id, p.give_up_at,
                   row_number() over (order by p.created_at desc, p.id) as place
            from webhook_deliveries p
            where p.endpoint_id = waiting.endpoint_id and p.next_attempt_at is not null) d
        where w.id is null or d.give_up_at < clock_timestamp() or d.place > :most
        limit {_BATCH}),
    given_up as (
        update webhook_deliveries d set next_attempt_at = null, given_up_at = clock_timestamp(),
            last_error = case when u.reason = '{LATE}' then d.last_error else u.reason end
        from unwanted u where d.tenant = u.tenant and d.id = u.id and d.next_attempt_at is not null
        returning d.endpoint_id, u.reason)
    select endpoint_id, count(*), reason from given_up group by endpoint_id, reason
""")


def give_up_unwanted(connection: Connection, most: int = MAX_PENDING) -> list[GivenUp]:
    """Gives up a batch of what waits for deleted endpoints, is late, or is beyond an endpoint's `most`."""
    return [GivenUp(*row) for row in connection.execute(_GIVE_UP, {"most": most})]


_DELETE_OLD = text(f"""
    delete from webhook_deliveries where (tenant, id) in (
        select tenant, id from webhook_deliveries
        where next_attempt_at is null
          and coalesce(delivered_at, given_up_at) < clock_timestamp() - interval '{ENDED_KEPT.days} days'
        limit {_BATCH} for update skip locked)
""")


def delete_ended(connection: Connection) -> bool:
    """Deletes a batch of old deliveries that wait no more; returns whether there may be others."""
    return connection.execute(_DELETE_OLD).rowcount == _BATCH


class Pending(NamedTuple):
    """Deliveries that wait, of all tenants."""

    deliveries: int
    oldest_seconds: float
    """Since the end of the oldest one's response; 0 without any."""


_PENDING = text("""
    select count(*), coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)
    from (select created_at from webhook_deliveries where next_attempt_at is not null limit :most) waiting
""")
MAX_COUNTED = 100_000


def read_pending(connection: Connection) -> Pending:
    """The waiting deliveries, counted up to MAX_COUNTED, and the delay of the oldest."""
    count, seconds = connection.execute(_PENDING, {"most": MAX_COUNTED}).one()
    return Pending(count, max(0.0, float(seconds)))


DeliveryState = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class StoredDelivery:
    tenant: str
    id: UUID
    endpoint_id: UUID
    event_id: UUID
    response_id: UUID
    type: str
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    given_up_at: datetime | None

    @property
    def state(self) -> DeliveryState:
        if self.delivered_at is not None:
            return "delivered"
        return "pending" if self.given_up_at is None else "given_up"


_COLUMNS = webhook_deliveries.c
_SELECT = select(*(_COLUMNS[name] for name in StoredDelivery.__dataclass_fields__))
_STATES: dict[DeliveryState, ColumnElement[bool]] = {
    "pending": _COLUMNS.next_attempt_at.is_not(None),
    "delivered": _COLUMNS.delivered_at.is_not(None),
    "given_up": and_(_COLUMNS.given_up_at.is_not(None), _COLUMNS.delivered_at.is_(None)),
}
STATES: tuple[DeliveryState, ...] = tuple(_STATES)


def list_page(
    connection: Connection,
    tenant: str,
    endpoint: UUID,
    state: DeliveryState | None,
    asked: PageRequest,
) -> list[StoredDelivery]:
    """An endpoint's deliveries after one, by age; one more than the limit. Raises InvalidRequest."""
    of_endpoint = _SELECT.where(_COLUMNS.tenant == tenant, _COLUMNS.endpoint_id == endpoint)
    query = of_endpoint if state is None else of_endpoint.where(_STATES[state])
    order, kind = (_COLUMNS.created_at, _COLUMNS.id), "a delivery of this webhook endpoint"
    rows = rows_after(connection, query, order, asked, among=of_endpoint, kind=kind)
    return [StoredDelivery(**row._mapping) for row in rows]


def redeliver(connection: Connection, tenant: str, endpoint: UUID, delivery: UUID | None, limit: int) -> int:
    """Makes a delivery due now, or without one the newest that were given up; returns how many."""
    chosen = _STATES["given_up"] if delivery is None else _COLUMNS.id == delivery
    newest = (
        select(_COLUMNS.tenant, _COLUMNS.id)
        .where(_COLUMNS.tenant == tenant, _COLUMNS.endpoint_id == endpoint, chosen)
        .order_by(_COLUMNS.created_at.desc())
        .limit(limit)
        .with_for_update(skip_locked=delivery is None)
        .cte("newest")
    )
    again = (
        update(webhook_deliveries)
        .where(_COLUMNS.tenant == newest.c.tenant, _COLUMNS.id == newest.c.id)
        .values(
            next_attempt_at=func.clock_timestamp(),
            give_up_at=func.clock_timestamp() + RETRIED_FOR,
            delivered_at=None,
            given_up_at=None,
            last_error=None,
        )
    )
    return connection.execute(again).rowcount
