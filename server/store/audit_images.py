"""Reads pictures for `holdfast audit`: uses by owner, conversations with pictures, unsound pictures.

As in `audit_snapshot`, every page is a read-only transaction of its own on one snapshot.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Row, text

from server.protocol.input_images import CONTENT_PREFIX
from server.store.audit_snapshot import MAX_ORPHANS, PAGE, Orphan, Scope, snapshot
from server.store.schema import partition_removal

MAX_HASHED_BYTES = 64 * 1024 * 1024
"""Bytes of pictures that one statement hashes, unless one picture has more: statements have a timeout."""
_PAGE_IMAGES = 500


@dataclass(frozen=True, slots=True)
class ConversationImages:
    """The items of a conversation that name pictures, as id and JSON, and the uses in its name."""

    id: UUID
    items: Sequence[tuple[str, str]]
    uses: Collection[tuple[str, bytes]]


class UnsoundImage(NamedTuple):
    """A picture whose bytes are not what its digest and size say, or that has no use."""

    tenant: str
    digest: bytes
    problem: Literal["damaged", "unused"]


_TENANTS = [
    text(f"""
        with recursive found (tenant) as (
            (select tenant from {table} order by tenant limit 1)
            union all
            select (select t.tenant from {table} t where t.tenant > f.tenant order by t.tenant limit 1)
            from found f where f.tenant is not null
        )
        select tenant from found where tenant is not null
    """)
    for table in ("images", "conversations")
]


def tenants(connection: Connection) -> list[str]:
    """The tenants that have pictures or conversations."""
    with snapshot(connection):
        return sorted({tenant for query in _TENANTS for tenant in connection.scalars(query)})


_CONVERSATIONS = text(f"""
    select id from conversations where tenant = :tenant and id > :after order by id limit {PAGE}
""")
_CONVERSATION_ITEMS = text(f"""
    select conversation_id, id, payload::text as payload from conversation_items
    where tenant = :tenant and conversation_id = any(:ids)
      and payload::text like '%"content":"{CONTENT_PREFIX}%'
""")
_USES = text("""
    select owner, item_id, digest from item_images
    where tenant = :tenant and owner = any(:ids) and removed_at is null
""")


def conversations(connection: Connection, tenant: str) -> Iterator[ConversationImages]:
    """The conversations of a tenant in which there may be pictures."""
    after = UUID(int=0)
    while True:
        with snapshot(connection):
            ids = list(connection.scalars(_CONVERSATIONS, {"tenant": tenant, "after": after}))
            if not ids:
                return
            parameters = {"tenant": tenant, "ids": ids}
            items = connection.execute(_CONVERSATION_ITEMS, parameters).all()
            uses = connection.execute(_USES, parameters).all()
        after = ids[-1]
        for owner in sorted({row[0] for row in (*items, *uses)}):
            yield ConversationImages(
                owner,
                [(row.id, row.payload) for row in items if row.conversation_id == owner],
                {(row.item_id, row.digest) for row in uses if row.owner == owner},
            )


_IMAGES = text(f"""
    select i.digest, i.size, exists (
        select from item_images u where u.tenant = i.tenant and u.digest = i.digest) as used
    from images i
    where i.tenant = :tenant and i.digest > :after
      and (cast(:since as timestamptz) is null or i.created_at >= :since)
    order by i.digest limit {_PAGE_IMAGES}
""")
_DAMAGED = text("""
    select digest from images
    where tenant = :tenant and digest = any(cast(:digests as bytea[]))
      and (sha256(data) <> digest or octet_length(data) <> size)
""")


def unsound_images(connection: Connection, tenant: str, scope: Scope) -> Iterator[UnsoundImage]:
    """The damaged pictures, and those that no item names or has named until now.

    Pictures made before `scope.since` are left out; without `scope.replays` their bytes are not read.
    """
    after = b""
    while True:
        with snapshot(connection):
            parameters = {"tenant": tenant, "after": after, "since": scope.since}
            page = connection.execute(_IMAGES, parameters).all()
        if not page:
            return
        after = page[-1].digest
        yield from (UnsoundImage(tenant, row.digest, "unused") for row in page if not row.used)
        for digests in _batches(page) if scope.replays else ():
            with snapshot(connection):
                damaged = connection.scalars(_DAMAGED, {"tenant": tenant, "digests": digests}).all()
            yield from (UnsoundImage(tenant, digest, "damaged") for digest in damaged)


def _batches(page: Sequence[Row[Any]]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    total = 0
    for row in page:
        if batch and total + row.size > MAX_HASHED_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(row.digest)
        total += row.size
    yield batch


_ORPHANS = text(f"""
    select u.tenant, u.owner, count(*) from item_images u
    where u.tenant = :tenant and u.removed_at is null and u.owner >= :from_id
      and not exists (select from responses r where r.tenant = u.tenant and r.id = u.owner)
      and not exists (select from conversations c where c.tenant = u.tenant and c.id = u.owner)
    group by 1, 2 limit {MAX_ORPHANS}
""")


def orphans(connection: Connection, tenant: str) -> list[Orphan]:
    """Uses in the name of a response or conversation that does not exist, at most `MAX_ORPHANS`.

    None of owners as old as those of a partition that is detached and not dropped yet: the drop removes
    their uses.
    """
    with snapshot(connection):
        parameters = {"tenant": tenant, "from_id": partition_removal.first_kept_id(connection)}
        rows = connection.execute(_ORPHANS, parameters).all()
    return [Orphan(found_tenant, owner, "item_images", count) for found_tenant, owner, count in rows]
