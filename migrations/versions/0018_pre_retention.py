"""Removal of whole partitions, when a conversation was last changed, and how long a tenant's are kept.

`pre`: may run while the release before it still serves, which uses none of the functions and leaves
`touched_at` as it is; the age of a conversation's newest item is looked at, too. A new column takes an
exclusive lock on its table for as long as the catalog's change takes.

The downgrade drops what was detached; what expires from then on is deleted row by row.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import context, op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
oldest_code = "0011"
lost_by_downgrade = ("tenants.conversation_days",)

FUNCTIONS = Path(__file__).parent.parent / "functions"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("conversation_days", sa.Integer(), comment="0: without expiry"))
    op.add_column(
        "conversations",
        sa.Column(
            "touched_at",
            sa.DateTime(timezone=True),
            comment="when it was made or last changed; null: long ago",
        ),
    )
    op.alter_column("conversations", "touched_at", server_default=sa.text("clock_timestamp()"))
    for name in ("retention", "rights"):
        _run((FUNCTIONS / f"{name}.sql").read_text(encoding="utf-8").strip().removesuffix(";"))


def downgrade() -> None:
    _run(_DROP_DETACHED)
    _run(_DROP_FUNCTIONS)
    op.drop_column("conversations", "touched_at")
    op.drop_column("tenants", "conversation_days")


def _run(statements: str) -> None:
    """Runs them as they are: `op.execute` would read `%` and `:` in them."""
    if context.is_offline_mode():
        op.get_context().impl.static_output(f"{statements};\n")
    else:
        op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})


_DROP_DETACHED = r"""
do $$
declare one text;
begin
    for one in select substring(relname from '[0-9]{10}$') from pg_class
        where relnamespace = current_schema()::regnamespace and relname ~ '^responses_detached_[0-9]{10}$'
    loop
        perform holdfast_drop_responses(one, 0);
    end loop;
    for one in select substring(relname from '[0-9]{10}$') from pg_class
        where relnamespace = current_schema()::regnamespace and relname ~ '^usage_ledger_detached_[0-9]{10}$'
    loop
        perform holdfast_drop_entries(one, 36500);
    end loop;
end $$
"""
_DROP_FUNCTIONS = """
drop function holdfast_drop_entries(text, integer), holdfast_drop_responses(text, float8),
    holdfast_detach(text[], interval, text[], uuid[]), holdfast_move_rows(regclass, text, text[], uuid[]),
    holdfast_surviving_entries(regclass, integer, bigint),
    holdfast_surviving_responses(regclass, float8, bigint),
    holdfast_range_of(regclass)
"""
