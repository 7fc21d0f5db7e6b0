"""Lists of responses and of their input, a page at a time: by keys, never by counting what comes before."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Connection, cast, literal, select, tuple_
from sqlalchemy.dialects.postgresql import JSONB

from server.store.responses import INPUT, OUTPUT, STORED_COLUMNS, StoredResponse, stored_response
from server.store.tables import items, responses
from server.wire.response import Status

ANSWERED: Final = ("completed", "incomplete")
"""How a response ends that can be a choice."""


class Cursor(NamedTuple):
    """A response's place in the list."""

    created_at: datetime
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What the listed responses have in common."""

    model: str | None = None
    status: Status | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    completions: bool = False
    """Only first choices of chat completions, and of these what has ended as an answer."""


def cursor(connection: Connection, tenant: str, response_id: UUID) -> Cursor | None:
    """The place of a response, also of one deleted since it was listed; None if nothing is left of it."""
    row = connection.execute(
        select(responses.c.created_at).where(responses.c.tenant == tenant, responses.c.id == response_id)
    ).first()
    return Cursor(row.created_at, response_id) if row else None


def page(
    connection: Connection,
    tenant: str,
    filters: Filters,
    after: Cursor | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[StoredResponse]:
    """At most so many of a tenant's responses, by the time at which they were made."""
    place = (responses.c.created_at, responses.c.id)
    wanted: list[ColumnElement[bool]] = [responses.c.tenant == tenant, responses.c.deleted_at.is_(None)]
    if filters.model is not None:
        wanted.append(responses.c.model == filters.model)
    if filters.status is not None:
        wanted.append(responses.c.status == filters.status)
    if filters.completions:
        wanted += [responses.c.choice == 0, responses.c.status.in_(ANSWERED)]
    if filters.metadata:
        asked = msgspec.json.encode(filters.metadata).decode()
        wanted.append(responses.c.metadata.contains(cast(literal(asked), JSONB)))
    if after is not None:
        passed = tuple_(*place)
        here = tuple_(literal(after.created_at), literal(after.id))
        wanted.append(passed < here if newest_first else passed > here)
    order = [column.desc() if newest_first else column.asc() for column in place]
    rows = connection.execute(select(*STORED_COLUMNS).where(*wanted).order_by(*order).limit(limit))
    return [stored_response(row) for row in rows]


def outputs(connection: Connection, tenant: str, response_ids: Collection[UUID]) -> dict[UUID, list[str]]:
    """The JSON of these responses' output items, in order."""
    found: dict[UUID, list[str]] = {response_id: [] for response_id in response_ids}
    rows = connection.execute(
        select(items.c.response_id, items.c.payload)
        .where(items.c.tenant == tenant, items.c.response_id.in_(response_ids), items.c.side == OUTPUT)
        .order_by(items.c.response_id, items.c.idx)
    )
    for response_id, payload in rows:
        found[response_id].append(payload)
    return found


def input_place(connection: Connection, tenant: str, response_id: UUID, item_id: str) -> int | None:
    """Where in a response's own input an item is."""
    found: int | None = connection.execute(
        select(items.c.idx).where(
            items.c.tenant == tenant,
            items.c.id == item_id,
            items.c.response_id == response_id,
            items.c.side == INPUT,
        )
    ).scalar()
    return found


def input_page(
    connection: Connection,
    tenant: str,
    response_id: UUID,
    after: int | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[str]:
    """The JSON of at most so many of a response's own input items."""
    index = items.c.idx
    wanted = [items.c.tenant == tenant, items.c.response_id == response_id, items.c.side == INPUT]
    if after is not None:
        wanted.append(index < after if newest_first else index > after)
    order = index.desc() if newest_first else index.asc()
    return list(connection.scalars(select(items.c.payload).where(*wanted).order_by(order).limit(limit)))
