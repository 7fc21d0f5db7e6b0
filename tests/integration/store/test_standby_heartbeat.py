"""The process that beats for a server that shows no sign of life, on a real database."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from server.store.cluster import leases
from server.store.cluster.standby_heartbeat import StandbyHeartbeat, make_standby
from server.store.database import Database
from tests.support.builders import kill, register
from tests.support.eventually import eventually


@contextmanager
def standing_by(url: str, replica: UUID) -> Iterator[StandbyHeartbeat]:
    """Beside a server whose lease is so short that it is silent at once."""
    standby = make_standby(url, replica, 0.3)
    standby.start()
    try:
        yield standby
    finally:
        standby.stop()


def heartbeat(database: Database, replica: UUID) -> str:
    with database.begin() as connection:
        return leases.other_heartbeats(connection, UUID(int=0))[replica]


def test_a_silent_server_is_beaten_for_until_its_replica_is_dead(
    database: Database, database_url: str
) -> None:
    replica = register(database)
    with standing_by(database_url, replica) as standby:
        for _ in range(3):
            before = heartbeat(database, replica)
            eventually(lambda before=before: heartbeat(database, replica) != before)  # type: ignore[misc]
        kill(database, replica)
        process = standby.process
        assert process is not None
        assert process.wait(30) == 0


def test_the_connection_is_there_only_while_the_server_is_silent(
    database: Database, database_url: str
) -> None:
    replica = register(database)

    def connected() -> bool:
        with database.begin() as connection:
            query = "select count(*) from pg_stat_activity where application_name = 'holdfast standby'"
            return bool(connection.exec_driver_sql(f"{query} and datname = current_database()").scalar_one())

    with standing_by(database_url, replica) as standby:

        def has_gone_after_a_sign() -> bool:
            standby.signal_alive()
            return not connected()

        eventually(connected)
        eventually(has_gone_after_a_sign)


def test_it_ends_with_its_server_though_the_database_never_answers(database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with standing_by(f"postgresql://nobody@127.0.0.1:{port}/none", register(database)) as standby:
            silent.accept()[0].close()
            process = standby.process
            assert process is not None
            assert process.stdin is not None
            taken, _ = silent.accept()
            process.stdin.close()
            assert process.wait(30) == 0
            taken.close()
