"""A replica tells what is read through it and runs elsewhere.

`pre`: may run while the release before it still serves, which tells nothing.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "replicas",
        sa.Column(
            "reading",
            postgresql.ARRAY(sa.Uuid()),
            server_default="{}",
            nullable=False,
            comment="responses that run elsewhere and would end without their readers here",
        ),
    )


def downgrade() -> None:
    op.drop_column("replicas", "reading")
