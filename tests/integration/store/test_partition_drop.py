"""Dropping partitions on a real Postgres: what it leaves is what deletion row by row leaves."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException

from server.limits.disk_space import Disk
from server.maintenance import partition_drop
from server.maintenance.partition_drop import PartitionDrop
from server.maintenance.retention import purge, remove_old
from server.store import audit_snapshot
from server.store.content import deletion, images, responses, storage_usage, stored_items
from server.store.content.images import NewImage
from server.store.database import Database, clock
from server.store.database_roles import create_roles, create_user
from server.store.schema import partitions
from server.store.schema.partitions import HOUR, TimeRange, ranged_partitions
from tests.integration.store.test_retention import TABLES, end, left, plant
from tests.migration.test_schema import query
from tests.support.builders import TENANT, insert_response, register
from tests.support.old_partitions import NOW, days_ago, fill, id_in, make_partitions

ROOMY = Disk(None, None)
DAYS = 30
OLDER, OLD, NEXT, YOUNG = days_ago(50, 40), days_ago(40, 31), days_ago(31, 28), days_ago(28, -3)
RANGES = (OLDER, OLD, NEXT, YOUNG)
"""The first two are beyond the retention, the third goes next."""
PICTURE = NewImage(bytes(32), "image/png", b"p")


@pytest.fixture
def other(other_database_url: str) -> Iterator[Database]:
    opened = Database(other_database_url, pool_size=8)
    yield opened
    opened.close()


@pytest.fixture
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of a few rows is worth dropping."""
    monkeypatch.setattr(partitions, "MIN_DUE", 1)


class Killed(Exception):
    """Stands for the end of the process at a crash point."""


