"""Ends a response that cannot be decoded: by columns alone, nothing of its contents is read.

What a later release, a damaged disk or a hand at the database left may fail to decode at any place. Such a
response ends as failed without a last event in its stream, which `holdfast audit` reports.
"""

from uuid import UUID

from sqlalchemy import Connection, text

from server.store.cluster.claims import ResponseKey
from server.store.cluster.leases import fence
from server.store.content import deletion
from server.store.database import Database, DatabaseError, TransientError, commit_synchronously
from server.store.log import events

CODE = "server_error"
UNDECODABLE_MESSAGE = "What is stored of this response cannot be read, so it cannot be finished."

_FAIL = text(
    """
    update responses set status = 'failed', finished_at = clock_timestamp(), error_code = :code,
        error_message = :message, input_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0
    where tenant = :tenant and id = :id and replica_id = :me and status = 'in_progress'
    returning deleted_at is not null
    """
)
_METER = text(
    """
    insert into usage_ledger (tenant, response_id, key_id, model, status, stored, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, started_at, finished_at)
    select tenant, id, key_id, model, status, true, 0, 0, 0, 0, created_at, finished_at
    from responses where tenant = :tenant and id = :id
    on conflict do nothing
    """
)


def fail_undecodable(database: Database, me: UUID, place: ResponseKey) -> bool:
    """Ends a response of this replica as failed; False if it is not this replica's any more.

    Its log is compacted, or, if Postgres refuses that too, left as it is. Raises Fenced or DatabaseError.
    """
    where = {"tenant": place.tenant, "id": place.id}
    with database.begin() as connection:
        commit_synchronously(connection)
        fence(connection, me)
        deleted = connection.execute(
            _FAIL, {**where, "me": me, "code": CODE, "message": UNDECODABLE_MESSAGE}
        ).scalar_one_or_none()
        if deleted is None:
            return False
        connection.execute(_METER, where)
        _compact(connection, place)
        if deleted:
            deletion.remove_if_unneeded(connection, place.tenant, place.id)
    return True


def _compact(connection: Connection, place: ResponseKey) -> None:
    try:
        with connection.begin_nested():
            events.compact(connection, place.tenant, place.id)
    except TransientError:
        raise
    except DatabaseError:
        pass
