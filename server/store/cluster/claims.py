"""Ownership of unfinished responses: queue, claims, release, cancellation requests, end of undecodable ones.

An unfinished response is owned by the replica in `replica_id`. The queue is the unfinished responses without
one: background responses that wait, responses that a stopping replica released, and those of dead replicas.
"""

from collections.abc import Collection, Sequence
from uuid import UUID

from sqlalchemy import Connection, text

from engine.request import IDLE_PRIORITY
from server.protocol.responses.request import COMPLETION_WINDOWS
from server.protocol.responses.response import CancelReason, Ending
from server.store import arrays
from server.store.administration import ledger
from server.store.cluster import leases
from server.store.cluster.installation import NOT_HELD
from server.store.content import deletion, responses
from server.store.content.responses import ResponseKey, StoredResponse, read_rows
from server.store.database import Database, commit_synchronously
from server.store.database_errors import OwnershipLost
from server.store.keyset_page import distinct
from server.store.webhooks import outbox

_UNOWNED = "replica_id is null and status in ('queued', 'in_progress')"
_SET_OWNER = """
    update responses r set status = 'in_progress', replica_id = :me, attempt = attempt + 1,
        started_at = coalesce(started_at, clock_timestamp())
    from chosen c where r.tenant = c.tenant and r.id = c.id
    returning r.tenant, r.id
"""
_CLAIM_TO_END = text(f"""
    with chosen as materialized (
        select tenant, id from responses
        where {_UNOWNED} and (not background or cancel_requested_at is not null or deaths >= :most_deaths)
        order by priority, queued_at limit :limit for update skip locked)
    {_SET_OWNER}
""")
_WAITING_FOR_MODEL = f"""
    {_UNOWNED} and background and deaths < :most_deaths
    and model = any(cast(:models as text[])) and {NOT_HELD}
"""
_IN_CLASS = f"(r.priority >= {IDLE_PRIORITY}) = :idle"
_CLAIM_WAITING = text(f"""
    with recursive {distinct("waiting", "tenant", "responses", _UNOWNED)},
    candidates as materialized (
        select t.tenant, c.id, c.priority, c.queued_at, c.turn + (
            select count(*) from responses r
            where r.tenant = t.tenant and r.status = 'in_progress' and r.replica_id is not null
              and {_IN_CLASS}) as turn
        from waiting t left join tenants own on own.tenant = t.tenant cross join lateral (
            select id, priority, queued_at, row_number() over (order by priority, queued_at) as turn
            from responses r where tenant = t.tenant and {_IN_CLASS} and {_WAITING_FOR_MODEL}
            order by priority, queued_at limit :looked_at) c
        where t.tenant is not null and t.tenant <> all(cast(:full as text[]))
          and (own.max_unfinished is null or c.turn <= own.max_unfinished - (
            select count(*) from responses r
            where r.tenant = t.tenant and r.status = 'in_progress' and r.replica_id = :me
              and {_IN_CLASS}))),
    chosen as materialized (
        select r.tenant, r.id from candidates c join responses r on r.tenant = c.tenant and r.id = c.id
        where {_WAITING_FOR_MODEL}
        order by c.turn, c.priority, c.queued_at limit :limit for update of r skip locked)
    {_SET_OWNER}
""")
_CANDIDATES_PER_CLAIM = 4
"""Candidates of each tenant for one claimed response, because other replicas may have locked the first."""


def claim_to_end(connection: Connection, me: UUID, *, most_deaths: int, limit: int) -> list[StoredResponse]:
    """Claims responses that are only to be ended: foreground ones whose replica died, cancelled ones, and
    those with `most_deaths` deaths. The caller's transaction has passed the fence.
    """
    parameters = {"me": me, "most_deaths": most_deaths, "limit": limit}
    return read_rows(connection, [ResponseKey(*row) for row in connection.execute(_CLAIM_TO_END, parameters)])


