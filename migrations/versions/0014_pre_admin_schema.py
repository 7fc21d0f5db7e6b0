"""The schema `admin`, views for people; usage by day, counts of refused requests, seconds of tool calls.

`pre`: may run while the release before it still serves. What that one meters has no `kind`; it is found by an
index of such entries, which is built beside traffic, and counted by this release's retention thread. A new
column takes an exclusive lock on `items` for as long as the catalog's change takes.

The role needs CREATE on the database, for the schema.
"""

import re
from pathlib import Path

import sqlalchemy as sa
from alembic import op

from server.store.schema.concurrent_indexes import create_index

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
lost_by_downgrade = ("usage_changes", "usage_days", "user_days", "refused_requests", "items.seconds")

FOLDER = Path(__file__).parent.parent / "views"
FILES = ("v_events", "responses", "usage", "costs_monthly", "health", "content", "storage", "comments")
OFTEN_CHANGED = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"}


def upgrade() -> None:
    create_index(
        "ix_usage_ledger_uncounted", "usage_ledger", "(finished_at) where kind is null", partitioned=True
    )
    op.add_column(
        "items", sa.Column("seconds", sa.Double(), comment="how long the call took that the server made")
    )
    _create_sums()
    _create_refused_requests()
    op.execute("create schema admin")
    op.execute("comment on schema admin is 'views for people: see docs/sql.md'")
    for name in FILES:
        _run(FOLDER / "admin" / f"{name}.sql")


def _run(file: Path) -> None:
    """Runs a file's statements, each of which ends at the end of a line."""
    for statement in re.split(r";\n(?!end;)", file.read_text(encoding="utf-8")):
        if statement.strip():
            op.execute(statement.replace(":", r"\:"))


def _create_sums() -> None:
    op.create_table(
        "usage_changes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False),
        *_groups(),
        sa.Column("end_user", sa.Text(), nullable=False, comment="empty: none named"),
        *_sums(),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_usage_changes")),
        postgresql_with=OFTEN_CHANGED,
        comment="what usage_days and user_days lack of the ledger; the retention thread folds it into them",
    )
    op.create_table(
        "usage_days",
        sa.Column("tenant", sa.Text(), nullable=False),
        *_groups(),
        *_sums(),
        sa.PrimaryKeyConstraint(
            "tenant",
            "day",
            "key_id",
            "model",
            "kind",
            "status",
            "error_code",
            name=op.f("pk_usage_days"),
        ),
        postgresql_with={"fillfactor": "80"},
        comment="sums of the ledger by day, of all that was ever in it",
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    op.create_table(
        "user_days",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column(
            "end_user", sa.Text(), nullable=False, comment="user, else safety_identifier, of the requests"
        ),
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        *_sums(),
        sa.PrimaryKeyConstraint("tenant", "end_user", "day", name=op.f("pk_user_days")),
        postgresql_with={"fillfactor": "80"},
        comment="sums of the ledger by end user and day, as far back as the ledger goes",
    )
    op.create_index("ix_user_days_day", "user_days", ["day"])


def _groups() -> list[sa.Column[object]]:
    return [
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        sa.Column("key_id", sa.Text(), nullable=False, comment="empty: without a key"),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "kind", sa.Text(), nullable=False, comment="response, chat or completion: the API of the request"
        ),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=False, comment="empty: no error"),
    ]


def _sums() -> list[sa.Column[object]]:
    return [
        sa.Column("responses", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False, comment="cached ones among them"),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False, comment="reasoning among them"),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.Numeric(), nullable=False, comment="of the responses that have one"),
        sa.Column("unpriced", sa.BigInteger(), nullable=False, comment="responses whose model had no price"),
    ]


def _create_refused_requests() -> None:
    op.create_table(
        "refused_requests",
        sa.Column("tenant", sa.Text(), nullable=False, comment="empty: not known, as with a wrong key"),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "route", sa.Text(), nullable=False, comment="the template of the address; empty: no such address"
        ),
        sa.Column("status", sa.Integer(), nullable=False, comment="of HTTP, 400 and above"),
        sa.Column("error_code", sa.Text(), nullable=False, comment="of the error object; empty: it has none"),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant", "hour", "route", "status", "error_code", name=op.f("pk_refused_requests")
        ),
        postgresql_with={"fillfactor": "50"},
        comment="requests that were answered with an error object, counted by hour",
    )
    op.create_index("ix_refused_requests_hour", "refused_requests", ["hour"])


def downgrade() -> None:
    """What roles may do with `v_events`, and `v_tenant_events`, come back with `holdfast db roles`."""
    op.execute("drop schema admin cascade")
    op.execute("drop view v_events cascade")
    _run(FOLDER / "v_events.sql")
    for table in ("refused_requests", "user_days", "usage_days", "usage_changes"):
        op.drop_table(table)
    op.drop_column("items", "seconds")
    op.drop_index("ix_usage_ledger_uncounted", "usage_ledger")
