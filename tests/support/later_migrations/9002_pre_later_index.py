"""An index, built beside traffic."""

from pathlib import Path

from alembic import op

from server.store.schema.concurrent_indexes import create_index

_EARLIER = sorted(path.name[:4] for path in Path(__file__).parent.glob("[0-8]*.py"))

revision = "9002"
down_revision = "9001"
branch_labels = None
depends_on = None
oldest_code = _EARLIER[-1]
lost_by_downgrade = ()


def upgrade() -> None:
    create_index("ix_conversations_later", "conversations", "(tenant, later)")


def downgrade() -> None:
    op.drop_index("ix_conversations_later")
