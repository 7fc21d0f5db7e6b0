"""How Alembic runs: on a connection handed over by the server, on `-x url=`, or offline as SQL."""

from alembic import context
from sqlalchemy import Connection, text

from server.store.administration.operator_tables import ALL_TABLES
from server.store.schema.schema_session import TABLE_LOCK_TIMEOUT, connect, migration_lock
from server.store.schema.upgrade import record_step

PARTITIONS = text("select relname from pg_class where relispartition and relkind in ('r', 'p')")


def run_on(connection: Connection) -> None:
    partitions = set(connection.execute(PARTITIONS).scalars())
    connection.rollback()
    context.configure(
        connection=connection,
        target_metadata=ALL_TABLES,
        transaction_per_migration=True,
        compare_server_default=False,
        include_name=lambda name, kind, _parents: kind != "table" or name not in partitions,
        on_version_apply=record_step,
        lock_seconds=context.config.attributes.get("lock_seconds"),
    )
    with migration_lock(connection), context.begin_transaction():
        context.run_migrations()


def run_offline() -> None:
    context.configure(
        dialect_name="postgresql",
        target_metadata=ALL_TABLES,
        literal_binds=True,
        transaction_per_migration=True,
        on_version_apply=record_step,
    )
    context.execute(f"SET lock_timeout = '{TABLE_LOCK_TIMEOUT}'")
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run_on(connection)
        return
    with connect(context.get_x_argument(as_dictionary=True)["url"]) as own:
        run_on(own)


if context.is_offline_mode():
    run_offline()
else:
    run_online()
