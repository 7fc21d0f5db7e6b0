"""Expiry of conversations: which ones nothing has changed for so many days, and the deletion of one.

A conversation is made, gets and loses items and metadata; each change notes its time in `touched_at`. The
days are the tenant's own, or the server's. There is no index by that time, which every change would have to
update: conversations are looked through page by page.
"""

from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from server.store.content import conversations

PAGE_ROWS = 5_000


class ConversationKey(NamedTuple):
    """The primary key of a conversation."""

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
    """Deletes the conversation with its items; False if somebody has locked or changed it meanwhile.

    Its lock keeps away what would add to it.
    """
    for _ in range(2):  # the second statement sees all that was committed before the lock was had
        if connection.execute(_LOCK_EXPIRED, {"days": days, **key._asdict()}).first() is None:
            return False
    conversations.delete(connection, key.tenant, key.id)
    return True
