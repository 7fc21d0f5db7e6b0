"""The responses that are a chat completion's choices."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, select, update

from server.store.responses import STORED_COLUMNS, StoredResponse, stored_response
from server.store.tables import responses


def get(connection: Connection, tenant: str, candidates: Sequence[UUID]) -> list[StoredResponse]:
    """Those of these responses that are choices and exist for readers, by their places."""
    return _found(connection, tenant, candidates, locked=False)


def hold(connection: Connection, tenant: str, candidates: Sequence[UUID]) -> list[StoredResponse]:
    """The same, and nobody else changes them until the transaction ends."""
    return _found(connection, tenant, candidates, locked=True)


def _found(
    connection: Connection, tenant: str, candidates: Sequence[UUID], *, locked: bool
) -> list[StoredResponse]:
    wanted = (
        select(*STORED_COLUMNS)
        .where(
            responses.c.tenant == tenant,
            responses.c.id.in_(candidates),
            responses.c.choice.is_not(None),
            responses.c.deleted_at.is_(None),
        )
        .order_by(responses.c.choice)
    )
    return [
        stored_response(row) for row in connection.execute(wanted.with_for_update() if locked else wanted)
    ]


def change_metadata(connection: Connection, stored: StoredResponse, request: str, metadata: str) -> None:
    """Gives a response that the caller holds other metadata, in both of the places that have it."""
    connection.execute(
        update(responses)
        .where(responses.c.tenant == stored.tenant, responses.c.id == stored.id)
        .values(request=request, metadata=metadata)
    )
