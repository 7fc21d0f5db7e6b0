"""Inserts a response with its input and its first events, in one statement. JSON is passed as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from server.protocol.responses.events import Event
from server.protocol.responses.response import FACTS, ResponseFacts
from server.store import arrays
from server.store.content.item_rows import NEW_ITEMS, NewItem, item_columns
from server.store.content.storage_usage import ITEM_BYTES, ROW_BYTES, TODAY
from server.store.content.stored_items import INPUT
from server.store.log_append import NEW_LOG_ROWS, encode_rows, log_columns
from server.store.tables import READABLE


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
    parameters = _parameters(new, input_items, first_events, replica)
    return bool(connection.execute(statement, parameters).scalar_one())


def committing_insert(
    new: NewResponse, input_items: Sequence[NewItem], first_events: Sequence[Event], replica: UUID | None
) -> tuple[str, list[object]]:
    """`insert` as query and values for `Database.scalar`, which commits it in one exchange with Postgres."""
    query, names = _NUMBERED_INSERT[new.previous_id is not None, replica is not None]
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


def _insert_statement(follows: bool, more: Mapping[str, str]) -> TextClause:
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
    return text(
        f"""
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
    )


_RUNNING = {
    "status": "'in_progress'",
    "attempt": "1",
    "replica_id": ":replica_id",
    "started_at": "clock_timestamp()",
}

_QUEUED = {"status": "'queued'", "attempt": "0", "queued_at": "clock_timestamp()"}

_INSERT = {
    (follows, runs): _insert_statement(follows, _RUNNING if runs else _QUEUED)
    for follows in (False, True)
    for runs in (False, True)
}
"""Statements by whether the response follows another, and whether a replica runs it."""

_NUMBERED_INSERT = {key: arrays.with_numbers(statement) for key, statement in _INSERT.items()}
