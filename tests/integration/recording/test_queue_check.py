"""Background responses that no living replica generates are warned of, once a minute."""

import pytest

from server.protocol.ids import new_uuid
from server.recovery.claimer import CHECK_SECONDS, QueueCheck
from server.store.database import Database
from tests.support.builders import accept, kill, register


@pytest.fixture
def database(database_url: str) -> "Database":
    return Database(database_url, pool_size=2)


@pytest.mark.parametrize("role", ["all", "worker"])
def test_background_response_without_a_living_worker_is_warned_of_once_a_minute(
    database: Database, caplog: pytest.LogCaptureFixture, role: str
) -> None:
    now = [0.0]
    register(database, role="api")
    register(database, model="another", role="worker")
    worker = register(database, role=role)
    accept(database, new_uuid(), background=True)
    queue = QueueCheck(database, lambda: now[0])
    now[0] = CHECK_SECONDS
    queue.check()
    assert caplog.messages == []
    kill(database, worker)
    queue.check()
    assert caplog.messages == []
    now[0] = 2 * CHECK_SECONDS
    queue.check()
    queue.check()
    (message,) = caplog.messages
    assert message.startswith("1 background responses stay queued: no living replica")
    assert "'model'" in message
    database.close()


def test_foreground_and_cancelled_responses_are_not_warned_of(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    accept(database, new_uuid())
    accept(database, new_uuid(), background=True)
    with database.begin() as connection:
        connection.exec_driver_sql("update responses set cancel_requested_at = now()")
    now = iter([0.0, CHECK_SECONDS])
    QueueCheck(database, lambda: next(now)).check()
    assert caplog.messages == []
    database.close()
