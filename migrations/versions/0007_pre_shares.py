"""A tenant's share: a key's most urgent priority, the queue by tenant, sizes of what is stored, their sums.

`pre`: may run while the release before it still serves, which writes no sizes; without one an item itself
is measured, and nothing is counted for its tenant. The new columns are empty or constant, so no table is
rewritten.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SIZES = {
    "responses": "bytes of the row's contents, and some for the row",
    "conversations": "bytes of the metadata, and some for the row",
    "response_streams": "bytes of the body",
}
_UNOWNED = sa.text("replica_id is null and status in ('queued', 'in_progress')")


def upgrade() -> None:
    op.add_column(
        "api_keys",
        sa.Column(
            "priority_floor",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="the most urgent priority of its requests; a lower number is more urgent",
        ),
    )
    for table in ("items", "conversation_items"):
        op.add_column(
            table,
            sa.Column("size", sa.Integer(), nullable=True, comment="bytes of the payload"),
        )
        op.add_column(
            table,
            sa.Column(
                "for_model",
                sa.Text(),
                nullable=True,
                comment="the payload without what no model reads; null where that is all of it",
            ),
        )
    for table, comment in _SIZES.items():
        op.add_column(table, sa.Column("size", sa.Integer(), nullable=True, comment=comment))
    op.create_table(
        "storage_changes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column(
            "bytes", sa.BigInteger(), nullable=False, comment="less than 0 where something was removed"
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_storage_changes")),
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"},
    )
    op.create_index(
        "ix_responses_waiting",
        "responses",
        ["tenant", "priority", "queued_at"],
        unique=False,
        postgresql_where=_UNOWNED,
    )
    op.drop_index("ix_responses_unowned", table_name="responses")


def downgrade() -> None:
    op.create_index(
        "ix_responses_unowned",
        "responses",
        ["priority", "queued_at"],
        unique=False,
        postgresql_where=_UNOWNED,
    )
    op.drop_index("ix_responses_waiting", table_name="responses")
    op.drop_table("storage_changes")
    for table in _SIZES:
        op.drop_column(table, "size")
    for table in ("items", "conversation_items"):
        op.drop_column(table, "for_model")
        op.drop_column(table, "size")
    op.drop_column("api_keys", "priority_floor")
