"""Responses: read, lock, finish, insert with input and first events. JSON is passed as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, select, text

from server.logs.context import ResponseFields, response_fields
from server.protocol.responses.events import Event
from server.protocol.responses.response import (
    FACTS,
    TERMINAL_STATUSES,
    CancelReason,
    Ending,
    ResponseFacts,
    Status,
    columns_of,
)
from server.store import arrays
from server.store.content.item_rows import NEW_ITEMS, NewItem, item_columns
from server.store.content.storage_usage import ITEM_BYTES, ROW_BYTES, TODAY, adding
from server.store.content.stored_items import INPUT, OUTPUT
from server.store.database import Database
from server.store.database_errors import OwnershipLost
from server.store.driver_statements import execute
from server.store.keyset_page import distinct
from server.store.log_append import NEW_LOG_ROWS, encode_rows, log_columns
from server.store.tables import READABLE, responses


class ResponseKey(NamedTuple):
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
    rows = execute(connection, _GET, {"tenant": tenant, "id": response_id})
    return StoredResponse(**dict(zip(_FIELDS, rows[0], strict=True))) if rows else None


_FIELDS = tuple(StoredResponse.__dataclass_fields__)
_GET = arrays.with_numbers(
    f"select {', '.join(_FIELDS)} from responses where tenant = :tenant and id = :id and {READABLE}"
)


def find_with_output(
    database: Database, tenant: str, response_id: UUID
) -> tuple[StoredResponse, list[str]] | None:
    """A response as of `get`, with the JSON of its output items in order, of one moment."""
    rows = database.rows(_GET_WITH_OUTPUT, (tenant, response_id))
    if not rows:
        return None
    ((*columns, output),) = rows
    return StoredResponse(**dict(zip(_FIELDS, columns, strict=True))), output


_GET_WITH_OUTPUT = f"""
    select {", ".join(_FIELDS)}, array(
        select cast(payload as text) from items i
        where i.tenant = responses.tenant and i.response_id = responses.id and i.side = {OUTPUT} order by idx)
    from responses where tenant = $1 and id = $2 and {READABLE}
