"""Imports an export in one transaction: all of it, or nothing after a bad line."""

from collections import Counter
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from server.maintenance.import_lines import BadLine, ImportedRow, LineReader
from server.protocol import ids
from server.store.database import Connection, Database, commit_synchronously
from server.store.database_errors import DatabaseError, TransientError, first_line
from server.store.timeout_connection import psycopg_connection
from server.store.transfer import insert_rows

_LIMITS: Final = {
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "0",
}
_PATIENCE_S: Final = 70.0
_CHECKED_AT_ONCE: Final = 500


class _Import:
    """One import's transaction."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self.added: Counter[str] = Counter()
        self._connection, self._tenant = connection, tenant
        self._others = insert_rows.other_tenants(connection, tenant)
        self._unchecked: dict[UUID, int] = {}
        self._skips_parts = False

    def add(self, row: ImportedRow, number: int) -> None:
        """Inserts a row, unless it, or what it is a part of, was there before. Raises BadLine."""
        if row.owner is not None and self._skips_parts:
            return
        is_new = insert_rows.insert_row(self._connection, self._tenant, row.kind, row.values)
        if row.owner is not None and not is_new:
            raise BadLine(number, "its id is that of another object")
        if row.kind in ("response", "conversation"):
            self._skips_parts = not is_new
            if is_new:
                self._unchecked[row.values["id"]] = number
        self.added[row.kind] += is_new
        if row.owner is not None:
            self._add_pictures(row, row.owner, number)
        if len(self._unchecked) >= _CHECKED_AT_ONCE:
            self.check_others()

    def _add_pictures(self, row: ImportedRow, owner: UUID, number: int) -> None:
        for digest in row.pictures:
            place = (self._connection, self._tenant, owner, row.values["id"], digest)
            if not insert_rows.insert_use(*place):
                raise BadLine(number, f"it names the picture {digest.hex()}, which is not there")

    def check_others(self) -> None:
        """Raises BadLine if another tenant has a response or conversation with an id of this import."""
        unchecked, self._unchecked = self._unchecked, {}
        if not unchecked:
            return
        found = insert_rows.id_of_another(self._connection, self._tenant, self._others, list(unchecked))
        if found is not None:
            kind, id_ = found
            name = ids.response_id(id_) if kind == "response" else ids.conversation_id(id_)
            raise BadLine(unchecked[id_], f"{name} belongs to another tenant of this database")


def import_lines(database: Database, lines: Iterable[bytes], tenant: str | None) -> tuple[str, Counter[str]]:
    """Inserts what the lines have and the database has not, for that tenant or the export's own.

    Returns the tenant, and what was added by kind. Raises BadLine, after which nothing was, or DatabaseError.
    """
    reader = LineReader()
    with database.dedicated_connection("import", limits=_LIMITS) as connection:
        with psycopg_connection(connection) as raw:
            raw.timeout_seconds = _PATIENCE_S
        with connection.begin():
            commit_synchronously(connection)
            done: _Import | None = None
            for line in lines:
                row = reader.read(line)
                if done is None:
                    done = _Import(connection, tenant or reader.tenant)
                if row is not None:
                    _add(done, row, reader.number)
            reader.close()
            assert done is not None
            done.check_others()
    return tenant or reader.tenant, done.added


def _add(done: _Import, row: ImportedRow, number: int) -> None:
    try:
        done.add(row, number)
    except TransientError:
        raise
    except DatabaseError as error:
        raise BadLine(number, f"the database refuses it: {first_line(error)}") from error
