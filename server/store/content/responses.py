"""Responses: read, lock, finish. JSON is passed as text; `response_insert.py` inserts them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, bindparam, select, text

from server.logs.context import ResponseFields, response_fields
from server.protocol.responses.response import (
    TERMINAL_STATUSES,
    CancelReason,
    Ending,
    ResponseFacts,
    Status,
    columns_of,
)
from server.store import arrays
from server.store.content.storage_usage import TODAY, adding
from server.store.database_errors import OwnershipLost
from server.store.keyset_page import distinct
from server.store.tables import READABLE, responses


class ResponseKey(NamedTuple):
    """The primary key of a response."""

    tenant: str
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse(ResponseFacts):
    """A response's row."""

    previous_id: UUID | None
    conversation_id: UUID | None
    status: Status
    priority: int
    replica_id: UUID | None
    attempt: int
    deaths: int
    seed: int
    prompt_hash: bytes | None
    cancel_requested_at: datetime | None
    cancel_reason: CancelReason | None = None
    """Why it is to be cancelled, or was."""
    first_token_at: datetime | None
    finished_at: datetime | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    turns: str | None
    error_code: str | None
    error_message: str | None
    incomplete_reason: str | None
    request: str
    asked: str | None
    choice: int | None
    weights: str | None = None
    """The digest of the weights that generate it; None if the engine does not know it."""

    @property
    def log_fields(self) -> ResponseFields:
        """`extra` of a log line about this response."""
        return response_fields(self.id, self.tenant, self.key_id, self.request_id)


STORED_COLUMNS = [responses.c[name] for name in StoredResponse.__dataclass_fields__]


def get(connection: Connection, tenant: str, response_id: UUID) -> StoredResponse | None:
    """A response that exists for readers: neither another tenant's nor deleted or expired."""
    row = connection.execute(_GET, {"of_tenant": tenant, "of_id": response_id}).first()
    return stored_response(row) if row else None


_GET = select(*STORED_COLUMNS).where(
    responses.c.tenant == bindparam("of_tenant"), responses.c.id == bindparam("of_id"), READABLE
)


def read_rows(connection: Connection, places: Iterable[tuple[str, UUID]]) -> list[StoredResponse]:
    """The rows of existing responses, deleted ones included, in the order of their keys."""
    return [
        stored_response(
            connection.execute(
                select(*STORED_COLUMNS).where(responses.c.tenant == tenant, responses.c.id == response_id)
            ).one()
        )
        for tenant, response_id in places
    ]


def stored_response(row: Row[tuple[object, ...]]) -> StoredResponse:
    """The row of `STORED_COLUMNS` as a StoredResponse."""
    return StoredResponse(**row._mapping)


