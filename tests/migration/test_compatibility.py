"""What each migration says beside its SQL, and the rows that it leaves of that."""

import psycopg
import pytest

from server.store.schema.upgrade import _scripts, downgrade, migrations, newest_revision, upgrade
from server.version import VERSION

ROWS = "select revision, oldest_code, release from schema_compatibility order by revision"


def rows(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(ROWS).fetchall()


def test_revisions_are_four_digits_that_grow() -> None:
    revisions = [migration.revision for migration in migrations()]
    assert revisions == sorted(revisions)
    assert all(len(revision) == 4 and revision.isdecimal() for revision in revisions)


def test_migrations_say_who_may_serve_on_them() -> None:
    known = [migration.revision for migration in migrations()]
    for script in _scripts().walk_revisions():
        assert script.module.oldest_code in known[: known.index(script.revision) + 1], script.revision


@pytest.mark.usefixtures("later_schema")
def test_each_migration_leaves_a_row_until_it_is_undone(database_url: str) -> None:
    first = rows(database_url)
    assert [row[0] for row in first] == [one.revision for one in migrations() if one.revision < "9001"]
    upgrade(database_url)
    assert rows(database_url) == [
        *first,
        ("9001", first[-1][0], VERSION),
        ("9002", first[-1][0], VERSION),
    ]
    assert newest_revision() == "9002"
    downgrade(database_url, migrations()[-1])
    assert rows(database_url) == [*first, ("9001", first[-1][0], VERSION)]
