"""Conversations: ordered lists of items, stored independently of the responses that added them.

A transaction that adds or deletes items locks the conversation's row first and does neither while a response
in the conversation is unfinished, so that response's history does not change. JSON is passed as text.

A conversation that nothing has changed for so many days, its tenant's or the server's, expires. Each change
notes its time in `touched_at`, without an index, which every change would have to update: conversations are
looked through page by page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text

from server.protocol.list_pages import PageRequest
from server.store.content import images
from server.store.content.images import MARK_USES
from server.store.content.item_rows import COLUMNS, NEW_ITEMS, VALUES, NewItem, item_columns
from server.store.content.storage_usage import ITEM_BYTES, ROW_BYTES, adding, removing
from server.store.keyset_page import page
from server.store.tables import conversation_items
from server.store.tables import conversations as table


@dataclass(frozen=True, slots=True)
class ConversationRow:
    id: UUID
    metadata: str
    created_at: datetime
    next_position: int
    """Changes whenever items are added or deleted."""


_COLUMNS = "id, metadata::text, created_at, next_position"
_CREATE = adding(f"""
    insert into conversations (tenant, id, metadata, size)
    select :tenant, :id, value, {ROW_BYTES} + octet_length(value::text)
    from (select cast(:metadata as jsonb) as value) as new
    on conflict do nothing
    returning tenant, size as bytes
""")
_GET = f"select {_COLUMNS} from conversations where tenant = :tenant and id = :id"
_LOCK = f"{_GET} for update"
_UPDATE = adding(
    f"""
    update conversations c set metadata = new.metadata, size = {ROW_BYTES} + new.length,
        touched_at = clock_timestamp()
    from old, (
        select value as metadata, octet_length(value::text) as length
        from (select cast(:metadata as jsonb) as value) as sent) as new
    where c.tenant = :tenant and c.id = :id
    returning c.*, {ROW_BYTES} + new.length - old.size as bytes
    """,
    before="""
    old as (select size from conversations where tenant = :tenant and id = :id for update)
    """,
    gives=_COLUMNS,
)
_UNFINISHED = text("""
    select 1 from responses
    where tenant = :tenant and conversation_id = :id and status in ('queued', 'in_progress')
""")
_ADVANCE_POSITION = text("""
    update conversations set next_position = next_position + :count, touched_at = clock_timestamp()
    where tenant = :tenant and id = :id
""")
_APPEND = adding(f"""
    insert into conversation_items
        (tenant, conversation_id, position, {COLUMNS})
    select :tenant, :id, :next + place - 1, {VALUES}
    from {NEW_ITEMS}
    returning tenant, {ITEM_BYTES} as bytes
""")
_APPEND_RESPONSE = adding(
    f"""
    insert into conversation_items
        (tenant, conversation_id, position, {COLUMNS}, response_id)
    select i.tenant, :id,
        p.next_position - count(*) over () + row_number() over (order by i.side, i.idx) - 1,
        i.id, i.type, i.role, i.status, i.name, i.call_id, i.payload, i.size, i.for_model,
        i.response_id
    from place p, items i where i.tenant = :tenant and i.response_id = :response
    returning tenant, {ITEM_BYTES} as bytes
    """,
    before="""
    place as (
        update conversations set next_position = next_position + (
            select count(*) from items i where i.tenant = :tenant and i.response_id = :response),
            touched_at = clock_timestamp()
        where tenant = :tenant and id = :id
        returning next_position
    ), named as (
        insert into item_images (tenant, owner, item_id, digest)
        select u.tenant, :id, u.item_id, u.digest from place p, item_images u
        where u.tenant = :tenant and u.owner = :response and u.removed_at is null)
    """,
)


@dataclass(frozen=True, slots=True)
class ListedConversation:
    conversation: ConversationRow
    items: int


_LISTED = select(*(table.c[name] for name in ("id", "metadata", "created_at", "next_position"))).add_columns(
    select(func.count())
    .where(conversation_items.c.tenant == table.c.tenant, conversation_items.c.conversation_id == table.c.id)
    .scalar_subquery()
    .label("items")
)


def list_page(connection: Connection, tenant: str, asked: PageRequest) -> list[ListedConversation]:
    """The conversations after one, by age, as ids begin with the time; one more than the limit."""
    after_id = asked._replace(after=asked.after and [asked.after])
    rows = connection.execute(page(_LISTED.where(table.c.tenant == tenant), [table.c.id], after_id))
    return [ListedConversation(ConversationRow(*stored), items) for *stored, items in rows]


def create(connection: Connection, tenant: str, conversation: UUID, metadata: str) -> None:
    """Adds an empty conversation; does nothing if it is there."""
    connection.execute(_CREATE, {"tenant": tenant, "id": conversation, "metadata": metadata})


def get(
    connection: Connection, tenant: str, conversation: UUID, *, lock: bool = False
) -> ConversationRow | None:
    """The conversation, with `lock` FOR UPDATE until the transaction ends; None if it does not exist."""
    query = text(_LOCK if lock else _GET)
    row = connection.execute(query, {"tenant": tenant, "id": conversation}).first()
    return ConversationRow(*row) if row else None


def has_unfinished_response(connection: Connection, tenant: str, conversation: UUID) -> bool:
    """Whether a response in it is unfinished; stable only while the conversation is locked."""
    return connection.execute(_UNFINISHED, {"tenant": tenant, "id": conversation}).first() is not None


def update_metadata(
    connection: Connection, tenant: str, conversation: UUID, metadata: str
) -> ConversationRow | None:
    parameters = {"tenant": tenant, "id": conversation, "metadata": metadata}
    row = connection.execute(_UPDATE, parameters).first()
    return ConversationRow(*row) if row else None


def append(connection: Connection, tenant: str, locked: ConversationRow, new: Sequence[NewItem]) -> None:
    """Appends items, with their pictures, to a locked conversation. Raises ImageRemoved."""
    parameters = {"tenant": tenant, "id": locked.id, "next": locked.next_position}
    connection.execute(_APPEND, {**parameters, **item_columns(new)})
    images.insert(connection, tenant, locked.id, [(item.id, image) for item in new for image in item.images])
    _advance_position(connection, tenant, locked.id, len(new))


def append_response(connection: Connection, tenant: str, conversation: UUID, response_id: UUID) -> None:
    """Appends a response's input, then its output; does nothing if the conversation was deleted."""
    parameters = {"tenant": tenant, "id": conversation, "response": response_id}
    connection.execute(_APPEND_RESPONSE, parameters)