def claim_waiting(
    connection: Connection,
    me: UUID,
    *,
    models: Sequence[str],
    full: Collection[str],
    most_deaths: int,
    limit: int,
    idle: bool = False,
) -> list[StoredResponse]:
    """Claims background responses to generate that have fewer than `most_deaths`, fairly by tenant: those
    with a completion window if `idle`, else the others.

    The next one belongs to the tenant with the fewest in progress; within a tenant, it has the lowest
    priority number and waits longest. Tenants in `full` are skipped, and those that have as many here as
    their settings allow. The caller's transaction has passed the fence.
    """
    parameters = {"me": me, "models": list(models), "full": list(full), "most_deaths": most_deaths}
    limits = {"limit": limit, "looked_at": _CANDIDATES_PER_CLAIM * limit, "idle": idle}
    claimed = connection.execute(_CLAIM_WAITING, {**parameters, **limits})
    return read_rows(connection, [ResponseKey(*row) for row in claimed])


_RELEASE = f"""
    with chosen as materialized (
        select tenant, id from responses
        where replica_id = :me and status = 'in_progress'
          and (tenant, id) in (select * from {arrays.unnest("k", ResponseKey)})
        for update {{skip_locked}})
    update responses r set replica_id = null, deaths = deaths + :deaths * {leases.COUNTED_DEATH}
    from chosen c where r.tenant = c.tenant and r.id = c.id
"""
_RELEASE_ALL = text(_RELEASE.format(skip_locked=""))
_RELEASE_UNLOCKED = text(_RELEASE.format(skip_locked="skip locked"))


def release(
    connection: Connection,
    me: UUID,
    keys: Sequence[ResponseKey],
    *,
    died: bool = False,
    skip_locked: bool = False,
) -> int:
    """Puts responses of this replica back into the queue; returns how many. Fenced by the caller. `died`
    counts one more death of each response whose attempt made no progress; `claim_to_end` allows a limited
    number. Responses that this replica no longer owns stay as they are, and so do locked ones with
    `skip_locked`.
    """
    if not keys:
        return 0
    parameters = {"me": me, "deaths": int(died), **arrays.fields(ResponseKey, keys)}
    return connection.execute(_RELEASE_UNLOCKED if skip_locked else _RELEASE_ALL, parameters).rowcount


_CLAIM_AGAIN = text("""
    update responses set status = 'in_progress', replica_id = :me, attempt = :attempt,
        started_at = coalesce(started_at, clock_timestamp())
    where tenant = :tenant and id = :id and replica_id is null and attempt = :attempt - 1
      and status in ('queued', 'in_progress')
""")


def claim_again(connection: Connection, me: UUID, key: ResponseKey, attempt: int) -> bool:
    """Repeats a claim that the database has lost; False if another replica has the response. Fenced."""
    parameters = {"me": me, "tenant": key.tenant, "id": key.id, "attempt": attempt}
    return connection.execute(_CLAIM_AGAIN, parameters).rowcount == 1


_IS_WAITING = text(f"select exists (select 1 from responses where {_UNOWNED})")
_OWNED = text("select tenant, id from responses where replica_id = :me and status = 'in_progress'")
_CANCEL_REQUESTED = text(
    "select id, cancel_reason from responses"
    " where replica_id = :me and status = 'in_progress' and cancel_requested_at is not null"
)
_WAITING = "select count(*) from (select 1 from responses where {which} limit :most) as waiting"
_WAITING_OF_ALL = text(_WAITING.format(which=_UNOWNED))
_WAITING_OF_TENANT = text(_WAITING.format(which=f"tenant = :tenant and {_UNOWNED}"))


def is_waiting(connection: Connection) -> bool:
    """Whether the queue has a response, whatever is to be done with it."""
    return bool(connection.execute(_IS_WAITING).scalar_one())


def owned_responses(connection: Connection, me: UUID) -> list[ResponseKey]:
    """The unfinished responses that this replica owns."""
    return [ResponseKey(*row) for row in connection.execute(_OWNED, {"me": me})]


def cancel_requested(connection: Connection, me: UUID) -> list[tuple[UUID, CancelReason | None]]:
    """The owned responses with a cancellation request, and why."""
    return [(id_, reason) for id_, reason in connection.execute(_CANCEL_REQUESTED, {"me": me})]


