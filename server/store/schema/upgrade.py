"""Schema migrations of this release: upgrade, downgrade, and both as SQL.

Every migration has two attributes beside Alembic's:

- `oldest_code`: the newest revision that the oldest code knows that may still serve once it has run. For a
  migration that may run beside the previous release (`pre`), it is the last revision of that release.
- `lost_by_downgrade`: tables and columns (`table.column`) with what its downgrade deletes for good.

Each step of an upgrade adds the migration's row of `schema_compatibility` in the migration's own transaction,
and a downgrade removes it, so that a release can ask about revisions that it does not know.
"""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, delete, insert

from server.configuration.shipped_files import migrations_folder
from server.store.schema.schema_session import try_for_locks
from server.store.tables import schema_compatibility
from server.version import VERSION

UPGRADE_S = 60.0
"""Seconds that an upgrade or downgrade tries to lock the tables."""


@dataclass(frozen=True, slots=True)
class Migration:
    revision: str
    previous: str | None
    kind: str
    """`pre`: may run while the release before serves; `post`: only once all replicas are of this one."""
    title: str
    lost: tuple[str, ...]


def upgrade(url: str, seconds: float = UPGRADE_S) -> None:
    """Migrates the schema to this release; safe to run in several processes at once.

    A lock on a table in use is waited for at most a second at a time, with pauses in which the queries that
    queue behind it run. Raises DatabaseError after `seconds`.
    """
    _run(url, seconds, lambda config: command.upgrade(config, "head"))


def downgrade(url: str, migration: Migration, seconds: float = UPGRADE_S) -> None:
    """Undoes that migration, which must be the database's last one; waits for locks as `upgrade` does."""
    _run(url, seconds, lambda config: command.downgrade(config, migration.previous or "base"))


def upgrade_sql(start: str | None, end: str = "head") -> str:
    """The SQL by which a database at one revision, or an empty one, comes to another: this release's."""
    config = _alembic()
    config.output_buffer = io.StringIO()
    command.upgrade(config, f"{start or 'base'}:{end}", sql=True)
    return config.output_buffer.getvalue()


def newest_revision() -> str:
    return _scripts().get_current_head() or ""


def migrations() -> list[Migration]:
    """The migrations of the running release, from the first to the last."""
    return [_migration(script) for script in reversed(list(_scripts().walk_revisions()))]


def _run(url: str, seconds: float, act: Callable[[Config], None]) -> None:
    """Runs a command of Alembic, again after a lock that was not got, until `seconds` have passed."""

    def run(connection: Connection, left: float) -> None:
        config = _alembic()
        config.attributes["connection"] = connection
        config.attributes["lock_seconds"] = left
        act(config)

    try_for_locks(url, seconds, run)


def _migration(script: Script) -> Migration:
    previous = script.down_revision
    assert previous is None or isinstance(previous, str)  # one line of migrations, without branches
    kind = script.path.rpartition("/")[2].split("_")[1]
    lost = script.module.lost_by_downgrade
    return Migration(script.revision, previous, kind, script.doc.rstrip("."), lost)


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic())


def _alembic() -> Config:
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def record_step(ctx: MigrationContext, step: MigrationInfo, heads: object, run_args: object) -> None:  # noqa: ARG001
    """Alembic's callback `on_version_apply`: adds or removes the row of the migration that has just run."""
    script = step.up_revision
    assert isinstance(script, Script)
    if step.is_upgrade:
        row = {"revision": script.revision, "oldest_code": script.module.oldest_code, "release": VERSION}
        ctx.execute(insert(schema_compatibility).values(row))
    elif script.down_revision is not None:  # the first one's downgrade has dropped the table
        ctx.execute(delete(schema_compatibility).where(schema_compatibility.c.revision == script.revision))
