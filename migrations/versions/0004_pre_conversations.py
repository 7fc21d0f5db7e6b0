"""Conversations hold their items themselves, one response in flight at a time; prompt templates.

`pre`: may run while the release before it still serves, which has no conversations.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

UNFINISHED = "conversation_id is not null and status in ('queued', 'in_progress')"


def upgrade() -> None:
    op.add_column(
        "conversations",
        sa.Column(
            "next_position",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="grows with every item that comes or goes, so that it tells whether any has",
        ),
    )
    op.drop_table("conversation_items")
    _conversation_items()
    op.create_index(
        "uq_responses_conversation_id",
        "responses",
        ["tenant", "conversation_id"],
        unique=True,
        postgresql_where=sa.text(UNFINISHED),
    )
    op.create_table(
        "prompts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "content",
            postgresql.JSON(astext_type=sa.Text()),
            nullable=False,
            comment="instructions and input, with {{variables}}",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "id", "version", name=op.f("pk_prompts")),
    )


def _conversation_items() -> None:
    op.create_table(
        "conversation_items",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "response_id",
            sa.Uuid(),
            nullable=True,
            comment="what brought it, which may be gone; null for items put by hand",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "conversation_id", "position", name=op.f("pk_conversation_items")),
        sa.UniqueConstraint("tenant", "id", name=op.f("uq_conversation_items_tenant_id")),
    )


def downgrade() -> None:
    op.drop_table("prompts")
    op.drop_index(
        "uq_responses_conversation_id", table_name="responses", postgresql_where=sa.text(UNFINISHED)
    )
    op.drop_table("conversation_items")
    op.create_table(
        "conversation_items",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "conversation_id", "position", name=op.f("pk_conversation_items")),
    )
    op.drop_column("conversations", "next_position")
