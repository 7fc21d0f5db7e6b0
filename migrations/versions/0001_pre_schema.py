"""Responses, their items, conversations and events; replicas, keys, usage; the view of every event.

`pre`: may run while the release before it still serves.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

VIEWS = Path(__file__).resolve().parents[1] / "views"


def upgrade() -> None:
    _replicas()
    _responses()
    _response_indexes()
    _items()
    _conversations()
    _events()
    _keys()
    _usage()
    op.execute(sa.text((VIEWS / "v_events.sql").read_text(encoding="utf-8")))


def _replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", sa.Uuid(), nullable=False, comment="random for every process start"),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("models", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("state in ('alive', 'stopped', 'dead')", name=op.f("ck_replicas_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replicas")),
    )


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("previous_id", sa.Uuid(), nullable=True),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("replica_id", sa.Uuid(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="1", nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_hash", sa.LargeBinary(), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("first_token_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("incomplete_reason", sa.Text(), nullable=True),
        sa.Column(
            "request",
            postgresql.JSON(astext_type=sa.Text()),
            nullable=False,
            comment="what the response repeats of its request",
        ),
        sa.Column(
            "metadata",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="for search; request has the exact text",
        ),
        sa.CheckConstraint(
            "status in ('queued', 'in_progress', 'completed', 'failed', 'incomplete', 'cancelled')",
            name=op.f("ck_responses_status"),
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_responses")),
        postgresql_with={"fillfactor": "80"},
    )


def _response_indexes() -> None:
    op.create_index(
        "ix_responses_created_at",
        "responses",
        ["tenant", sa.literal_column("created_at desc")],
        unique=False,
    )
    op.create_index(
        "ix_responses_expires_at",
        "responses",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("expires_at is not null"),
    )
    op.create_index(
        "ix_responses_previous_id",
        "responses",
        ["tenant", "previous_id"],
        unique=False,
        postgresql_where=sa.text("previous_id is not null"),
    )
    op.create_index(
        "ix_responses_queue",
        "responses",
        ["priority", "queued_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_responses_replica_id",
        "responses",
        ["replica_id"],
        unique=False,
        postgresql_where=sa.text("status = 'in_progress'"),
    )


def _items() -> None:
    op.create_table(
        "items",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column(
            "side",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="0 input, 1 output",
        ),
        sa.Column("idx", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("payload", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "response_id", "side", "idx", name=op.f("pk_items")),
        sa.UniqueConstraint("tenant", "id", name=op.f("uq_items_tenant_id")),
    )


def _conversations() -> None:
    op.create_table(
        "conversation_items",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "conversation_id", "position", name=op.f("pk_conversation_items")),
    )
    op.create_table(
        "conversations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_conversations")),
    )


def _events() -> None:
    op.create_table(
        "response_events_hot",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("first_seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("n", sa.Integer(), nullable=False, comment="events in this row"),
        sa.Column("kind", sa.SmallInteger(), nullable=False, comment="0 whole event, else which delta"),
        sa.Column("output_index", sa.Integer(), nullable=False),
        sa.Column("content_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "body",
            sa.Text(),
            nullable=False,
            comment="kind 0: the event's JSON; else a JSON array of deltas",
        ),
        sa.Column(
            "token_ids",
            sa.LargeBinary(),
            nullable=True,
            comment="int32, little-endian: what the engine gave, for exact resume",
        ),
        sa.Column(
            "at",
            sa.Double(),
            server_default=sa.text("extract(epoch from clock_timestamp())"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "response_id", "first_seq", name=op.f("pk_response_events_hot")),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "1000",
            "autovacuum_vacuum_cost_delay": "0",
        },
    )
    op.create_table(
        "response_streams",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("codec", sa.SmallInteger(), nullable=False, comment="1: JSON array of hot rows"),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column(
            "finished_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "response_id", name=op.f("pk_response_streams")),
    )


def _keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the whole key"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("id", name=op.f("uq_api_keys_id")),
    )


def _usage() -> None:
    op.create_table(
        "usage_ledger",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("response_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "finished_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("tenant", "response_id", name=op.f("pk_usage_ledger")),
    )
    op.create_index("ix_usage_ledger_finished_at", "usage_ledger", ["tenant", "finished_at"], unique=False)


def downgrade() -> None:
    op.execute(sa.text("drop view v_events"))
    op.drop_index("ix_usage_ledger_finished_at", table_name="usage_ledger")
    op.drop_table("usage_ledger")
    op.drop_index(
        "ix_responses_replica_id",
        table_name="responses",
        postgresql_where=sa.text("status = 'in_progress'"),
    )
    op.drop_index("ix_responses_queue", table_name="responses", postgresql_where=sa.text("status = 'queued'"))
    op.drop_index(
        "ix_responses_previous_id",
        table_name="responses",
        postgresql_where=sa.text("previous_id is not null"),
    )
    op.drop_index(
        "ix_responses_expires_at",
        table_name="responses",
        postgresql_where=sa.text("expires_at is not null"),
    )
    op.drop_index("ix_responses_created_at", table_name="responses")
    op.drop_table("responses")
    op.drop_table("response_streams")
    op.drop_table("response_events_hot")
    op.drop_table("replicas")
    op.drop_table("items")
    op.drop_table("conversations")
    op.drop_table("conversation_items")
    op.drop_table("api_keys")
