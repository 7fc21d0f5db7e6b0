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
    connection: Connection,
    tenant: str,
    filters: Filters,
    after: PageCursor | None,
    limit: int,
    *,
    newest_first: bool,
) -> list[StoredResponse]:
    """At most `limit` of a tenant's responses, ordered by creation time."""
    listed = select(*STORED_COLUMNS)
    query = _page_query(listed, tenant, filters, after, limit, newest_first=newest_first).limit(limit)
    return [stored_response(row) for row in connection.execute(query)]


class BoundedPage(NamedTuple):
    """Consecutive responses, and whether there are more behind them."""

    rows: list[StoredResponse]
    more: bool


def bounded_page(
    connection: Connection,
    tenant: str,
    filters: Filters,
    after: PageCursor | None,
    limit: int,
    most_bytes: int,
    *,
    newest_first: bool,
) -> BoundedPage:
    """`response_page`, which ends with the response that, with its output, reaches `most_bytes`."""
    listed = select(_SIZE)
    query = _page_query(listed, tenant, filters, after, limit, newest_first=newest_first)
    sizes = list(connection.execute(query).scalars())
    fitting = min(limit, len(sizes), 1 + sum(total < most_bytes for total in accumulate(sizes)))
    found = response_page(connection, tenant, filters, after, fitting, newest_first=newest_first)
    return BoundedPage(found, len(sizes) > fitting)


_SIZE = func.octet_length(cast(responses.c.request, Text)) + func.coalesce(
    select(func.sum(items.c.size))
    .where(items.c.tenant == responses.c.tenant, items.c.response_id == responses.c.id)
    .where(items.c.side == OUTPUT)
    .scalar_subquery(),
    0,
)


def _page_query(
    listed: Select[Any],
    tenant: str,
    filters: Filters,
    after: PageCursor | None,
    limit: int,
    *,
    newest_first: bool,
) -> Select[Any]:
    listed = listed.where(responses.c.tenant == tenant, READABLE)
    if filters.model is not None:
        listed = listed.where(responses.c.model == filters.model)
    if filters.status is not None:
        listed = listed.where(responses.c.status == filters.status)
    if filters.completions:
        listed = listed.where(responses.c.choice == 0, responses.c.status.in_(ANSWERED_STATUSES))
    if filters.metadata:
        asked = msgspec.json.encode(filters.metadata).decode()
        listed = listed.where(responses.c.metadata.contains(cast(literal(asked), JSONB)))
    order = (responses.c.created_at, responses.c.id)
    return page(listed, order, after, limit, descending=newest_first)
