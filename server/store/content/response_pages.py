"""Lists of responses and stored chat completions: filters, cursors, pages by keyset (no OFFSET)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, Select, Text, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONB

from server.protocol.list_pages import PageRequest
from server.protocol.responses.response import Status
from server.store.content.responses import STORED_COLUMNS, StoredResponse, stored_response
from server.store.content.stored_items import OUTPUT
from server.store.keyset_page import page
from server.store.tables import READABLE, items, responses

ANSWERED_STATUSES: Final = ("completed", "incomplete")
"""Final statuses of responses that can be a choice of a chat completion."""


class PageCursor(NamedTuple):
    """The sort key of a response in a list."""

    created_at: datetime
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Conditions on listed responses."""

    model: str | None = None
    status: Status | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    completions: bool = False
    """Only first choices of chat completions that ended with an answer."""


def find_cursor(connection: Connection, tenant: str, response_id: UUID) -> PageCursor | None:
    """The cursor of a response, also of a deleted one whose row still exists; None without a row."""
    row = connection.execute(
        select(responses.c.created_at).where(responses.c.tenant == tenant, responses.c.id == response_id)
    ).first()
    return PageCursor(row.created_at, response_id) if row else None


def response_page(
    connection: Connection, tenant: str, filters: Filters, asked: PageRequest
) -> list[StoredResponse]:
    """At most `asked.limit` of a tenant's responses after a PageCursor, ordered by creation time."""
    query = _page_query(select(*STORED_COLUMNS), tenant, filters, asked).limit(asked.limit)
    return [stored_response(row) for row in connection.execute(query)]


class BoundedPage(NamedTuple):
    """Consecutive responses, and whether there are more behind them."""

    rows: list[StoredResponse]
    more: bool


def bounded_page(
    connection: Connection, tenant: str, filters: Filters, asked: PageRequest, most_bytes: int
) -> BoundedPage:
    """`response_page`, which ends with the response that, with its output, reaches `most_bytes`."""
    sizes = list(connection.execute(_page_query(select(_SIZE), tenant, filters, asked)).scalars())
    fitting = min(asked.limit, len(sizes), 1 + sum(total < most_bytes for total in accumulate(sizes)))
    found = response_page(connection, tenant, filters, asked._replace(limit=fitting))
    return BoundedPage(found, len(sizes) > fitting)


_SIZE = func.octet_length(cast(responses.c.request, Text)) + func.coalesce(
    select(func.sum(items.c.size))
    .where(items.c.tenant == responses.c.tenant, items.c.response_id == responses.c.id)
    .where(items.c.side == OUTPUT)
    .scalar_subquery(),
    0,
)


def _page_query(listed: Select[Any], tenant: str, filters: Filters, asked: PageRequest) -> Select[Any]:
    listed = listed.where(responses.c.tenant == tenant, READABLE)
    if filters.model is not None:
        listed = listed.where(responses.c.model == filters.model)
    if filters.status is not None:
        listed = listed.where(responses.c.status == filters.status)
    if filters.completions:
        listed = listed.where(responses.c.choice == 0, responses.c.status.in_(ANSWERED_STATUSES))
    if filters.metadata:
        pairs = msgspec.json.encode(filters.metadata).decode()
        listed = listed.where(responses.c.metadata.contains(cast(literal(pairs), JSONB)))
    return page(listed, (responses.c.created_at, responses.c.id), asked)
