"""Items of responses and conversations: insert, read, pages by keyset, total size and JSON as prompt history.

JSON is passed as text.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, TextClause, select, text

from server.protocol.list_pages import PageRequest
from server.store.arrays import literal, with_numbers
from server.store.content.item_rows import COLUMNS, NEW_ITEMS, VALUES, NewItem, item_columns
from server.store.content.storage_usage import ITEM_BYTES, adding
from server.store.driver_statements import execute_later
from server.store.tables import READABLE, items, responses

INPUT: Final = 0
OUTPUT: Final = 1
_INSERT_ITEMS = with_numbers(
    adding(f"""
    insert into items
        (tenant, response_id, side, idx, {COLUMNS}, seconds)
    select o.tenant, o.response_id, :side, o.idx, {VALUES}, seconds
    from {NEW_ITEMS}
    join unnest(cast(:tenants as text[]), cast(:responses as uuid[]), cast(:indexes as integer[]))
        with ordinality as o (tenant, response_id, idx, place) using (place)
    returning tenant, {ITEM_BYTES} as bytes
""")
)


def insert_items_of(
    connection: Connection, side: Literal[0, 1], of: Iterable[tuple[str, UUID, Sequence[NewItem]]]
) -> None:
    """Inserts items of responses, which are given with their tenants, in one statement."""
    rows = [(*owner, index, item) for *owner, new in of for index, item in enumerate(new)]
    if rows:
        tenants, responses_, indexes, new_items = zip(*rows, strict=True)
        owners = {"tenants": literal(tenants), "responses": literal(responses_), "indexes": literal(indexes)}
        execute_later(connection, _INSERT_ITEMS, {"side": side, **owners, **item_columns(new_items)})


def input_items(connection: Connection, tenant: str, response_id: UUID) -> list[str]:
    """The JSON of a response's own input items, in order."""
    return _read_items(connection, tenant, [response_id], INPUT)[response_id]


def output_items(connection: Connection, tenant: str, response_id: UUID) -> list[str]:
    """The JSON of a response's output items, in order."""
    return _read_items(connection, tenant, [response_id], OUTPUT)[response_id]


def outputs_of(connection: Connection, tenant: str, response_ids: Collection[UUID]) -> dict[UUID, list[str]]:
    """The JSON of these responses' output items, in order."""
    return _read_items(connection, tenant, response_ids, OUTPUT)


def _read_items(
    connection: Connection, tenant: str, response_ids: Collection[UUID], side: Literal[0, 1]
) -> dict[UUID, list[str]]:
    payloads: dict[UUID, list[str]] = {response_id: [] for response_id in response_ids}
    rows = connection.execute(
        select(items.c.response_id, items.c.payload)
        .where(items.c.tenant == tenant, items.c.response_id.in_(response_ids), items.c.side == side)
        .order_by(items.c.response_id, items.c.idx)
    )
    for response_id, payload in rows:
        payloads[response_id].append(payload)
    return payloads


def get_item(connection: Connection, tenant: str, item_id: str, response: UUID | None = None) -> str | None:
    """The JSON of one item of that response, or of the newest one that has it and exists for readers."""
    query = (
        select(items.c.payload)
        .join(responses, (responses.c.tenant == items.c.tenant) & (responses.c.id == items.c.response_id))
        .where(items.c.tenant == tenant, items.c.id == item_id, READABLE)
    )
    if response is not None:  # in one partition instead of all
        query = query.where(items.c.response_id == response, responses.c.id == response)
    return connection.execute(query.order_by(items.c.response_id.desc()).limit(1)).scalar()


class HistorySize(NamedTuple):
    """The total size of items as they are read for a prompt."""

    bytes: int
    items: int


_SIZE = "coalesce(octet_length(i.for_model), i.size)"
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
_MAX_DEPTH = 2**31 - 2


def measure_chain(connection: Connection, tenant: str, response: UUID, most: int) -> HistorySize:
    """The size of a chain of responses' items; stops counting after `most` items."""
    return _measure(connection, _MEASURE_CHAIN, tenant, response, most)


def measure_conversation(connection: Connection, tenant: str, conversation: UUID, most: int) -> HistorySize:
    """The size of a conversation's items; stops counting after `most` items."""
    return _measure(connection, _MEASURE_CONVERSATION, tenant, conversation, most)


def _measure(connection: Connection, query: TextClause, tenant: str, of: UUID, most: int) -> HistorySize:
    size, count = connection.execute(query, {"tenant": tenant, "id": of, "most": most}).one()
    return HistorySize(int(size), count)


def chain_items(connection: Connection, tenant: str, response: UUID) -> list[str]:
    """The JSON of every item of a chain of responses, oldest first; this response's output is last."""
    return list(connection.scalars(_CHAIN_ITEMS, {"tenant": tenant, "id": response, "most": _MAX_DEPTH}))


def conversation_items(connection: Connection, tenant: str, conversation_id: UUID) -> list[str]:
    """The JSON of every item of a conversation, oldest first."""
    return list(connection.scalars(_CONVERSATION_ITEMS, {"tenant": tenant, "id": conversation_id}))


class PayloadPage(NamedTuple):
    """The JSON of consecutive items, and whether there are more behind them."""

    payloads: list[str]
    more: bool


class ItemList:
    """The SQL of an ordered list of items: its owner's condition, and the column of positions."""

    def __init__(self, table: str, owner: str, position: str) -> None:
        own = f"from {table} where tenant = :tenant and {owner}"
        self.position = text(f"select {position} {own} and id = :item")
        self.oldest_first = self._page(own, position, "asc", "> coalesce(cast(:after as bigint), -1)")
        self.newest_first = self._page(
            own, position, "desc", f"< coalesce(cast(:after as bigint), {2**63 - 1})"
        )

    @staticmethod
    def _page(own: str, position: str, order: str, beyond: str) -> TextClause:
        return text(f"""
            select payload::text, total from (
                select {position}, payload, count(*) over () as total,
                    sum(size) over (order by {position} {order}
                        rows between unbounded preceding and 1 preceding) as before
                from (
                    select {position}, payload, size {own} and {position} {beyond}
                    order by {position} {order} limit :limit) as listed) as measured
            where coalesce(before, 0) < :most_bytes order by {position} {order}
        """)


INPUT_LIST = ItemList("items", "response_id = :id and side = 0", "idx")
CONVERSATION_LIST = ItemList("conversation_items", "conversation_id = :id", "position")


def item_position(connection: Connection, of: ItemList, tenant: str, owner: UUID, item_id: str) -> int | None:
    """An item's position in the list, for `item_page`; None if it is not there."""
    return connection.execute(of.position, {"tenant": tenant, "id": owner, "item": item_id}).scalar()


def item_page(
    connection: Connection, of: ItemList, tenant: str, owner: UUID, asked: PageRequest, most_bytes: int
) -> PayloadPage:
    """At most the limit of items after a position; the page ends with the item that reaches `most_bytes`."""
    parameters = {"tenant": tenant, "id": owner, "after": asked.after, "limit": asked.limit + 1}
    query = of.newest_first if asked.newest_first else of.oldest_first
    rows = connection.execute(query, {**parameters, "most_bytes": most_bytes}).all()
    payloads = [row.payload for row in rows[: asked.limit]]
    return PayloadPage(payloads, bool(rows) and rows[0].total > len(payloads))
