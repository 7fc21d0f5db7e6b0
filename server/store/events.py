"""The event log: the one place that writes stream events, and the one that reads them back.

A commit is fenced: it begins by share-locking the replica's own row, so a replica that was declared dead
can never add to a response that another has taken over. Deltas are packed into rows of one kind each, COPYed,
and folded into a single row when the response ends.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.store.database import driver
from server.wire.events import Event, Kind

Tenant = str
_json = msgspec.json.Encoder().encode
_CODEC_ROWS = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of the log: consecutive events of one kind and place, and the tokens they came from."""

    tenant: Tenant
    response_id: UUID
    first_seq: int
    n: int
    kind: Kind
    output_index: int
    content_index: int
    attempt: int
    body: str
    token_ids: bytes | None


def pack(
    tenant: Tenant, response_id: UUID, attempt: int, events: Sequence[Event], token_ids: Sequence[int]
) -> list[Chunk]:
    """Events of one commit as rows; the tokens travel on the first of them.

    `events` must not be empty if `token_ids` is not: tokens are stored with what they became.
    """
    tokens: bytes | None = array("i", token_ids).tobytes() if token_ids else None
    chunks: list[Chunk] = []
    for group in _runs_of_one_kind(events):
        first = group[0]
        body = first.body if first.kind is Kind.WHOLE else _json([event.body for event in group]).decode()
        chunks.append(
            Chunk(
                tenant,
                response_id,
                first.sequence_number,
                len(group),
                first.kind,
                first.output_index,
                first.content_index,
                attempt,
                body,
                tokens,
            )
        )
        tokens = None
    return chunks


def _runs_of_one_kind(events: Sequence[Event]) -> Iterator[list[Event]]:
    group: list[Event] = []
    for event in events:
        if group and (event.kind is Kind.WHOLE or event[1:4] != group[-1][1:4]):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def unpack(first_seq: int, kind: int, output_index: int, content_index: int, body: bytes) -> list[Event]:
    """The events of one row."""
    if kind == Kind.WHOLE:
        return [Event(first_seq, Kind.WHOLE, 0, 0, body.decode())]
    deltas = msgspec.json.decode(body, type=list[str])
    return [
        Event(first_seq + offset, Kind(kind), output_index, content_index, delta)
        for offset, delta in enumerate(deltas)
    ]


def append(connection: Connection, chunks: Iterable[Chunk]) -> None:
    """Adds rows to the log within the caller's transaction."""
    with (
        driver(connection) as raw,
        raw.cursor() as cursor,
        cursor.copy(
            "copy response_events_hot (tenant, response_id, first_seq, n, kind, output_index,"
            " content_index, attempt, body, token_ids) from stdin (format binary)"
        ) as copy,
    ):
        copy.set_types(["text", "uuid", "int4", "int4", "int2", "int4", "int4", "int4", "text", "bytea"])
        for chunk in chunks:
            copy.write_row(
                (
                    chunk.tenant,
                    chunk.response_id,
                    chunk.first_seq,
                    chunk.n,
                    int(chunk.kind),
                    chunk.output_index,
                    chunk.content_index,
                    chunk.attempt,
                    chunk.body,
                    chunk.token_ids,
                )
            )


_COMPACT = text(
    """
    with gone as (
        delete from response_events_hot where tenant = :tenant and response_id = :id returning *
    )
    insert into response_streams (tenant, response_id, last_seq, codec, body)
    select tenant, response_id, max(first_seq + n) - 1, :codec,
           '[' || string_agg(
               '[' || concat_ws(',', first_seq, n, kind, output_index, content_index, at, body) || ']',
               ',' order by first_seq) || ']'
    from gone
    group by tenant, response_id
    """
)


def compact(connection: Connection, tenant: Tenant, response_id: UUID) -> None:
    """Folds an ended response's rows into one, bodies verbatim, within the caller's transaction."""
    connection.execute(_COMPACT, {"tenant": tenant, "id": response_id, "codec": _CODEC_ROWS})


_HOT = text(
    """
    select first_seq, kind, output_index, content_index, body from response_events_hot
    where tenant = :tenant and response_id = :id and first_seq + n > :first order by first_seq
    """
)
_STREAM = text("select body from response_streams where tenant = :tenant and response_id = :id")
_TOKENS = text(
    """
    select token_ids, first_seq + n from response_events_hot
    where tenant = :tenant and response_id = :id order by first_seq
    """
)


def read(connection: Connection, tenant: Tenant, response_id: UUID, first: int) -> list[Event]:
    """All committed events from sequence number `first` on, in order.

    Hot rows are looked for first: compaction moves them in one transaction, so whoever finds none of them
    finds the compacted stream, and nobody misses an event in between.
    """
    place = {"tenant": tenant, "id": response_id}
    rows = connection.execute(_HOT, {**place, "first": first}).all()
    if rows:
        events = [
            event
            for seq, kind, output, content, body in rows
            for event in unpack(seq, kind, output, content, body.encode())
        ]
    else:
        packed = connection.execute(_STREAM, place).scalar()
        events = list(_unpack_stream(packed)) if packed is not None else []
    return [event for event in events if event.sequence_number >= first]


def progress(connection: Connection, tenant: Tenant, response_id: UUID) -> tuple[list[int], int]:
    """The tokens of a running response in the log, and its next sequence number."""
    tokens: list[int] = []
    next_seq = 0
    for stored, end in connection.execute(_TOKENS, {"tenant": tenant, "id": response_id}):
        tokens += array("i", stored).tolist() if stored is not None else []
        next_seq = end
    return tokens, next_seq


def _unpack_stream(body: str) -> Iterator[Event]:
    rows = msgspec.json.decode(body, type=list[tuple[int, int, int, int, int, float, msgspec.Raw]])
    for first_seq, _, kind, output_index, content_index, _, raw in rows:
        yield from unpack(first_seq, kind, output_index, content_index, bytes(raw))
