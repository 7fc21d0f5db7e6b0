"""Indexes for what lists of responses are asked for, and the key that replicas seal with.

`pre`: may run while the release before it still serves.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seal_keys",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "key",
            sa.LargeBinary(),
            nullable=False,
            comment="of all replicas; clients' sealed texts open with it",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_seal_keys")),
    )
    op.create_index("ix_responses_model", "responses", ["tenant", "model", sa.text("created_at desc")])
    op.create_index(
        "ix_responses_status",
        "responses",
        ["tenant", "status", sa.text("created_at desc")],
        postgresql_where=sa.text("status <> 'completed'"),
    )
    op.create_index(
        "ix_responses_metadata",
        "responses",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    )


def downgrade() -> None:
    op.drop_index("ix_responses_metadata", table_name="responses")
    op.drop_index("ix_responses_status", table_name="responses")
    op.drop_index("ix_responses_model", table_name="responses")
    op.drop_table("seal_keys")
