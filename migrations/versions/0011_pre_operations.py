"""Tenants, limits and budgets of keys, prices, rate windows, the audit trail; times and ids of each request.

`pre`: may run while the release before it still serves: tables are new, columns are empty or constant. Adding
them takes an exclusive lock on `responses`, `api_keys` and `usage_ledger` for as long as the catalog's change
takes, a few milliseconds once it is granted.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PERIODS = "budget_period in ('day', 'month', 'total')"


def upgrade() -> None:
    _create_tenants()
    _extend_keys()
    _create_spending()
    _create_audit_trail()
    _extend_responses()


def _create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("contact", sa.Text(), server_default="", nullable=False),
        _time("created_at", required=True),
        sa.Column("max_unfinished", sa.Integer(), comment="unfinished responses on one replica"),
        sa.Column("max_queued", sa.Integer(), comment="queued background responses"),
        sa.Column("max_stored_bytes", sa.BigInteger()),
        sa.Column("retention_days", sa.Integer(), comment="0: without expiry"),
        *_limits(),
        sa.CheckConstraint(_PERIODS, name=op.f("ck_tenants_budget_period")),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenants")),
        comment="what an operator has set for a tenant; one without a row has the server's settings",
    )


def _extend_keys() -> None:
    columns: list[sa.Column[Any]] = [
        _time("first_used_at"),
        sa.Column(
            "scopes",
            postgresql.ARRAY(sa.Text()),
            server_default="{read,write}",
            nullable=False,
            comment="read, write, admin, metrics",
        ),
        sa.Column("models", postgresql.ARRAY(sa.Text()), comment="models it may use; null: all"),
        sa.Column(
            "tools", postgresql.ARRAY(sa.Text()), comment="tools run by the server that it may use; null: all"
        ),
        sa.Column("replaced_by", sa.Text(), comment="the key that rotation made in its place"),
        *_limits(),
    ]
    for column in columns:
        op.add_column("api_keys", column)
    op.create_check_constraint(op.f("ck_api_keys_budget_period"), "api_keys", _PERIODS)


def _create_spending() -> None:
    op.create_table(
        "prices",
        sa.Column("model", sa.Text(), nullable=False),
        _time("valid_from", required=True),
        sa.Column("input", sa.Numeric(), nullable=False, comment="of 1,000,000 tokens"),
        sa.Column("cached_input", sa.Numeric(), nullable=False),
        sa.Column("output", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("model", "valid_from", name=op.f("pk_prices")),
        comment="prices of models, all in one currency",
    )
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
            comment="what was used in each of the last 60 seconds",
        ),
        sa.PrimaryKeyConstraint("tenant", "key_id", "kind", name=op.f("pk_rate_windows")),
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
    )
    op.create_table(
        "spend",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False, comment="empty while no key exists"),
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key_id", "day", "id", name=op.f("pk_spend")),
        comment="a row for each response; those of a key and day are folded into one",
    )


def _create_audit_trail() -> None:
    op.create_table(
        "audit_trail",
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        _time("at", required=True),
        sa.Column("actor", sa.Text(), nullable=False, comment="key:ID, user:NAME, token:SUBJECT"),
        sa.Column("action", sa.Text(), nullable=False, comment="such as key.create, tenant.update"),
        sa.Column("tenant", sa.Text()),
        sa.Column("target", sa.Text(), comment="the id of what was changed"),
        sa.Column("request_id", sa.Text()),
        sa.Column("details", postgresql.JSONB(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_trail")),
        comment="what operators and callers changed; rows are added and never changed",
    )
    op.create_table(
        "reader_tenants",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False, comment="a database user"),
        sa.PrimaryKeyConstraint("tenant", "role", name=op.f("pk_reader_tenants")),
        comment="whose rows the readers of single tenants see",
    )
    op.create_index("ix_audit_trail_at", "audit_trail", [sa.text("at desc")])


def _extend_responses() -> None:
    for table in ("responses", "usage_ledger"):
        op.add_column(table, sa.Column("request_id", sa.Text(), comment="x-request-id of its create"))
        op.add_column(
            table,
            sa.Column("queue_seconds", sa.Double(), comment="from the engine's acceptance to its first step"),
        )
        op.add_column(
            table, sa.Column("prefill_seconds", sa.Double(), comment="from its first step to its first token")
        )
    op.add_column("responses", sa.Column("trace_parent", sa.Text(), comment="traceparent of its create"))
    op.add_column("usage_ledger", _time("first_token_at"))
    op.add_column("usage_ledger", sa.Column("error_code", sa.Text()))
    op.add_column("usage_ledger", sa.Column("cost", sa.Numeric(), comment="null: no price"))


def downgrade() -> None:
    for column in ("cost", "error_code", "first_token_at"):
        op.drop_column("usage_ledger", column)
    op.drop_column("responses", "trace_parent")
    for table in ("responses", "usage_ledger"):
        for column in ("prefill_seconds", "queue_seconds", "request_id"):
            op.drop_column(table, column)
    for table in ("reader_tenants", "audit_trail", "spend", "rate_windows", "prices"):
        op.drop_table(table)
    op.drop_constraint(op.f("ck_api_keys_budget_period"), "api_keys", type_="check")
    for column in (
        "budget_period",
        "budget_cost",
        "budget_tokens",
        "tokens_per_minute",
        "requests_per_minute",
        "replaced_by",
        "tools",
        "models",
        "scopes",
        "first_used_at",
    ):
        op.drop_column("api_keys", column)
    op.drop_table("tenants")


def _limits() -> list[sa.Column[Any]]:
    return [
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("tokens_per_minute", sa.BigInteger()),
        sa.Column("budget_tokens", sa.BigInteger(), comment="input and output tokens in a period"),
        sa.Column("budget_cost", sa.Numeric(), comment="in the currency of the prices"),
        sa.Column("budget_period", sa.Text(), server_default="month", nullable=False),
    ]


def _time(name: str, *, required: bool = False) -> sa.Column[Any]:
    default = sa.text("clock_timestamp()") if required else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not required)
