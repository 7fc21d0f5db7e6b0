"""The responses that are a chat completion's choices."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, select, text

from server.store.content.responses import STORED_COLUMNS, StoredResponse, stored_response
from server.store.content.storage_usage import count_added
from server.store.tables import responses

_UPDATE_METADATA = text(
    count_added(
        """
        update responses set request = cast(:request as json), metadata = cast(:metadata as jsonb),
            size = size + cast(:growth as integer)
        where tenant = :tenant and id = :id
        returning tenant, case when size is not null then cast(:growth as integer) end as bytes
        """
    )
)


def get(connection: Connection, tenant: str, candidates: Sequence[UUID]) -> list[StoredResponse]:
    """Those of `candidates` that are undeleted choices, ordered by choice."""
    return _select_choices(connection, tenant, candidates, locked=False)


def lock_for_update(connection: Connection, tenant: str, candidates: Sequence[UUID]) -> list[StoredResponse]:
    """The same, locked FOR UPDATE until the transaction ends."""
    return _select_choices(connection, tenant, candidates, locked=True)


def _select_choices(
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


def update_metadata(connection: Connection, stored: StoredResponse, request: str, metadata: str) -> None:
    """Replaces the metadata of a locked response, in both columns that contain it."""
    place = {"tenant": stored.tenant, "id": stored.id}
    growth = 2 * (len(request.encode()) - len(stored.request.encode()))
    connection.execute(
        _UPDATE_METADATA, {**place, "request": request, "metadata": metadata, "growth": growth}
    )
