"""How Alembic runs: on a connection handed over by the server, on `-x url=`, or offline as SQL."""

from time import sleep

import psycopg
from alembic import context
from sqlalchemy import Connection, create_engine, pool, text

from server.store.administration.operator_tables import ALL_TABLES

LOCK = 0x686F6C6466617374
"""Session advisory lock (the bytes "holdfast"): of several replicas that upgrade at once, one does."""

LOCK_PAUSE_S = 0.1
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
    )
    _lock(connection)
    connection.execute(text("set lock_timeout = '1s'"))  # for tables, and everybody queues behind who waits
    connection.commit()
    try:
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()  # of what failed, whose error the next statement would hide
        connection.execute(text(f"select pg_advisory_unlock({LOCK})"))
        connection.commit()


def _lock(connection: Connection) -> None:
    """Waits between transactions: one would have a snapshot, for which concurrent indexes wait."""
    while not connection.execute(text(f"select pg_try_advisory_lock({LOCK})")).scalar():
        connection.rollback()
        sleep(LOCK_PAUSE_S)


def run_offline() -> None:
    context.configure(dialect_name="postgresql", target_metadata=ALL_TABLES, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run_on(connection)
        return
    url = context.get_x_argument(as_dictionary=True)["url"]
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=pool.NullPool
    )
    with engine.connect() as own:
        run_on(own)
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