"""


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
_SET_ENDING = ", ".join(f"{name} = {arrays.value('e', name, kind)}" for name, kind in _ENDING_TYPES.items())
_ENDS = arrays.unnest(
    "e", {"tenant": "text", "id": "uuid", "attempt": "integer", "lifetime": "interval", **_ENDING_TYPES}
)
_FINISH = arrays.with_numbers(f"""
    with ends as (select * from {_ENDS}), requests as materialized (
        select r.tenant, r.id, case
            when r.choice is null and strpos(r.asked::text, '"enable_response_messages"\\:true') = 0
            then octet_length(r.asked::text) else 0 end as freed
        from ends e join responses r on r.tenant = e.tenant and r.id = e.id
    ), changed as (
        update responses r set {_SET_ENDING},
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
""")
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
    found = execute(connection, _FINISH, {"replica": replica, **arrays.columns(rows)})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewResponse:
    """A response to insert: a row of facts and of these columns."""

    facts: ResponseFacts
    previous_id: UUID | None
    conversation_id: UUID | None = None
    stream: bool
    priority: int
    seed: int
    prompt_hash: bytes
    request: str
    asked: str
    metadata: str
    choice: int | None = None
    """The index in the chat completion of which it is a choice."""
    weights: str | None = None
    """The digest of the weights that generate it; of a queued one, those of the replica that accepts it."""
    lifetime: timedelta | None
    """Time until it expires; None without expiry."""


def insert(
    connection: Connection,
    new: NewResponse,
    input_items: Sequence[NewItem],
    first_events: Sequence[Event],
    replica: UUID | None,
) -> bool:
    """Inserts a response with its input and its first events, in one statement.

    It runs on `replica`, or waits in the queue if that is None. False, without a change, if its previous
    response does not exist for readers; else that one is locked FOR SHARE and stays until the commit.
    """
    statement = _INSERT[new.previous_id is not None, replica is not None]
    ((count,),) = execute(connection, statement, _parameters(new, input_items, first_events, replica))
    return bool(count)


def committing_insert(
    new: NewResponse, input_items: Sequence[NewItem], first_events: Sequence[Event], replica: UUID | None
) -> tuple[str, list[object]]:
    """`insert` as query and values for `Database.scalar`, which commits it in one exchange with Postgres."""
    query, names = _INSERT[new.previous_id is not None, replica is not None]
    parameters = _parameters(new, input_items, first_events, replica)
    return query, [parameters[name] for name in names]


def _parameters(
    new: NewResponse, input_items: Sequence[NewItem], first_events: Sequence[Event], replica: UUID | None
) -> dict[str, object]:
    parameters = new.facts.facts() | {name: getattr(new, name) for name in _OWN_FIELDS}
    size = ROW_BYTES + len(new.request.encode()) + len(new.asked.encode()) + len(new.metadata.encode())
    parameters |= {"size": size, "replica_id": replica}
    parameters |= item_columns(input_items)
    parameters |= log_columns(
        encode_rows(new.facts.tenant, new.facts.id, 0 if replica is None else 1, first_events, ())
    )
    return parameters


_OWN_FIELDS = [name for name in NewResponse.__dataclass_fields__ if name != "facts"]
_NEW_COLUMNS = [*FACTS, *(name for name in _OWN_FIELDS if name != "lifetime")]


def _insert_statement(follows: bool, more: Mapping[str, str]) -> str:
    """An INSERT with further columns. The first response of a chain has no `root_id`.

    Without a previous response it has no scan, so that Postgres keeps one plan for it: planning takes longer
    than the rest.
    """
    values = {
        **{name: f":{name}" for name in (*_NEW_COLUMNS, "size")},
        "root_id": "previous.root_id" if follows else "null",
        "turn": "previous.turn" if follows else "1",
        "expires_at": "cast(:created_at as timestamptz) + cast(:lifetime as interval)",
        **more,
    }
    previous = f"""
        previous as (
            select coalesce(root_id, id) as root_id, turn + 1 as turn from responses
            where tenant = :tenant and id = :previous_id and {READABLE}
            for share
        ),
        """
    return f"""
        with {previous if follows else ""} response as (
            insert into responses ({", ".join(values)}) select {", ".join(values.values())}
            {"from previous" if follows else ""}
            returning tenant, id, attempt, size
        ), input as (
            insert into items
                (tenant, response_id, side, idx, id, type, role, status, name, call_id, payload, size,
                 for_model)
            select r.tenant, r.id, {INPUT}, place - 1, i.id, type, role, status, name, call_id,
                cast(payload as json), octet_length(payload), for_model
            from response r cross join {NEW_ITEMS}
            returning {ITEM_BYTES} as bytes
        ), events as (
            insert into response_events_hot
                (tenant, response_id, first_seq, n, kind, output_index, content_index, attempt, body)
            select r.tenant, r.id, first_seq, n, kind, output_index, content_index, r.attempt, body
            from response r cross join {NEW_LOG_ROWS}
        ), counted as (
            insert into storage_changes (tenant, day, bytes)
            select tenant, {TODAY}, size + (select coalesce(sum(bytes), 0) from input) from response)
        select count(*) from response
    """


_RUNNING = {
    "status": "'in_progress'",
    "attempt": "1",
    "replica_id": ":replica_id",
    "started_at": "clock_timestamp()",
}
_QUEUED = {"status": "'queued'", "attempt": "0", "queued_at": "clock_timestamp()"}
_INSERT = {
    (follows, runs): arrays.with_numbers(_insert_statement(follows, _RUNNING if runs else _QUEUED))
    for follows in (False, True)
    for runs in (False, True)
}
"""Statements by whether the response follows another, and whether a replica runs it."""
