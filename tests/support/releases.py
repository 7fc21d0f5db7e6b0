"""Other releases than this one, each in a folder: the one before, and one that would come after."""

import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from tests.support.server_process import REPOSITORY, environment

BEFORE = "8ffb894"
"""The last commit of the release before this one, whose schema is revision 0011."""
PATIENCE_S = 1800.0
"""For a command: an audit of 100,000 responses takes minutes, where others use the machine, more of them."""
PARTS = ("server", "engine", "migrations", "demo")

_LATER = '''"""A column and an index that the release before does without."""

import sqlalchemy as sa
from alembic import op

revision = "9001"
down_revision = "{newest}"
branch_labels = None
depends_on = None
oldest_code = "{newest}"
lost_by_downgrade = ()


def upgrade() -> None:
    op.add_column("conversations", sa.Column("later", sa.Text()))


def downgrade() -> None:
    op.drop_column("conversations", "later")
'''
_INDEXED = '''"""An index, built beside traffic."""

from alembic import op

from server.store.schema.concurrent_indexes import create_index

revision = "9002"
down_revision = "9001"
branch_labels = None
depends_on = None
oldest_code = "{newest}"
lost_by_downgrade = ()


def upgrade() -> None:
    create_index("ix_conversations_later", "conversations", "(tenant, later)")


def downgrade() -> None:
    op.drop_index("ix_conversations_later")
'''


def release_before(folder: Path) -> bool:
    """Writes the release before into `folder`; False where the history does not reach back to it."""
    archived = subprocess.run(
        ["git", "archive", BEFORE, *PARTS], cwd=REPOSITORY, capture_output=True, check=False
    )
    if archived.returncode != 0:
        return False
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return True


def release_after(folder: Path, newest: str) -> None:
    """Writes this release with two more migrations, on which it may still serve itself."""
    for part in PARTS:
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    versions = folder / "migrations" / "versions"
    (versions / "9001_pre_later.py").write_text(_LATER.format(newest=newest), encoding="utf-8")
    (versions / "9002_pre_later_index.py").write_text(_INDEXED.format(newest=newest), encoding="utf-8")


def start_command(folder: Path, url: str, *arguments: str) -> "subprocess.Popen[str]":
    """Starts a release's `holdfast` with these arguments; what it says comes in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "server", *arguments],
        cwd=folder,
        env=environment(url, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_release(folder: Path, url: str, *arguments: str) -> str:
    """What it said; it must succeed."""
    with start_command(folder, url, *arguments) as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    return said
