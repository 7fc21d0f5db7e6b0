"""The input of a response with which it can be run again: its own items after those of its conversation."""

from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

from server.store.content import stored_items

MAX_ITEMS: Final = 4096
"""The most items that `input` may have."""

_CONVERSATION_BEFORE = text(f"""
    select payload::text from conversation_items c
    where c.tenant = :tenant and c.conversation_id = :conversation
        and position < coalesce(
            (select min(position) from conversation_items o
             where o.tenant = :tenant and o.conversation_id = :conversation and o.response_id = :id),
            (select min(position) from conversation_items o
             where o.tenant = :tenant and o.conversation_id = :conversation and o.created_at > :created_at),
            {2**63 - 1})
    order by position limit {MAX_ITEMS + 1}
""")


def input_items(
    connection: Connection,
    tenant: str,
    response: UUID,
    conversation: UUID | None,
    created_at: datetime,
) -> list[str] | None:
    """The JSON of what its conversation still has of before, then of its own input items; None if there are
    more than `MAX_ITEMS`.
    """
    of = {"tenant": tenant, "id": response, "conversation": conversation, "created_at": created_at}
    before = list(connection.scalars(_CONVERSATION_BEFORE, of)) if conversation else []
    found = [*before, *stored_items.input_items(connection, tenant, response)]
    return found if len(found) <= MAX_ITEMS else None
