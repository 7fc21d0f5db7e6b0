"""Which cluster and database the data is in, so that a restored copy is known for one.

`pre`: a new table, which the release before does not look at.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("installation",)


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("name", sa.Text(), nullable=False, comment="always this"),
        sa.Column(
            "system_identifier",
            sa.Text(),
            nullable=False,
            comment="of the cluster, as pg_control_system() has it; empty where that may not be asked",
        ),
        sa.Column("database_oid", sa.BigInteger(), nullable=False, comment="of the database in the cluster"),
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when the place was seen for the first time",
        ),
        sa.Column(
            "held_before",
            sa.DateTime(timezone=True),
            comment="background responses from before are held: the data is a restored copy",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_installation")),
        comment="one row: where the data was when a server last started on it",
    )


def downgrade() -> None:
    op.drop_table("installation")
