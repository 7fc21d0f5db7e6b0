"""What unfinished responses have reserved of budgets.

`pre`: a new table, which the release before neither reads nor writes. While it serves beside this one,
its own responses reserve nothing; a reservation whose response it ends counts no more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("budget_reservations",)


def upgrade() -> None:
    op.create_table(
        "budget_reservations",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column("response_id", sa.Uuid(), nullable=False, comment="the response that may use it"),
        sa.Column("key_id", sa.Text(), nullable=False, comment="empty while no key exists"),
        sa.Column("replica_id", sa.Uuid(), nullable=False, comment="the replica that accepted the response"),
        sa.Column("stored", sa.Boolean(), nullable=False, comment="the response gets a row in responses"),
        sa.Column("tokens", sa.BigInteger(), nullable=False, comment="of its prompt and its output at most"),
        sa.Column("cost", sa.Numeric(), nullable=False, comment="of these tokens at the prices then"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when it was made",
        ),
        sa.PrimaryKeyConstraint("tenant", "response_id", name=op.f("pk_budget_reservations")),
        comment="what unfinished responses may use of budgets; the end of a response deletes its row",
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"},
    )


def downgrade() -> None:
    op.drop_table("budget_reservations")
