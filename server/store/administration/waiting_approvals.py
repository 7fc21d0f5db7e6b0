"""Calls of MCP tools that wait for an approval: requests in stored outputs that nobody has answered."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, String, cast, exists, func, select

from server.protocol.list_pages import PageRequest
from server.store.content.idempotency_keys import MARK
from server.store.content.stored_items import INPUT, OUTPUT
from server.store.keyset_page import rows_after
from server.store.tables import READABLE, idempotency_keys, items, responses

_UNTAGGED = func.regexp_replace(items.c.id, "_[0-9a-f]{32}$", "")
_answers = items.alias("answers")
_IS_SPENT = exists().where(
    idempotency_keys.c.tenant == items.c.tenant, idempotency_keys.c.key == cast(MARK, String) + _UNTAGGED
)
_IS_ANSWERED = exists().where(
    _answers.c.tenant == items.c.tenant,
    _answers.c.side == INPUT,
    _answers.c.type == "mcp_approval_response",
    _answers.c.payload.op("->>")("approval_request_id") == items.c.id,
)
_ORDER = (items.c.response_id, items.c.idx, items.c.id)


class WaitingApproval(NamedTuple):
    tenant: str
    response_id: UUID
    id: str
    payload: str
    """The JSON of the mcp_approval_request."""
    created_at: datetime


_ASKED = select(items.c.tenant, items.c.response_id, items.c.id, items.c.payload, items.c.created_at).where(
    items.c.type == "mcp_approval_request", items.c.side == OUTPUT
)
_WAITING = _ASKED.join(
    responses, (responses.c.tenant == items.c.tenant) & (responses.c.id == items.c.response_id)
).where(READABLE, ~_IS_SPENT, ~_IS_ANSWERED)


def waiting_page(connection: Connection, tenant: str | None, asked: PageRequest) -> list[WaitingApproval]:
    """Waiting calls of a tenant, or of all, by age, one more than the limit. Raises InvalidRequest."""
    query = _WAITING if tenant is None else _WAITING.where(items.c.tenant == tenant)
    kind = "a request for approval"
    rows = rows_after(connection, query, _ORDER, asked, among=_ASKED, kind=kind)
    return [WaitingApproval(**row._mapping) for row in rows]


def find(connection: Connection, approval: str) -> WaitingApproval | None:
    """The request for approval with this id; None if it does not wait."""
    row = connection.execute(_WAITING.where(items.c.id == approval)).first()
    return WaitingApproval(*row) if row else None