def plant_forest(database: Database, seed: int) -> list[UUID]:
    """Responses in all partitions, one going on from another, of all kinds."""
    make_partitions(database.url, RANGES)
    random, replica = Random(seed), register(database)
    nodes: list[tuple[UUID, str]] = []
    with database.begin() as connection:
        for number in range(120):
            tenant = random.choice([TENANT, TENANT, "other"])
            place = RANGES[min(3, number // 30)]
            earlier = [one for one, owner in nodes if owner == tenant]
            previous = random.choice(earlier) if earlier and random.random() < 0.6 else None
            lifetime = random.choice([None, timedelta(days=1), *[timedelta(days=-1)] * 8])
            node = id_in(place, random)
            insert_response(
                connection,
                replica,
                id=node,
                tenant=tenant,
                previous=previous,
                inputs=["said"],
                lifetime=lifetime,
            )
            if random.random() < 0.2:
                images.insert(connection, tenant, node, [(f"msg_{node.hex}i0", PICTURE)])
            if random.random() < 0.9:
                end(connection, replica, node, tenant=tenant)
            nodes.append((node, tenant))
        for node, tenant in random.sample(nodes, 12):
            deletion.delete(connection, tenant, node)
    return [node for node, _ in nodes]


def state(database: Database) -> dict[str, object]:
    """All that a purge changes, without times."""
    with database.begin() as connection:
        rows = connection.exec_driver_sql(
            "select tenant, id, deleted_at is null, expires_at is null, previous_id from responses order by 2"
        ).all()
        marked = connection.exec_driver_sql(
            "select tenant, owner, removed_at is null from item_images order by 2"
        ).all()
        sizes = storage_usage.totals(connection)
    return {"left": left(database), "rows": rows, "marked": marked, "sizes": sizes}


def drop_and_purge(database: Database) -> int:
    """How many responses readers have lost."""
    lost = PartitionDrop(database, DAYS, 0, 0).run().total()
    return lost + purge(database, ROOMY, 0).responses


def detached(url: str) -> list[tuple[object, ...]]:
    return query(url, "select relname::text from pg_class where relname like '%detached%' and relkind = 'r'")


@pytest.mark.usefixtures("_worth_it")
@pytest.mark.parametrize("seed", [1, 2])
def test_dropping_leaves_what_row_by_row_leaves(database: Database, other: Database, seed: int) -> None:
    assert plant_forest(database, seed) == plant_forest(other, seed)
    with database.begin() as connection:
        due = deletion.count_due(connection, 0)
    by_rows = purge(other, ROOMY, 0).responses
    assert drop_and_purge(database) == by_rows == due
    assert state(database) == state(other)
    with database.begin() as connection:
        names = [one.range for one in ranged_partitions(connection, "responses")]
    assert names == [NEXT, YOUNG], "those beyond the retention are gone"
    assert detached(database.url) == []
    with database.begin() as connection:
        connection.exec_driver_sql(
            "update responses set expires_at = 'epoch', status = 'completed', finished_at = 'epoch'"
        )
    drop_and_purge(database)
    assert left(database) == {table: set() for table in TABLES}


@pytest.mark.usefixtures("_worth_it")
@pytest.mark.parametrize("point", ["detach.written", "detach.committed", "drop.written", "drop.committed"])
def test_a_drop_that_was_killed_is_continued(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plant_forest(database, 3)
    plant_forest(other, 3)

    def die(name: str) -> None:
        if name == point:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(partition_drop, "crashpoint", die)
        with pytest.raises(Killed):
            drop_and_purge(database)
    if point != "drop.committed":
        assert bool(detached(database.url)) == (point != "detach.written")
    if point == "detach.committed":
        uses = "select count(*) from item_images u where u.removed_at is null and not exists"
        assert query(database.url, f"{uses} (select from responses r where r.id = u.owner)") != [(0,)]
    with database.dedicated_connection("audit") as connection:
        assert audit_snapshot.stray_uses(connection, TENANT) == [], "the drop removes the uses"
    drop_and_purge(database)
    purge(other, ROOMY, 0)
    assert state(database) == state(other)


@pytest.mark.usefixtures("_worth_it")
def test_a_response_that_goes_on_from_a_detached_one_gets_its_history_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may accept one between the look at a partition and its detachment."""
    make_partitions(database.url, RANGES)
    replica, random, late = register(database), Random(4), list[UUID]()
    first = id_in(OLD, random)
    with database.begin() as connection:
        insert_response(connection, replica, id=first, inputs=["said"], lifetime=timedelta(days=-1))
        end(connection, replica, first)
    detach = partitions.detach

    def accept_first(*arguments: object) -> None:
        with database.begin() as connection:
            late.append(plant(connection, replica, previous=first, expired=False))
        detach(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(partitions, "detach", accept_first)
    PartitionDrop(database, DAYS, 0, 0).run()
    with database.begin() as connection:
        assert len(stored_items.chain_items(connection, TENANT, late[0])) == 2
        assert storage_usage.total(connection, TENANT) > 0
    assert left(database)["items"] == {first, *late}


@pytest.mark.usefixtures("_worth_it")
def test_a_partition_in_use_is_dropped_later(database: Database, database_url: str) -> None:
    plant_forest(database, 5)
    pauses = list[float]()
    drop = PartitionDrop(database, DAYS, 0, 0, sleep=pauses.append)
    with psycopg.connect(database_url) as reader:
        reader.execute("select 1 from responses limit 1")
        assert drop.run().total() == 0
        assert len(pauses) == 2 * partition_drop.TRIES
        assert detached(database_url) == []
    assert drop.run().total() == 0, "not yet again"
    assert PartitionDrop(database, DAYS, 0, 0).run().total() > 0


def test_a_partition_of_few_due_rows_is_purged_row_by_row(database: Database) -> None:
    plant_forest(database, 6)
    drop = PartitionDrop(database, DAYS, 0, 0)
    assert drop.run().total() == 0
    assert purge(database, ROOMY, 0, ranges=drop.row_by_row()).responses > 0
    with database.begin() as connection:
        assert [one.range for one in ranged_partitions(connection, "responses")] == list(RANGES)


def test_what_expires_shortly_before_its_partition_goes_waits_unreadable(database: Database) -> None:
    make_partitions(database.url, RANGES)
    fill(database.url, TimeRange(NEXT.start + HOUR, NEXT.end), 300, days=DAYS)
    fill(database.url, NEXT, 30, days=7, tenants=1)
    drop = PartitionDrop(database, DAYS, 0, 0)
    assert purge(database, ROOMY, 0, ranges=drop.row_by_row()).responses == 30, "those that expired long ago"
    with database.begin() as connection:
        query_left = "select tenant, id, expires_at <= now() from responses where deleted_at is null"
        rows = connection.exec_driver_sql(query_left).all()
        readable = [not gone for _, _, gone in rows]
        assert len(rows) == 300
        assert [bool(responses.get(connection, tenant, id_)) for tenant, id_, _ in rows] == readable
    assert purge(database, ROOMY, 0, ranges=deletion.EVERYTHING).responses == readable.count(False) > 0


def test_a_server_without_ddl_drops_old_partitions_alone(database: Database, database_url: str) -> None:
    create_roles(database_url)
    make_partitions(database_url, RANGES)
    fill(database_url, OLD, 1200, days=DAYS)
    name = "dropper_of_" + database_url.split("/")[3].split("?")[0][-20:]
    create_user(database_url, name, "server", "secret")
    server = database_url.replace("postgres@", f"{name}:secret@")
    detach = "select holdfast_detach(array['{}'], interval '{}', '{{}}', '{{}}')"
    for part, age in [
        (f"responses_p{YOUNG.start:%Y%m%d%H}", "1 second"),
        (f"responses_p{NEXT.start:%Y%m%d%H}", "30 days"),
        ("responses_default", "1 day"),
        ("api_keys", "1 day"),
        ("responses", "1 day"),
    ]:
        with pytest.raises(RaiseException, match="are partitions older than"):
            query(server, detach.format(part, age))
    with pytest.raises(InsufficientPrivilege):
        query(server, f"drop table responses_p{OLD.start:%Y%m%d%H}")
    limited = Database(server, pool_size=2)
    try:
        assert PartitionDrop(limited, DAYS, 0, 0).run().total() == 1200
        assert PartitionDrop(limited, DAYS, 0, 0).finish()
    finally:
        limited.close()
    assert left(database) == {table: set() for table in TABLES}
    assert query(database_url, "select sum(bytes) from storage_changes") == [(0,)]


def test_partitions_of_the_ledger_go_when_no_response_of_theirs_is_stored(database: Database) -> None:
    make_partitions(database.url, RANGES)
    fill(database.url, OLDER, 1200, days=DAYS)
    fill(database.url, OLD, 1200, days=100)
    drop = PartitionDrop(database, DAYS, 20, 0)
    drop.run()
    drop.run("usage_ledger")
    remove_old(database, 20, drop.row_by_row("usage_ledger"))
    with database.begin() as connection:
        assert [one.range for one in ranged_partitions(connection, "usage_ledger")] == list(RANGES[1:])
        assert connection.exec_driver_sql("select count(*) from usage_ledger").scalar() == 1200
        assert clock(connection) > NOW
