"""A column that the release before does without."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

_EARLIER = sorted(path.name[:4] for path in Path(__file__).parent.glob("[0-8]*.py"))

revision = "9001"
down_revision = _EARLIER[-1]
branch_labels = None
depends_on = None
oldest_code = down_revision
lost_by_downgrade = ("conversations.later",)


def upgrade() -> None:
    op.add_column("conversations", sa.Column("later", sa.Text()))


def downgrade() -> None:
    op.drop_column("conversations", "later")