def count_waiting(connection: Connection, most: int, tenant: str | None = None) -> int:
    """The length of the queue, or of a tenant's part of it, counted up to `most`."""
    query = _WAITING_OF_ALL if tenant is None else _WAITING_OF_TENANT
    return int(connection.execute(query, {"most": most, "tenant": tenant}).scalar_one())


_UNSERVED = text(f"""
    select model, count(*) from (
        select model from responses r
        where {_UNOWNED} and background and cancel_requested_at is null and not exists (
            select from replicas p
            where p.state = 'alive' and p.role <> 'api' and r.model = any(p.models))
        limit :most) as unserved
    group by model order by 2 desc, 1
""")


def count_unserved(connection: Connection, most: int) -> list[tuple[str, int]]:
    """Queued background responses that no living replica will generate, by model, up to `most` in all."""
    return [(model, count) for model, count in connection.execute(_UNSERVED, {"most": most})]


_REQUEST_CANCEL = """
    update responses set cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
        cancel_reason = coalesce(cancel_reason, :reason)
    where {which} and deleted_at is null and status in ('queued', 'in_progress')
"""
_CANCEL_ONE = text(_REQUEST_CANCEL.format(which="tenant = :tenant and id = :id"))
_CANCEL_OF_KEY = text(_REQUEST_CANCEL.format(which="key_id = :key"))


def request_cancel_of_key(connection: Connection, key_id: str) -> int:
    """Requests cancellation of every unfinished response of an API key; returns how many there are."""
    return connection.execute(_CANCEL_OF_KEY, {"key": key_id, "reason": "key_ended"}).rowcount


WINDOW_LEFT = f"""created_at - clock_timestamp() + case priority {
    " ".join(f"when {priority} then interval '{window}'" for priority, window in COMPLETION_WINDOWS.values())
} end"""
"""The time until a response's completion window ends; null without one."""
_END_WINDOWS = text(
    _REQUEST_CANCEL.format(
        which=f"cancel_requested_at is null and priority >= :idle and {WINDOW_LEFT} < interval '0'"
    )
)


def end_windows(connection: Connection) -> int:
    """Requests cancellation of responses whose completion window has ended; returns how many there are."""
    parameters = {"idle": IDLE_PRIORITY, "reason": "window_ended"}
    return connection.execute(_END_WINDOWS, parameters).rowcount


def request_cancel(connection: Connection, tenant: str, response_id: UUID, reason: CancelReason) -> None:
    """Requests cancellation of an unfinished response. Its owner, or the replica that claims it, ends it."""
    connection.execute(_CANCEL_ONE, {"tenant": tenant, "id": response_id, "reason": reason})


UNDECODABLE_MESSAGE = "What is stored of this response cannot be read, so it cannot be finished."


def fail_undecodable(database: Database, me: UUID, claimed: StoredResponse) -> bool:
    """Fails a claimed response whose stored content cannot be decoded; False if another replica owns it.

    A later release, a damaged disk or a manual change may leave such content. The stream gets no terminal
    event, which `holdfast audit` reports; its log stays as it is, for the retention thread to fold.
    Raises Fenced or DatabaseError.
    """
    tenant, id_ = claimed.tenant, claimed.id
    with database.begin() as connection:
        commit_synchronously(connection)
        ending = Ending(
            status="failed",
            first_token_at=None,
            finished_at=leases.fence(connection, me),
            input_tokens=0,
            cached_tokens=0,
            output_tokens=0,
            reasoning_tokens=0,
            error_code="server_error",
            error_message=UNDECODABLE_MESSAGE,
        )
        try:
            end = responses.End(ResponseKey(tenant, id_), claimed.attempt, ending)
            finished = responses.finish_all(connection, me, [end])[end.key]
        except OwnershipLost:
            return False
        if not ledger.is_metered(connection, tenant, id_):  # damaged rows may have an entry already
            usage = ledger.LedgerEntry(facts=claimed, stored=True, attempt=claimed.attempt)
            ledger.record_usage(connection, [(usage, ending)])
        if finished.deleted:
            deletion.remove_if_unneeded(connection, tenant, id_)
        else:
            outbox.enqueue(connection, [ResponseKey(tenant, id_)])
    return True
