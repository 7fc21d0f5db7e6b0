"""squawk, a linter of migrations, finds nothing in the SQL of those that run beside the release before."""

import subprocess
import sys
from pathlib import Path

import pytest

from server.store.schema.upgrade import Migration, migrations, upgrade_sql

REPOSITORY = Path(__file__).parents[2]
FIRST = "0012"
"""Earlier ones were released before it was asked."""
CHECKED = [migration for migration in migrations() if migration.revision >= FIRST]


def findings(sql: str) -> str:
    """One line each, as compilers write them."""
    program = Path(sys.executable).with_name("squawk")
    options = ["--config", str(REPOSITORY / ".squawk.toml"), "--reporter", "gcc"]
    ended = subprocess.run([program, *options], input=sql, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.parametrize("migration", CHECKED, ids=lambda migration: migration.revision)
def test_a_migration_blocks_nobody(migration: Migration) -> None:
    assert findings(upgrade_sql(migration.previous, migration.revision)) == ""


def test_one_that_would_is_found() -> None:
    blocking = "set lock_timeout = '1s'; create index ix_items_name on items (name);"
    assert "require-concurrent-index-creation" in findings(blocking)
