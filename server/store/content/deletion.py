"""Deletion of responses. A deleted row stays as a tombstone while another response needs its history."""

from uuid import UUID

from sqlalchemy import Connection, text

from server.store.content.storage_usage import ITEM_BYTES, count_removed

_MARK_DELETED = text(
    """
    update responses set deleted_at = clock_timestamp(), cancel_requested_at = case
        when status in ('queued', 'in_progress') then coalesce(cancel_requested_at, clock_timestamp())
        else cancel_requested_at end
    where tenant = :tenant and id = :id and deleted_at is null
    returning status
    """
)
_HAS_NEXT = text("select 1 from responses where tenant = :tenant and previous_id = :id limit 1")
_DELETE = text(
    count_removed(
        """
        delete from responses where tenant = :tenant and id = :id
        returning tenant, size as bytes, previous_id
        """,
        gives="previous_id",
    )
)
_REMOVABLE = text(
    """
    select deleted_at is not null and status not in ('queued', 'in_progress') from responses
    where tenant = :tenant and id = :id for update
    """
)
"""Locks the row, even a live one: of concurrent transactions that delete it or its last successors, the last
one sees that no successor is left."""
_DELETE_STREAMS = [
    text("delete from response_events_hot where tenant = :tenant and response_id = :id"),
    text(
        count_removed(
            """
            delete from response_streams where tenant = :tenant and response_id = :id
            returning tenant, size as bytes
            """
        )
    ),
]
_DELETE_ITEMS = text(
    count_removed(
        f"""
        delete from items where tenant = :tenant and response_id = :id
        returning tenant, {ITEM_BYTES} as bytes
        """  # noqa: S608 - a constant of ours
    )
)


def delete(connection: Connection, tenant: str, response_id: UUID) -> bool | None:
    """Deletes a response for all readers.

    None if it does not exist; True if it is still running, and the caller must cancel it. The rows of a
    running response are removed when it ends.
    """
    place = {"tenant": tenant, "id": response_id}
    status = connection.execute(_MARK_DELETED, place).scalar()
    if status is None:
        return None
    if status in ("queued", "in_progress"):
        return True
    remove_if_unneeded(connection, tenant, response_id)
    return False


def remove_if_unneeded(connection: Connection, tenant: str, response_id: UUID) -> None:
    """Removes a deleted, ended response, and tombstones of its ancestors that have no other successor."""
    current: UUID | None = response_id
    while current is not None:
        place = {"tenant": tenant, "id": current}
        if not connection.execute(_REMOVABLE, place).scalar():
            return
        for statement in _DELETE_STREAMS:
            connection.execute(statement, place)
        if connection.execute(_HAS_NEXT, place).scalar() is not None:
            return
        connection.execute(_DELETE_ITEMS, place)
        current = connection.execute(_DELETE, place).scalar()
