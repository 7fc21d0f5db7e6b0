"""What a run needs to be taken up by another replica, the queue of runs that nobody has, idempotency keys.

`pre`: may run while the release before it still serves.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).resolve().parents[1] / "views"


def upgrade() -> None:
    op.add_column("responses", sa.Column("key_id", sa.Text(), nullable=True))
    op.add_column(
        "responses",
        sa.Column(
            "deaths",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="replicas that died while they ran it",
        ),
    )
    op.add_column(
        "responses",
        sa.Column(
            "asked",
            postgresql.JSON(astext_type=sa.Text()),
            nullable=True,
            comment="the request without its input: what a run is begun again from",
        ),
    )
    op.drop_index("ix_responses_queue", table_name="responses", postgresql_where=sa.text("status = 'queued'"))
    op.create_index(
        "ix_responses_unowned",
        "responses",
        ["priority", "queued_at"],
        unique=False,
        postgresql_where=sa.text("replica_id is null and status in ('queued', 'in_progress')"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column(
            "digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the request that used it first"
        ),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)
    op.execute(sa.text((VIEWS / "v_events.sql").read_text(encoding="utf-8")))


def downgrade() -> None:
    op.drop_index("ix_idempotency_keys_created_at", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_index(
        "ix_responses_unowned",
        table_name="responses",
        postgresql_where=sa.text("replica_id is null and status in ('queued', 'in_progress')"),
    )
    op.create_index(
        "ix_responses_queue",
        "responses",
        ["priority", "queued_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
    )
    for column in ("asked", "deaths", "key_id"):
        op.drop_column("responses", column)
