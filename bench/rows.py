"""Stored responses by the million: copies of two that a server made, with ids and times of their own.

Their rows are taken and given by COPY, every id in them replaced, so they are what the recorder leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice
from random import getrandbits
from uuid import UUID

import psycopg
from psycopg import sql

from server.protocol.ids import min_uuid_at, new_uuid
from server.store.schema.partitions import TimeRange

TABLES = {
    "responses": "id",
    "items": "response_id",
    "response_streams": "response_id",
    "usage_ledger": "response_id",
}
"""With the column that names the response."""
BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Model:
    """A response's rows, in COPY's text format, by table; what it goes on from is named in them too."""

    id: UUID
    previous: UUID | None
    rows: dict[str, list[str]]


def read_model(connection: psycopg.Connection, response: UUID, previous: UUID | None = None) -> Model:
    rows = {}
    for table, column in TABLES.items():
        query = sql.SQL("copy (select * from {table} where {column} = {id}) to stdout").format(
            table=sql.Identifier(table), column=sql.Identifier(column), id=sql.Literal(response)
        )
        with connection.cursor().copy(query) as copy:
            rows[table] = b"".join(map(bytes, copy)).decode().removesuffix("\n").split("\n")
    assert all(rows.values()), "the response has not ended"
    return Model(response, previous, rows)


def fill(
    connection: psycopg.Connection,
    first: Model,
    later: Model,
    chains: list[int],
    *,
    apart: timedelta = timedelta(milliseconds=1),
    spread: TimeRange | None = None,
) -> list[list[UUID]]:
    """Adds chains of responses of these lengths, so much time between them; the ids of each.

    With no time between them all of a copy's times are its model's, as an audit wants them. With `spread`
    they are of that time, evenly, and so are their ids.
    """
    place = _place_of_created_at(connection)
    began = datetime.fromisoformat(first.rows["responses"][0].split("\t")[place])
    ids = [[new_uuid() for _ in range(length)] for length in chains]
    if spread is not None:
        began, apart = spread.start, (spread.end - spread.start) / sum(chains)
        numbers = count()
        ids = [[_uuid_at(began + next(numbers) * apart) for _ in chain] for chain in ids]
    number = -1
    for batch in _batches(_turns(ids)):
        rows: dict[str, list[str]] = {table: [] for table in TABLES}
        for response, previous in batch:
            number += 1
            at = str(began + number * apart)
            for table, made in _copy(later if previous else first, response, previous).items():
                if table == "responses" and apart:
                    made = [_with(line, place, at) for line in made]  # noqa: PLW2901
                rows[table] += made
        for table, made in rows.items():
            query = sql.SQL("copy {table} from stdin").format(table=sql.Identifier(table))
            with connection.cursor().copy(query) as copy:
                copy.write("\n".join(made) + "\n")
    return ids


def _uuid_at(at: datetime) -> UUID:
    return UUID(int=min_uuid_at(int(at.timestamp() * 1000)).int | 0x7 << 76 | 2 << 62 | getrandbits(62))


def _turns(chains: list[list[UUID]]) -> Iterator[tuple[UUID, UUID | None]]:
    for chain in chains:
        yield from zip(chain, [None, *chain], strict=False)


def _copy(model: Model, response: UUID, previous: UUID | None) -> dict[str, list[str]]:
    made = {}
    for table, lines in model.rows.items():
        text = "\n".join(lines).replace(str(model.id), str(response)).replace(model.id.hex, response.hex)
        if model.previous and previous:
            text = text.replace(str(model.previous), str(previous)).replace(model.previous.hex, previous.hex)
        made[table] = text.split("\n")
    return made


def _with(line: str, place: int, value: str) -> str:
    fields = line.split("\t")
    fields[place] = value
    return "\t".join(fields)


def _place_of_created_at(connection: psycopg.Connection) -> int:
    found = connection.execute(
        "select ordinal_position - 1 from information_schema.columns"
        " where table_schema = 'public' and table_name = 'responses' and column_name = 'created_at'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def _batches(turns: Iterator[tuple[UUID, UUID | None]]) -> Iterator[list[tuple[UUID, UUID | None]]]:
    while batch := list(islice(turns, BATCH)):
        yield batch
