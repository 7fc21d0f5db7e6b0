import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from server.configuration.settings import Config
from server.limits.disk_space import Disk, Space
from server.maintenance import retention
from server.maintenance.retention import DiskShort, Purged, Retention, purge, remove_old
from server.protocol.ids import new_uuid
from server.protocol.responses.response import Ending
from server.store import log_append
from server.store.database import Database
from server.store.database_errors import DatabaseError
from tests.support.builders import CREATED, TENANT, finish, insert_response, register
from tests.support.eventually import eventually

REPLICA = UUID(int=1)
ROOMY = Disk(None, None)
OFTEN = Config(purge_seconds=0.1, send_seconds=0.1)
ENDING = Ending(
    status="completed",
    first_token_at=None,
    finished_at=CREATED,
    input_tokens=1,
    cached_tokens=0,
    output_tokens=1,
    reasoning_tokens=0,
)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=2)
    yield opened
    opened.close()


@pytest.fixture
def nearly_full(tmp_path: Path) -> Disk:
    return Disk(tmp_path, 2**60)


def plant(database: Database, count: int) -> None:
    """Responses that ended and expired."""
    replica = register(database)
    with database.begin() as connection:
        for node in [new_uuid() for _ in range(count)]:
            insert_response(connection, replica, id=node, inputs=["said"], lifetime=timedelta(days=-1))
            log_append.fold(connection, [(TENANT, node)])
            finish(connection, TENANT, node, replica, 1, ENDING)


def left(database: Database) -> set[UUID]:
    with database.begin() as connection:
        return set(connection.exec_driver_sql("select id from responses").scalars())


def test_a_purge_goes_on_until_nothing_is_left_and_rests_after_every_batch(database: Database) -> None:
    plant(database, 700)
    rests: list[float] = []

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        return False

    assert purge(database, ROOMY, 0, rest) == Purged(responses=700)
    assert left(database) == set()
    assert len(rests) >= 2
    assert all(seconds > 0 for seconds in rests)


def test_a_purge_that_is_stopped_ends_after_its_batch(database: Database) -> None:
    plant(database, 700)
    done = purge(database, ROOMY, 0, lambda _seconds: True)
    assert 0 < done.responses < 700
    assert len(left(database)) == 700 - done.responses


def test_nothing_is_purged_while_the_disk_is_nearly_full(database: Database, nearly_full: Disk) -> None:
    plant(database, 3)
    with pytest.raises(DiskShort):
        purge(database, nearly_full, 0)
    assert len(left(database)) == 3


def test_the_janitor_purges_again_and_again_until_it_is_stopped(database: Database) -> None:
    janitor = Retention(database, ROOMY, OFTEN, REPLICA)
    janitor.start()
    try:
        for _ in range(2):
            plant(database, 3)
            eventually(lambda: not left(database))
    finally:
        janitor.stop()
    plant(database, 3)
    assert len(left(database)) == 3


def test_a_stop_does_not_wait_for_a_statement_that_takes_minutes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ends = threading.Event(), threading.Event()

    def analyze(_database: Database) -> None:
        began.set()
        assert ends.wait(60)

    monkeypatch.setattr(retention, "analyze", analyze)
    janitor = Retention(database, ROOMY, OFTEN, REPLICA)
    janitor.start()
    assert began.wait(20)
    janitor.stop()
    assert not ends.is_set()
    ends.set()
    janitor.thread.join()


METERED = """
    insert into usage_ledger
        (tenant, response_id, model, status, stored, input_tokens, cached_tokens, output_tokens,
         reasoning_tokens, started_at, finished_at, kind, background, attempt)
    select 'acme', gen_random_uuid(), 'm', 'completed', true, 1, 0, 1, 0, now(), now() - interval '9 days',
        'response', false, 1
    from generate_series(1, 2500)
"""


def test_much_that_is_removed_is_so_in_batches_between_which_the_thread_rests_or_ends(
    database: Database,
) -> None:
    def left() -> int:
        with database.begin() as connection:
            found: int = connection.exec_driver_sql("select count(*) from usage_ledger").scalar_one()
            return found

    rests: list[float] = []

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        return False

    with database.begin() as connection:
        connection.exec_driver_sql(METERED)
    remove_old(database, 7, pause=lambda _seconds: True)
    assert left() == 1500
    remove_old(database, 7, pause=rest)
    assert left() == 0
    assert rests
    assert all(seconds > 0 for seconds in rests)


def test_the_janitor_survives_a_full_disk_and_a_database_that_is_away(
    database: Database, nearly_full: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = iter([nearly_full.shortage(), DatabaseError("gone"), None])

    class Troubled(Disk):
        def shortage(self) -> Space | None:
            trouble = next(troubles, None)
            if isinstance(trouble, DatabaseError):
                raise trouble
            return trouble

    plant(database, 1)
    janitor = Retention(database, Troubled(None, None), OFTEN, REPLICA)
    with caplog.at_level(logging.WARNING):
        janitor.start()
        try:
            eventually(lambda: not left(database))
        finally:
            janitor.stop()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "new responses are refused, and nothing is purged",
        "purge failed, trying again later",
    ]
