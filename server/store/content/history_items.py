"""Stored items as history of a prompt: their total size, which is checked first, and their JSON."""

from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text


class HistorySize(NamedTuple):
    """The total size of items as they are read for a prompt."""

    bytes: int
    items: int


_SIZE = "coalesce(octet_length(i.for_model), i.size, octet_length(i.payload::text))"
_FOR_MODEL = "coalesce(i.for_model, i.payload::text)"
_CHAIN = """
    with recursive chain (id, previous_id, depth) as (
        select id, previous_id, 0 from responses where tenant = :tenant and id = :id
        union all
        select r.id, r.previous_id, c.depth + 1
        from chain c join responses r on r.tenant = :tenant and r.id = c.previous_id
        where c.depth <= :most
    )
"""
_OF_CHAIN = "from chain c join items i on i.tenant = :tenant and i.response_id = c.id"
_OF_CONVERSATION = "from conversation_items i where i.tenant = :tenant and i.conversation_id = :id"
_MEASURE = """
    select coalesce(sum(measured.size), 0), count(*)
    from (select {size} as size {of} limit :most + 1) as measured
"""
_MEASURE_CHAIN = text(_CHAIN + _MEASURE.format(size=_SIZE, of=_OF_CHAIN))
_MEASURE_CONVERSATION = text(_MEASURE.format(size=_SIZE, of=_OF_CONVERSATION))
_CHAIN_ITEMS = text(f"{_CHAIN} select {_FOR_MODEL} {_OF_CHAIN} order by c.depth desc, i.side, i.idx")
_CONVERSATION_ITEMS = text(f"select {_FOR_MODEL} {_OF_CONVERSATION} order by i.position")
_UNBOUNDED_DEPTH = 2**31 - 2


def measure_chain(connection: Connection, tenant: str, response: UUID, most: int) -> HistorySize:
    """The size of a chain of responses' items; stops counting after `most` items."""
    row = connection.execute(_MEASURE_CHAIN, {"tenant": tenant, "id": response, "most": most}).one()
    return HistorySize(int(row[0]), row[1])


def measure_conversation(connection: Connection, tenant: str, conversation: UUID, most: int) -> HistorySize:
    """The size of a conversation's items; stops counting after `most` items."""
    place = {"tenant": tenant, "id": conversation, "most": most}
    row = connection.execute(_MEASURE_CONVERSATION, place).one()
    return HistorySize(int(row[0]), row[1])


def chain_items(connection: Connection, tenant: str, response: UUID) -> list[str]:
    """The JSON of every item of a chain of responses, oldest first; this response's output is last."""
    place = {"tenant": tenant, "id": response, "most": _UNBOUNDED_DEPTH}
    return list(connection.scalars(_CHAIN_ITEMS, place))


def conversation_items(connection: Connection, tenant: str, conversation_id: UUID) -> list[str]:
    """The JSON of every item of a conversation, oldest first."""
    return list(connection.scalars(_CONVERSATION_ITEMS, {"tenant": tenant, "id": conversation_id}))
