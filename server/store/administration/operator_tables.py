"""Tables of operators: keys, tenants, prices, limits, spending, the usage ledger, the audit trail."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from server.store.tables import NOW, engine_times, metadata, origin_columns, time_column

_PERIODS = "budget_period in ('day', 'month', 'total')"


def _limits() -> list[Column[object]]:
    """Limits and budgets of a tenant or a key; null: none of its own."""
    return [
        Column("requests_per_minute", Integer),
        Column("tokens_per_minute", BigInteger),
        Column("budget_tokens", BigInteger, comment="input and output tokens in a period"),
        Column("budget_cost", Numeric, comment="in the currency of the prices"),
        Column("budget_period", Text, nullable=False, server_default="month"),
    ]


api_keys = Table(
    "api_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, comment="SHA-256 of the whole key"),
    time_column("created_at", required=True),
    time_column("last_used_at"),
    time_column("expires_at"),
    time_column("revoked_at"),
    Column(
        "priority_floor",
        Integer,
        nullable=False,
        server_default="0",
        comment="the most urgent priority of its requests; a lower number is more urgent",
    ),
    time_column("first_used_at"),
    Column(
        "scopes",
        ARRAY(Text),
        nullable=False,
        server_default="{read,write}",
        comment="read, write, admin, metrics",
    ),
    Column("models", ARRAY(Text), comment="models it may use; null: all"),
    Column("tools", ARRAY(Text), comment="tools run by the server that it may use; null: all"),
    Column("replaced_by", Text, comment="the key that rotation made in its place"),
    Column("first_key", Text, comment="the first key of its rotations, as which it is counted; null: itself"),
    Column(
        "ends_streams",
        Boolean,
        nullable=False,
        server_default="false",
        comment="what runs with it is ended when it expires or is revoked",
    ),
    *_limits(),
    UniqueConstraint("id"),
    CheckConstraint(_PERIODS, name="budget_period"),
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("contact", Text, nullable=False, server_default=""),
    time_column("created_at", required=True),
    Column("max_unfinished", Integer, comment="unfinished responses on one replica"),
    Column("max_queued", Integer, comment="queued background responses"),
    Column("max_stored_bytes", BigInteger),
    Column("retention_days", Integer, comment="0: without expiry"),
    *_limits(),
    CheckConstraint(_PERIODS, name="budget_period"),
    comment="what an operator has set for a tenant; one without a row has the server's settings",
)

prices = Table(
    "prices",
    metadata,
    Column("model", Text, primary_key=True),
    Column("valid_from", DateTime(timezone=True), primary_key=True, server_default=NOW),
    Column("input", Numeric, nullable=False, comment="of 1,000,000 tokens"),
    Column("cached_input", Numeric, nullable=False),
    Column("output", Numeric, nullable=False),
    comment="prices of models, all in one currency",
)

rate_windows = Table(
    "rate_windows",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, primary_key=True, comment="empty: of the tenant"),
    Column("kind", Text, primary_key=True, comment="requests or tokens"),
    Column("newest", BigInteger, nullable=False, comment="Unix second of the last slot"),
    Column(
        "slots",
        ARRAY(BigInteger),
        nullable=False,
        comment="what was used in each of the seconds up to newest, the oldest first",
    ),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
)

spend = Table(
    "spend",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, primary_key=True, comment="empty while no key exists"),
    Column("day", Date, primary_key=True, comment="in UTC"),
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", Numeric, nullable=False),
    Index("ix_spend_day", "day"),
    comment="a row for each response; those of a key and day are folded into one",
)

usage_ledger = Table(
    "usage_ledger",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("key_id", Text),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("stored", Boolean, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    time_column("started_at", required=True),
    time_column("finished_at", required=True),
    *engine_times(),
    time_column("first_token_at"),
    Column("error_code", Text),
    Column("cost", Numeric, comment="null: no price"),
    *origin_columns(),
    Column("background", Boolean),
    Column("attempt", Integer, comment="how many replicas ran it"),
    Index("ix_usage_ledger_finished_at", "tenant", "finished_at"),
    Index("ix_usage_ledger_time", "finished_at"),
    postgresql_partition_by="range (response_id)",
)

audit_trail = Table(
    "audit_trail",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    time_column("at", required=True),
    Column("actor", Text, nullable=False, comment="key:ID, user:NAME, token:SUBJECT"),
    Column("action", Text, nullable=False, comment="such as key.create, tenant.update"),
    Column("tenant", Text),
    Column("target", Text, comment="the id of what was changed"),
    Column("request_id", Text),
    Column("details", JSONB, nullable=False, server_default="{}"),
    Index("ix_audit_trail_at", text("at desc")),
    comment="what operators and callers changed; rows are added and never changed",
)

seal_keys = Table(
    "seal_keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("key", LargeBinary, nullable=False, comment="of all replicas; clients' sealed texts open with it"),
    time_column("created_at", required=True),
)

reader_tenants = Table(
    "reader_tenants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("role", Text, primary_key=True, comment="a database user"),
    comment="whose rows the readers of single tenants see",
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("revision", Text, primary_key=True),
    Column(
        "oldest_code",
        Text,
        nullable=False,
        comment="the last revision that the oldest release knows that may serve on this one",
    ),
    Column("release", Text, nullable=False, comment="the release that applied it"),
    time_column("applied_at", required=True),
    comment="a row for each migration that has run, from the one on that made this table",
)

ALL_TABLES = metadata
"""The metadata of these tables and of those in `tables.py`."""
