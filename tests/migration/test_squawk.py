"""squawk, a linter of migrations, finds nothing in the SQL of those that run beside the release before.

The first one runs on an empty database, where it blocks nobody.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from server.store.schema.upgrade import migrations, upgrade_sql
from tests.support.releases import LATER_REVISIONS

REPOSITORY = Path(__file__).parents[2]


def findings(sql: str) -> str:
    """One line each, as compilers write them."""
    program = Path(sys.executable).with_name("squawk")
    options = ["--config", str(REPOSITORY / ".squawk.toml"), "--reporter", "gcc"]
    ended = subprocess.run([program, *options], input=sql, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.usefixtures("later_schema")
def test_no_migration_after_the_first_blocks_anybody() -> None:
    checked = migrations()[1:]
    assert {migration.revision for migration in checked} >= set(LATER_REVISIONS)
    for migration in checked:
        assert findings(upgrade_sql(migration.previous, migration.revision)) == "", migration.revision


def test_one_that_would_is_found() -> None:
    blocking = "set lock_timeout = '1s'; create index ix_items_name on items (name);"
    assert "require-concurrent-index-creation" in findings(blocking)
