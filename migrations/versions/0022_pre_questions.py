"""Why a response was cancelled, which client and key made requests, tags of the ledger, stored bytes by day.

`pre`: new columns and tables that the release before neither reads nor writes, and views with more columns.
What that release stores, removes or refuses meanwhile is in the sums by tenant and by address, and not in
those by day and by key.
"""

import re
from pathlib import Path

import sqlalchemy as sa
from alembic import context, op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = (
    "responses.cancel_reason",
    "responses.user_agent",
    "usage_ledger.cancel_reason",
    "usage_ledger.metadata",
    "storage_changes.day",
    "storage_days",
    "refused_keys",
)

FOLDER = Path(__file__).parent.parent
CHANGED = ("responses", "items", "usage")
"""Views of the schema `admin` that get more columns."""
REASONS = "client_request, client_disconnect, deleted, key_ended, erased or operator"
OLD_CHANGE = "insert into storage_changes (tenant, bytes)\n        select tenant, -sum(bytes) from ("
NEW_CHANGE = """insert into storage_changes (tenant, bytes, day)
        select tenant, -sum(bytes), cast(statement_timestamp() at time zone 'utc' as date) from ("""


def upgrade() -> None:
    _add_columns()
    _create_tables()
    _run(_function_that_drops_responses().replace(OLD_CHANGE, NEW_CHANGE))
    _run((FOLDER / "functions" / "rights.sql").read_text(encoding="utf-8").strip().removesuffix(";"))
    for statement in _statements(FOLDER / "views" / "admin" / "view_columns.sql"):
        op.execute(statement)


def _add_columns() -> None:
    for table in ("responses", "usage_ledger"):
        op.add_column(table, sa.Column("cancel_reason", sa.Text(), comment=REASONS))
    op.add_column(
        "responses",
        sa.Column(
            "user_agent", sa.Text(), comment="of its create's client: printable ASCII, at most 200 characters"
        ),
    )
    op.add_column(
        "usage_ledger",
        sa.Column(
            "metadata",
            sa.dialects.postgresql.JSONB(),
            comment="of a stored response: pairs whose values have at most 64 characters",
        ),
    )
    op.add_column(
        "storage_changes",
        sa.Column("day", sa.Date(), comment="in UTC; null: storage_days has it, or nobody knows"),
    )


def _create_tables() -> None:
    op.create_table(
        "storage_days",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column("day", sa.Date(), nullable=False, comment="in UTC"),
        sa.Column("added", sa.BigInteger(), nullable=False, comment="bytes that were stored"),
        sa.Column("removed", sa.BigInteger(), nullable=False, comment="bytes that were removed"),
        sa.PrimaryKeyConstraint("tenant", "day", name=op.f("pk_storage_days")),
        postgresql_with={"fillfactor": "80"},
        comment="stored and removed bytes by day, as far as storage_changes has been folded",
    )
    op.create_index("ix_storage_days_day", "storage_days", ["day"])
    op.create_table(
        "refused_keys",
        sa.Column("tenant", sa.Text(), nullable=False, comment="whose it is"),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False, comment="its begin"),
        sa.Column("key_id", sa.Text(), nullable=False, comment="the API key of the requests"),
        sa.Column("status", sa.Integer(), nullable=False, comment="of HTTP, 400 and above"),
        sa.Column("error_code", sa.Text(), nullable=False, comment="of the error object; empty: it has none"),
        sa.Column("requests", sa.BigInteger(), nullable=False, comment="how many"),
        sa.PrimaryKeyConstraint(
            "tenant", "hour", "key_id", "status", "error_code", name=op.f("pk_refused_keys")
        ),
        postgresql_with={"fillfactor": "50"},
        comment="those of refused_requests that came with an API key, counted by key",
    )
    op.create_index("ix_refused_keys_hour", "refused_keys", ["hour"])


def downgrade() -> None:
    """What roles may do with the views that are made again comes back with `holdfast db roles`."""
    op.execute("drop view admin.storage_daily, admin.refused_hourly")
    op.execute("drop function admin.chain(text), admin.search(text)")
    op.execute("drop view admin.responses, admin.items, admin.usage")
    op.execute("drop function admin.field(json, text[]), admin.text_of(json)")
    for name in ("responses", "content", "usage"):
        for statement in _statements(FOLDER / "views" / "admin" / f"{name}.sql"):
            if _CHANGED.search(statement):
                op.execute(statement)
    _run(_function_that_drops_responses())
    op.drop_table("refused_keys")
    op.drop_table("storage_days")
    op.drop_column("storage_changes", "day")
    for table, column in (
        ("usage_ledger", "metadata"),
        ("usage_ledger", "cancel_reason"),
        ("responses", "user_agent"),
        ("responses", "cancel_reason"),
    ):
        op.drop_column(table, column)


_CHANGED = re.compile(
    rf"^(create view|comment on view|create function|comment on function|comment on column) "
    rf"admin\.({'|'.join(CHANGED)}|chain|search)\b",
    re.MULTILINE,
)


def _function_that_drops_responses() -> str:
    text = (FOLDER / "functions" / "retention.sql").read_text(encoding="utf-8")
    begin = text.index("create or replace function holdfast_drop_responses")
    return text[begin : text.index("end $$", begin) + len("end $$")]


def _statements(file: Path) -> list[str]:
    """A file's statements, each of which ends at the end of a line, for `op.execute`."""
    parts = re.split(r";\n(?!end;)", file.read_text(encoding="utf-8"))
    return [part.replace(":", r"\:") for part in parts if part.strip()]


def _run(statements: str) -> None:
    """Runs them as they are: `op.execute` would read `%` and `:` in them."""
    if context.is_offline_mode():
        op.get_context().impl.static_output(f"{statements};\n")
    else:
        op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
