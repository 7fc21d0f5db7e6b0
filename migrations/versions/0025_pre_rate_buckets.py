"""Rate limits as buckets that fill evenly, in place of windows of seconds.

`pre`: the table of windows goes, so no older code serves on this schema.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
oldest_code = "0025"
lost_by_downgrade = ("rate_buckets",)


def upgrade() -> None:
    op.create_table(
        "rate_buckets",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column("key_id", sa.Text(), nullable=False, comment="empty: of the tenant"),
        sa.Column("kind", sa.Text(), nullable=False, comment="requests or tokens"),
        sa.Column(
            "full_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="when all of the limit is there again",
        ),
        sa.PrimaryKeyConstraint("tenant", "key_id", "kind", name=op.f("pk_rate_buckets")),
        comment="rate limits that are in use: a row for each bucket that is not full, or was not of late",
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
    )
    op.execute("-- squawk-ignore ban-drop-table\ndrop table rate_windows")


def downgrade() -> None:
    op.create_table(
        "rate_windows",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False, comment="empty: of the tenant"),
        sa.Column("kind", sa.Text(), nullable=False, comment="requests or tokens"),
        sa.Column("newest", sa.BigInteger(), nullable=False, comment="Unix second of the last slot"),
        sa.Column(
            "slots",
            postgresql.ARRAY(sa.BigInteger()),
            nullable=False,
            comment="what was used in each of the seconds up to newest, the oldest first",
        ),
        sa.PrimaryKeyConstraint("tenant", "key_id", "kind", name=op.f("pk_rate_windows")),
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
    )
    op.drop_table("rate_buckets")
