"""How Alembic runs: on a connection handed over by the server, on `-x url=`, or offline as SQL."""

from alembic import context
from sqlalchemy import Connection

from server.store.schema.schema_session import TABLE_LOCK_TIMEOUT, connect, migration_lock
from server.store.schema.upgrade import record_step


def run_on(connection: Connection) -> None:
    context.configure(
        connection=connection,
        transaction_per_migration=True,
        on_version_apply=record_step,
        lock_seconds=context.config.attributes.get("lock_seconds"),
    )
    with migration_lock(connection), context.begin_transaction():
        context.run_migrations()


def run_offline() -> None:
    context.configure(
        dialect_name="postgresql",
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
