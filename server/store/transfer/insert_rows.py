"""Inserts the rows of an import: what is there already stays as it is; ids of other tenants are found."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, TextClause, text

from server.store.administration import usage_days
from server.store.arrays import type_name
from server.store.content.responses import tenants
from server.store.content.storage_usage import IMAGE_BYTES, ITEM_BYTES, adding
from server.store.transfer.exported_tables import TABLES, columns_of

_SIZES: Final = {
    "image": IMAGE_BYTES,
    "conversation": "size",
    "conversation.item": ITEM_BYTES,
    "response": "size",
    "response.item": ITEM_BYTES,
    "response.stream": "size",
}
_USE = text("""
    insert into item_images (tenant, owner, item_id, digest)
    values (:tenant, :owner, :item_id, :digest) on conflict do nothing
""")
_HAS_IMAGE = text("select 1 from images where tenant = :tenant and digest = :digest for share")
_OTHERS = text("""
    select 'response' as kind, r.id from responses r
    where r.tenant = any(cast(:others as text[])) and r.id = any(cast(:ids as uuid[]))
    union all select 'conversation', c.id from conversations c
    where c.tenant <> :tenant and c.id = any(cast(:ids as uuid[])) limit 1
""")


@cache
def _insertion(kind: str) -> TextClause:
    columns = columns_of(kind)
    values = ", ".join(f"cast(:{column.name} as {type_name(column)})" for column in columns)
    names = ", ".join(column.name for column in columns)
    insert = (
        f"insert into {TABLES[kind].name} (tenant, {names}) values (:tenant, {values})"
        f" on conflict do nothing returning {usage_days.RETURNED if kind == 'usage' else 'tenant'}"
    )
    if kind == "usage":
        return text(f"with metered as ({insert}), added as ({usage_days.ADD}) select count(*) from metered")
    size = _SIZES.get(kind)
    if size is None:
        return text(f"with changed as ({insert}) select count(*) from changed")
    return adding(f"{insert}, {size} as bytes")


def insert_row(connection: Connection, tenant: str, kind: str, row: Mapping[str, Any]) -> bool:
    """Inserts a row with the values of all columns of its kind; False if its id is there already."""
    inserted: int = connection.execute(_insertion(kind), {**row, "tenant": tenant}).scalar_one()
    return inserted == 1


def insert_use(connection: Connection, tenant: str, owner: UUID, item_id: str, digest: bytes) -> bool:
    """Notes that an item names a picture; False if there is no such picture."""
    parameters = {"tenant": tenant, "digest": digest}
    if connection.execute(_HAS_IMAGE, parameters).first() is None:
        return False
    connection.execute(_USE, {**parameters, "owner": owner, "item_id": item_id})
    return True


def other_tenants(connection: Connection, tenant: str) -> list[str]:
    """The other tenants that have responses."""
    return [name for name in tenants(connection) if name != tenant]


def id_of_another(
    connection: Connection, tenant: str, others: Sequence[str], ids: Sequence[UUID]
) -> tuple[str, UUID] | None:
    """The kind and id of a response or conversation that another tenant has with one of these ids."""
    parameters = {"tenant": tenant, "others": list(others), "ids": list(ids)}
    row = connection.execute(_OTHERS, parameters).first()
    return (row.kind, row.id) if row else None