def _advance_position(connection: Connection, tenant: str, conversation: UUID, count: int) -> None:
    connection.execute(_ADVANCE_POSITION, {"tenant": tenant, "id": conversation, "count": count})


_DELETE_ITEMS = removing(
    f"""
    delete from conversation_items
    where tenant = :tenant and conversation_id = :id
      and (cast(:items as text[]) is null or id = any(cast(:items as text[])))
    returning tenant, {ITEM_BYTES} as bytes
    """,
    before=f"""
    unused as ({MARK_USES} tenant = :tenant and owner = :id
        and (cast(:items as text[]) is null or item_id = any(cast(:items as text[]))))
    """,
)
_DELETE = removing(
    "delete from conversations where tenant = :tenant and id = :id returning tenant, size as bytes"
)


def delete(connection: Connection, tenant: str, conversation: UUID) -> None:
    """Deletes a locked conversation with its items."""
    delete_items(connection, tenant, conversation, None)
    connection.execute(_DELETE, {"tenant": tenant, "id": conversation})


def delete_items(connection: Connection, tenant: str, conversation: UUID, items: Sequence[str] | None) -> int:
    """Deletes these items of a locked conversation, or all; returns how many there were."""
    parameters = {"tenant": tenant, "id": conversation, "items": None if items is None else list(items)}
    deleted = int(connection.execute(_DELETE_ITEMS, parameters).scalar_one())
    if deleted:
        _advance_position(connection, tenant, conversation, 1)
    return deleted


_ITEM = text("""
    select payload::text from conversation_items
    where tenant = :tenant and conversation_id = :id and id = :item
""")
_ANY_ITEM = text("select payload::text from conversation_items where tenant = :tenant and id = :item")


def get_item(
    connection: Connection, tenant: str, item_id: str, conversation: UUID | None = None
) -> str | None:
    """The JSON of an item of that conversation, or of any conversation; None if there is none."""
    parameters = {"tenant": tenant, "id": conversation, "item": item_id}
    return connection.execute(_ITEM if conversation is not None else _ANY_ITEM, parameters).scalar()


PAGE_ROWS = 5_000


class ConversationKey(NamedTuple):
    tenant: str
    id: UUID


FIRST = ConversationKey("", UUID(int=0))
_ANY = text("select cast(:days as integer) > 0 or exists (select from tenants where conversation_days > 0)")
_DAYS = "coalesce(t.conversation_days, cast(:days as integer))"
_CUTOFF = f"statement_timestamp() - make_interval(days => {_DAYS})"
_EXPIRED = f"""
    {_DAYS} > 0 and c.touched_at < {_CUTOFF}
    and not exists (select from responses r
        where r.tenant = c.tenant and r.conversation_id = c.id and r.status in ('queued', 'in_progress'))
"""
_PAGE = text(f"""
    select c.tenant, c.id, {_EXPIRED} as expired
    from (select tenant, id, touched_at from conversations
          where (tenant, id) > (:tenant, cast(:id as uuid)) order by tenant, id limit {PAGE_ROWS}) as c
    left join tenants t on t.tenant = c.tenant
    order by c.tenant, c.id
""")
_LOCK_EXPIRED = text(f"""
    select 1 from conversations c left join tenants t on t.tenant = c.tenant
    where c.tenant = :tenant and c.id = :id and {_EXPIRED}
    for update of c skip locked
""")


class ExpiredPage(NamedTuple):
    """The expired conversations of a page, and where the next page begins."""

    expired: list[ConversationKey]
    last: ConversationKey | None
    """The conversation after which the next page begins; None at the end."""


def may_expire(connection: Connection, days: int) -> bool:
    """Whether conversations of any tenant expire; `days` are the server's, 0 for never."""
    return bool(connection.execute(_ANY, {"days": days}).scalar_one())


def expired_after(connection: Connection, days: int, after: ConversationKey) -> ExpiredPage:
    """The expired ones of the next PAGE_ROWS conversations; those with an unfinished response are none."""
    rows = connection.execute(_PAGE, {"days": days, **after._asdict()}).all()
    expired = [ConversationKey(row.tenant, row.id) for row in rows if row.expired]
    last = ConversationKey(rows[-1].tenant, rows[-1].id) if len(rows) == PAGE_ROWS else None
    return ExpiredPage(expired, last)


def delete_expired(connection: Connection, days: int, key: ConversationKey) -> bool:
    """Deletes the conversation with its items; False if somebody has locked or changed it meanwhile."""
    for _ in range(2):  # the second statement sees all that was committed before the lock was had
        if connection.execute(_LOCK_EXPIRED, {"days": days, **key._asdict()}).first() is None:
            return False
    delete(connection, key.tenant, key.id)
    return True
