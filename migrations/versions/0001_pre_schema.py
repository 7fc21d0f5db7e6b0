"""Tables, indexes, partitions and functions; views for people; comments on all of them.

`pre`: the database is empty before, so nobody uses what it locks.
"""

from pathlib import Path

from alembic import context, op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
oldest_code = "0001"
lost_by_downgrade = (
    "replicas",
    "installation",
    "responses",
    "items",
    "conversations",
    "conversation_items",
    "images",
    "item_images",
    "prompts",
    "response_events_hot",
    "response_streams",
    "idempotency_keys",
    "storage_changes",
    "storage_days",
    "refused_requests",
    "refused_keys",
    "rate_buckets",
    "spend",
    "budget_reservations",
    "api_keys",
    "tenants",
    "prices",
    "usage_ledger",
    "usage_changes",
    "usage_days",
    "user_days",
    "audit_trail",
    "seal_keys",
    "key_requirement",
    "reader_tenants",
    "schema_compatibility",
    "webhook_endpoints",
    "webhook_deliveries",
    "saved_views",
)

FOLDER = Path(__file__).parent.parent
FILES = (
    "tables/responses",
    "tables/operators",
    "tables/comments",
    "functions/partitions",
    "functions/retention",
    "functions/rights",
    "tables/first_partitions",
    "views/v_events",
    "views/v_images",
    "views/admin/responses",
    "views/admin/usage",
    "views/admin/costs_monthly",
    "views/admin/health",
    "views/admin/content",
    "views/admin/storage",
)
"""In an order in which each finds what it uses."""


def upgrade() -> None:
    for name in FILES:
        _run((FOLDER / f"{name}.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """What others have made of these tables and functions goes with them."""
    _run(_DROP.replace("TABLES", ", ".join(lost_by_downgrade)))


def _run(statements: str) -> None:
    """Runs them as they are: `op.execute` would read `%` and `:` in them."""
    if context.is_offline_mode():
        op.get_context().impl.static_output(statements)
    else:
        op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})


_DROP = r"""
drop schema admin cascade;
drop view v_events, v_images cascade;
drop table TABLES cascade;
do $$
declare
    detached regclass;
    made regprocedure;
begin
    for detached in select oid from pg_class where relnamespace = current_schema()::regnamespace
        and relname ~ '^(responses|items|response_streams|usage_ledger)_detached_[0-9]{10}$' loop
        execute format('drop table %s', detached);
    end loop;
    for made in select oid from pg_proc
        where pronamespace = current_schema()::regnamespace and proname like 'holdfast\_%' loop
        execute format('drop function %s', made);
    end loop;
end $$;
"""
