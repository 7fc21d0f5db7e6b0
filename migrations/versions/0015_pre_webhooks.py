"""Webhooks: endpoints of tenants, and the outbox of what is delivered to them.

`pre`: may run while the release before it still serves. Both tables are new; what ends on a replica of that
release has no delivery.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
lost_by_downgrade = ("webhook_endpoints", "webhook_deliveries")


def upgrade() -> None:
    _create_endpoints()
    _create_deliveries()


def _create_endpoints() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column(
            "id", sa.Uuid(), nullable=False, comment="a UUIDv7; the API shows it as we_ and its digits"
        ),
        sa.Column("name", sa.Text(), nullable=False, comment="a note of its owner"),
        sa.Column("url", sa.Text(), nullable=False, comment="where events are sent"),
        sa.Column(
            "event_types",
            postgresql.ARRAY(sa.Text()),
            nullable=False,
            comment="the events that are sent to it",
        ),
        sa.Column(
            "all_responses",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="events of every stored response; otherwise of background responses",
        ),
        sa.Column("secret", sa.Text(), nullable=False, comment="sealed with the server's seal key"),
        sa.Column("old_secret", sa.Text(), comment="sealed; signs, too, until old_secret_until"),
        _time("old_secret_until", comment="until when the secret before the last rotation signs, too"),
        _time("created_at", required=True, comment="when it was made"),
        _time("updated_at", required=True, comment="when it was last changed"),
        _time("disabled_at", comment="since when nothing is sent to it; null: it is enabled"),
        sa.Column("disabled_reason", sa.Text(), comment="why"),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_webhook_endpoints")),
        sa.UniqueConstraint("id", name=op.f("uq_webhook_endpoints_id")),
        comment="where the server reports the ends of a tenant's responses",
    )


def _create_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column(
            "id",
            sa.Uuid(),
            server_default=sa.text("gen_random_uuid()"),
            nullable=False,
            comment="random; the receiver sees it as wh_ and its digits",
        ),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False, comment="where it is sent"),
        sa.Column("event_id", sa.Uuid(), nullable=False, comment="the same for every endpoint of the tenant"),
        sa.Column("response_id", sa.Uuid(), nullable=False, comment="the response that ended"),
        sa.Column("type", sa.Text(), nullable=False, comment="such as response.completed"),
        _time("created_at", required=True, comment="the end of the response"),
        sa.Column(
            "attempts", sa.Integer(), server_default="0", nullable=False, comment="how many have begun"
        ),
        _time("next_attempt_at", comment="while claimed: when the claim ends; null: no further attempt"),
        _time("give_up_at", required=True, default=False, comment="when no further attempt is made"),
        _time("last_attempt_at", comment="when the last attempt ended"),
        sa.Column("last_status", sa.Integer(), comment="HTTP status of the last answer; null without one"),
        sa.Column("last_error", sa.Text(), comment="why the last attempt failed"),
        _time("delivered_at", comment="when it was received"),
        _time("given_up_at", comment="when it was given up"),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_webhook_deliveries")),
        comment="the outbox of webhooks: written in the transaction of a response's end",
        postgresql_with={
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "1000",
        },
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["endpoint_id", "next_attempt_at"],
        postgresql_where=sa.text("next_attempt_at is not null"),
    )
    op.create_index(
        "ix_webhook_deliveries_created_at",
        "webhook_deliveries",
        ["tenant", sa.text("created_at desc"), "id"],
    )
    op.create_index("ix_webhook_deliveries_response_id", "webhook_deliveries", ["tenant", "response_id"])
    op.create_index(
        "ix_webhook_deliveries_ended",
        "webhook_deliveries",
        [sa.text("coalesce(delivered_at, given_up_at)")],
        postgresql_where=sa.text("next_attempt_at is null"),
    )


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_endpoints")


def _time(
    name: str, *, required: bool = False, default: bool = True, comment: str | None = None
) -> sa.Column[Any]:
    now = sa.text("clock_timestamp()") if required and default else None
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=now, nullable=not required, comment=comment
    )
