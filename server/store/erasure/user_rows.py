"""An end user's rows: ids of responses, page by page; conversations, idempotency keys, the ledger."""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

from server.store.content import conversations
from server.store.content.deletion import LOWEST
from server.store.erasure.subject import BROUGHT_BY_USER, OF_USER, Subject

PAGE_ROWS: Final = 1000
"""Rows that one statement looks at, most of which may be other users'."""
_RESPONSES = text(f"""
    select (array_agg(id order by id desc))[1] as last, -1 as position,
        array_agg(id) filter (where own) as found,
        array_agg(distinct conversation_id) filter (where own and conversation_id is not null) as also
    from (
        select r.id, r.conversation_id, {OF_USER} as own from responses r
        where r.tenant = :tenant and r.id > :after order by r.id limit {PAGE_ROWS}) as page
""")
_LINES = text(f"""
    select (array_agg(response_id order by response_id desc))[1] as last, -1 as position,
        array_agg(response_id) filter (where end_user = :user) as found, null as also
    from (
        select response_id, end_user from usage_ledger
        where tenant = :tenant and response_id > :after order by response_id limit {PAGE_ROWS}) as page
""")
_CONVERSATIONS = text(f"""
    select (array_agg(conversation_id order by conversation_id desc, position desc))[1] as last,
        (array_agg(position order by conversation_id desc, position desc))[1] as position,
        null as found, array_agg(distinct conversation_id) filter (where own) as also
    from (
        select i.conversation_id, i.position, {BROUGHT_BY_USER} as own from conversation_items i
        where i.tenant = :tenant and (i.conversation_id, i.position) > (:after, :position)
        order by i.conversation_id, i.position limit {PAGE_ROWS}) as page
""")


@dataclass(slots=True)
class UserRows:
    """The ids of what a user made."""

    responses: list[UUID] = field(default_factory=list)
    lines: list[UUID] = field(default_factory=list)
    """Responses that the ledger names with the user, also those that are gone or were never stored."""
    conversations: set[UUID] = field(default_factory=set)
    """Conversations with a response or an item of the user."""


class Walk:
    """Looks through all of a tenant's rows for those of a user, page by page."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.found = UserRows()
        self._left = [(_RESPONSES, self.found.responses), (_LINES, self.found.lines), (_CONVERSATIONS, [])]
        self._after, self._position = LOWEST, -1

    def step(self, connection: Connection) -> bool:
        """Looks at the next page, in a transaction of its own; False at the end."""
        if not self._left:
            return False
        query, ids = self._left[0]
        last = {"after": self._after, "position": self._position}
        row = connection.execute(query, {**self._subject.parameters, **last}).one()
        self._after, self._position = row.last or LOWEST, row.position if row.last else -1
        if row.last is None:
            del self._left[0]
        ids += row.found or ()
        self.found.conversations.update(row.also or ())
        return True


_LOCK = text("select id from conversations where tenant = :tenant and id = :id for update skip locked")
_EXISTS = text("select 1 from conversations where tenant = :tenant and id = :id")
_OTHERS = text(f"""
    select 1 from conversation_items i where i.tenant = :tenant and i.conversation_id = :id
      and i.response_id is not null and not {BROUGHT_BY_USER} limit 1
""")
_OWN_ITEMS = text(f"""
    with brought as (
        select i.id, i.position, {BROUGHT_BY_USER} as own from conversation_items i
        where i.tenant = :tenant and i.conversation_id = :id and i.response_id is not null
    ), firsts as (
        select min(position) filter (where own) as own, min(position) filter (where not own) as other
        from brought)
    select id, (select own < other from firsts) as began from brought where own
    union select i.id, f.own < f.other from conversation_items i, firsts f
    where i.tenant = :tenant and i.conversation_id = :id and (
        (i.type = 'compaction' and i.position > f.own)
        or (i.response_id is null and f.own < f.other and i.position < f.other))
""")
"""The items of a user in a conversation with others, and whether the user began it.

Also compactions, which are summaries of the items before them, and what was put there by hand before another
user's first item.
"""


def take_out_of_conversation(
    connection: Connection, subject: Subject, conversation: UUID
) -> tuple[int, int] | None:
    """Removes a user's items from a conversation, or all of it if no one else's response brought an item. The
    metadata of one that the user began go, too. Returns how many conversations and items are gone; None if
    something is to be removed and it is locked or a response runs in it. What names the user must stay until
    it is neither: nothing else tells whose the items are.
    """
    parameters = {**subject.parameters, "id": conversation}
    if connection.execute(_LOCK, parameters).first() is None:
        return (0, 0) if connection.execute(_EXISTS, parameters).first() is None else None
    is_whole = connection.execute(_OTHERS, parameters).first() is None
    items = [] if is_whole else connection.execute(_OWN_ITEMS, parameters).all()
    if not (is_whole or items):
        return 0, 0
    if conversations.has_unfinished_response(connection, subject.tenant, conversation):
        return None
    if is_whole:
        conversations.delete(connection, subject.tenant, conversation)
        return 1, 0
    removed = conversations.delete_items(connection, subject.tenant, conversation, [row.id for row in items])
    if items[0].began:
        conversations.update_metadata(connection, subject.tenant, conversation, "{}")
    return 0, removed
