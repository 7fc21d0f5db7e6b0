"""The table `schema_compatibility`: the code that may serve on each revision of the schema.

Every migration has two attributes beside Alembic's:

- `oldest_code`: the newest revision that the oldest code knows that may still serve once it has run. For a
  migration that may run beside the previous release (`pre`), it is the last revision of that release.
- `lost_by_downgrade`: tables and columns (`table.column`) with what its downgrade deletes for good.

Each step of an upgrade adds the migration's row in the migration's own transaction, and a downgrade removes
it, so that a release can ask about revisions that it does not know.
"""

from collections.abc import Collection
from typing import Literal

from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script
from sqlalchemy import Connection, Text, column, delete, insert, table, text

from server.version import VERSION

SchemaState = Literal["current", "behind", "newer", "unknown"]
"""The database's revision, seen by this release. `behind`: an older one, or none. `newer`: one that this
release does not know and may serve on. `unknown`: one that it does not know, and may not serve on."""
BEHIND = "The database's schema is behind this release; run: holdfast db upgrade"
UNKNOWN = "The database was made by a newer release of Holdfast; use that one."
_ROWS = table(
    "schema_compatibility", column("revision", Text), column("oldest_code", Text), column("release", Text)
)


def compare(
    found: str | None, known: Collection[str], newest: str, recorded: dict[str, str] | None
) -> SchemaState:
    """The state of a database at the revision `found`, for a release with the revisions `known`. Pure.
    `recorded` has the oldest code by revision, or is None for a database without the table.
    """
    if found == newest:
        return "current"
    if found is None or found in known:
        return "behind"
    if recorded is None or found not in recorded:
        return "unknown"
    return "newer" if all(oldest in known for oldest in recorded.values()) else "unknown"


def read_recorded(connection: Connection) -> dict[str, str] | None:
    """The oldest code that may serve, by applied revision; None without the table."""
    if connection.scalar(text("select to_regclass('schema_compatibility')")) is None:
        return None
    rows = connection.execute(text("select revision, oldest_code from schema_compatibility"))
    return {row.revision: row.oldest_code for row in rows}


def record_step(ctx: MigrationContext, step: MigrationInfo, heads: object, run_args: object) -> None:  # noqa: ARG001
    """Alembic's callback `on_version_apply`: adds or removes the row of the migration that has just run."""
    script = step.up_revision
    assert isinstance(script, Script)
    if step.is_upgrade:
        row = {"revision": script.revision, "oldest_code": script.module.oldest_code, "release": VERSION}
        ctx.execute(insert(_ROWS).values(row))
    elif script.down_revision is not None:  # the first one's downgrade has dropped the table
        ctx.execute(delete(_ROWS).where(_ROWS.c.revision == script.revision))