class FinishedRow(NamedTuple):
    """Columns of a finished response that need further work."""

    deleted: bool
    conversation_id: UUID | None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a response that a replica runs in that attempt."""

    key: ResponseKey
    attempt: int
    ending: Ending
    lifetime: timedelta | None = None
    """Sets the time until it expires anew; without it, `expires_at` stays."""


_ENDING_TYPES = {
    name: arrays.type_name(responses.c[name]) for name in (*Ending.__dataclass_fields__, "turns")
}
_ENDS = arrays.unnest(
    "e", {"tenant": "text", "id": "uuid", "attempt": "integer", "lifetime": "interval", **_ENDING_TYPES}
)
_FINISH = text(
    f"""
    with ends as (select * from {_ENDS}), requests as materialized (
        select r.tenant, r.id, case
            when r.choice is null and strpos(r.asked::text, '"enable_response_messages"\\:true') = 0
            then octet_length(r.asked::text) else 0 end as freed
        from ends e join responses r on r.tenant = e.tenant and r.id = e.id
    ), changed as (
        update responses r set {
        ", ".join(f"{name} = {arrays.value('e', name, kind)}" for name, kind in _ENDING_TYPES.items())
    },
            expires_at = coalesce(e.finished_at + e.lifetime, r.expires_at),
            asked = case when q.freed > 0 then null else r.asked end, size = r.size - q.freed
        from ends e join requests q using (tenant, id)
        where r.tenant = e.tenant and r.id = e.id
          and r.replica_id = :replica and r.attempt = e.attempt and r.status = 'in_progress'
        returning r.tenant, r.id, r.deleted_at is not null as deleted, r.conversation_id,
            q.freed
    ), counted as (
        insert into storage_changes (tenant, day, bytes)
        select tenant, {TODAY}, -sum(freed) from changed group by tenant having sum(freed) > 0)
    select tenant, id, deleted, conversation_id from changed
    """
)
"""`asked` goes with the end, but for choices and dumps of tokens, whose reading needs it. Nothing else writes
it, so it is read without a lock."""


def finish_all(connection: Connection, replica: UUID, ends: Sequence[End]) -> dict[ResponseKey, FinishedRow]:
    """Ends responses that this replica runs; they may have been deleted meanwhile.

    Raises OwnershipLost if this replica does not own one of them in that attempt; the transaction must then
    be rolled back. The owners are checked in the newest versions of the rows, after waiting for concurrent
    transactions.
    """
    rows = [
        {
            "tenant": end.key.tenant,
            "id": end.key.id,
            "attempt": end.attempt,
            "lifetime": end.lifetime,
            **columns_of(end.ending),
        }
        for end in ends
    ]
    found = connection.execute(_FINISH, {"replica": replica, **arrays.columns(rows)})
    finished = {ResponseKey(tenant, id_): FinishedRow(*rest) for tenant, id_, *rest in found}
    if len(finished) < len(ends):
        raise OwnershipLost
    return finished


class Owner(NamedTuple):
    """The replica and attempt that run a response, or ran it last."""

    replica_id: UUID | None
    attempt: int
    ended: bool


def get_owner(connection: Connection, tenant: str, response_id: UUID) -> Owner | None:
    """The owner of a response, deleted ones included; None if there is no row."""
    row = connection.execute(
        select(responses.c.replica_id, responses.c.attempt, responses.c.status).where(
            responses.c.tenant == tenant, responses.c.id == response_id
        )
    ).first()
    return None if row is None else Owner(row.replica_id, row.attempt, row.status in TERMINAL_STATUSES)


_SET_WEIGHTS = text("""
    update responses set weights = :weights
    where tenant = :tenant and id = :id and replica_id = :replica and attempt = :attempt
""")


def set_weights(connection: Connection, claimed: StoredResponse, weights: str | None) -> None:
    """Sets the weights of a response that its replica begins; of one that it has lost, nothing."""
    run = {"replica": claimed.replica_id, "attempt": claimed.attempt, "weights": weights}
    connection.execute(_SET_WEIGHTS, {"tenant": claimed.tenant, "id": claimed.id, **run})


_UPDATE_METADATA = adding("""
    update responses set request = cast(:request as json), metadata = cast(:metadata as jsonb),
        size = size + cast(:growth as integer)
    where tenant = :tenant and id = :id
    returning tenant, case when size is not null then cast(:growth as integer) end as bytes
""")


def get_choices(
    connection: Connection, tenant: str, candidates: Sequence[UUID], *, lock: bool = False
) -> list[StoredResponse]:
    """The undeleted choices among `candidates`, ordered by choice; with `lock` until the transaction ends."""
    of_tenant = (responses.c.tenant == tenant, responses.c.id.in_(candidates))
    query = select(*STORED_COLUMNS).where(*of_tenant, responses.c.choice.is_not(None), READABLE)
    query = query.order_by(responses.c.choice)
    return [stored_response(row) for row in connection.execute(query.with_for_update() if lock else query)]


def update_choice_metadata(
    connection: Connection, stored: StoredResponse, request: str, metadata: str
) -> None:
    """Replaces the metadata of a locked response, in both columns that contain it."""
    parameters = {"tenant": stored.tenant, "id": stored.id}
    growth = 2 * (len(request.encode()) - len(stored.request.encode()))
    connection.execute(
        _UPDATE_METADATA, {**parameters, "request": request, "metadata": metadata, "growth": growth}
    )


def tenants(connection: Connection, table: str = "responses") -> list[str]:
    """The tenants that have responses, or rows of another table whose key begins with the tenant."""
    query = f"with recursive {distinct('found', 'tenant', table)} select tenant from found"
    return [tenant for tenant in connection.scalars(text(query)) if tenant is not None]
