"""The tokens of each of a response's turns, so that a list of responses need not read their streams.

`pre`: may run while the release before it still serves, which leaves it empty; of such a response the last
event is read. The new column is empty, so no table is rewritten.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "responses",
        sa.Column(
            "turns",
            postgresql.JSON(),
            nullable=True,
            comment="tokens of each turn of the model; its input has the tools' output",
        ),
    )


def downgrade() -> None:
    op.drop_column("responses", "turns")
