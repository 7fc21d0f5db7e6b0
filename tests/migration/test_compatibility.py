"""What each migration says beside its SQL, and the rows that it leaves of that."""

import psycopg

from server.store.schema.compatibility import FIRST_RECORDED
from server.store.schema.upgrade import _scripts, migrations, newest_revision
from server.version import VERSION

RECORDED = [
    script for script in reversed(list(_scripts().walk_revisions())) if script.revision >= FIRST_RECORDED
]


def test_revisions_are_four_digits_that_grow() -> None:
    revisions = [migration.revision for migration in migrations()]
    assert revisions == sorted(revisions)
    assert all(len(revision) == 4 and revision.isdecimal() for revision in revisions)


def test_migrations_say_who_may_serve_on_them_and_what_their_downgrade_deletes() -> None:
    earlier = [migration.revision for migration in migrations()]
    for script in RECORDED:
        assert script.module.oldest_code in earlier[: earlier.index(script.revision) + 1], script.revision
    silent = [one.revision for one in migrations() if one.lost is None and one.revision > "0011"]
    assert silent == []


def test_each_migration_leaves_a_row(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        rows = connection.execute(
            "select revision, oldest_code, release from schema_compatibility order by revision"
        ).fetchall()
    assert rows == [(one.revision, one.module.oldest_code, VERSION) for one in RECORDED]
    assert rows[-1][0] == newest_revision()
