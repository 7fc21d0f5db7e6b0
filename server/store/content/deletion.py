"""Deleting responses. A row stays only while it is live or a live response's history runs through it."""

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
"""Locks the row, a live one too: of several transactions that remove its last descendants, or delete it, the
last sees that nothing is left that needs it."""
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
    """Makes a response absent for every reader.

    None if it was absent already; True if it is still running, so that its run must be cancelled: what the
    run holds goes when it ends.
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
    """Removes a deleted, ended response; of its tombstoned ancestors, those that nothing needs any more."""
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
