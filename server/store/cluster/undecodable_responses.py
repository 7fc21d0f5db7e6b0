"""Fails a response whose stored content cannot be decoded, without reading that content.

A later release, a damaged disk or a manual change may leave content that fails to decode anywhere. Such a
response becomes `failed` without a terminal event in its stream, which `holdfast audit` reports.
"""

from uuid import UUID

from sqlalchemy import Connection, text

from server.store import log_append
from server.store.cluster.leases import fence
from server.store.content import deletion
from server.store.content.responses import ResponseKey
from server.store.database import Database, commit_synchronously
from server.store.database_errors import DatabaseError, TransientError

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
    """Sets a response of this replica to `failed`; False if another replica owns it.

    Its log is compacted, or stays as it is if Postgres refuses that. Raises Fenced or DatabaseError.
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
            log_append.compact(connection, place.tenant, place.id)
    except TransientError:
        raise
    except DatabaseError:
        pass
