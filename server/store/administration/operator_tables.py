"""Tables of operators: keys, tenants, what they use of limits, prices, usage, the audit trail, webhooks."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

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
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from server.caller import Limits
from server.store.schema.column_comments import describe
from server.store.tables import NOW, cancel_reason, engine_times, metadata, origin_columns, time_column

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
    Column("conversation_days", Integer, comment="0: without expiry"),
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
    Column("background", Boolean, nullable=False),
    Column("attempt", Integer, nullable=False, comment="how many replicas ran it"),
    cancel_reason(),
    Column("metadata", JSONB, comment="of a stored response: pairs whose values have at most 64 characters"),
    Index("ix_usage_ledger_finished_at", "tenant", "finished_at"),
    Index("ix_usage_ledger_time", "finished_at"),
    postgresql_partition_by="range (response_id)",
)


def _usage_groups() -> list[Column[object]]:
    """Columns by which the sums of a day are grouped, besides the tenant; empty strings stand for nulls."""
    return [
        Column("day", Date, nullable=False, comment="in UTC"),
        Column("key_id", Text, nullable=False, comment="empty: without a key"),
        Column("model", Text, nullable=False),
        Column("kind", Text, nullable=False, comment="response, chat or completion: the API of the request"),
        Column("status", Text, nullable=False),
        Column("error_code", Text, nullable=False, comment="empty: no error"),
    ]


def _usage_sums() -> list[Column[object]]:
    return [
        Column("responses", BigInteger, nullable=False),
        Column("input_tokens", BigInteger, nullable=False, comment="cached ones among them"),
        Column("cached_tokens", BigInteger, nullable=False),
        Column("output_tokens", BigInteger, nullable=False, comment="reasoning among them"),
        Column("reasoning_tokens", BigInteger, nullable=False),
        Column("cost", Numeric, nullable=False, comment="of the responses that have one"),
        Column("unpriced", BigInteger, nullable=False, comment="responses whose model had no price"),
    ]


_OFTEN_CHANGED = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"}

usage_changes = Table(
    "usage_changes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    *_usage_groups(),
    Column("end_user", Text, nullable=False, comment="empty: none named"),
    *_usage_sums(),
    postgresql_with=_OFTEN_CHANGED,
    comment="what usage_days and user_days lack of the ledger; the retention thread folds it into them",
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("tenant", Text),
    *_usage_groups(),
    *_usage_sums(),
    PrimaryKeyConstraint(
        "tenant", "day", "key_id", "model", "kind", "status", "error_code", name="pk_usage_days"
    ),
    Index("ix_usage_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
    comment="sums of the ledger by day, of all that was ever in it",
)

user_days = Table(
    "user_days",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("end_user", Text, primary_key=True, comment="user, else safety_identifier, of the requests"),
    Column("day", Date, primary_key=True, comment="in UTC"),
    *_usage_sums(),
    Index("ix_user_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
    comment="sums of the ledger by end user and day, as far back as the ledger goes",
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

key_requirement = Table(
    "key_requirement",
    metadata,
    Column("name", Text, primary_key=True, comment="always this"),
    time_column("since", required=True, comment="when the first key was made, or an issuer was first set"),
    comment="one row once requests need a key; nothing removes it",
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
    Column("revision", Text, primary_key=True, comment="of the migration"),
    Column(
        "oldest_code",
        Text,
        nullable=False,
        comment="the last revision that the oldest release knows that may serve on this one",
    ),
    Column("release", Text, nullable=False, comment="the release that applied it"),
    time_column("applied_at", required=True, comment="when it was applied"),
    comment="a row for each migration that has run",
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("tenant", Text, primary_key=True, comment="whose it is"),
    Column("id", Uuid, primary_key=True, comment="a UUIDv7; the API shows it as we_ and its digits"),
    Column("name", Text, nullable=False, comment="a note of its owner"),
    Column("url", Text, nullable=False, comment="where events are sent"),
    Column("event_types", ARRAY(Text), nullable=False, comment="the events that are sent to it"),
    Column(
        "all_responses",
        Boolean,
        nullable=False,
        server_default="false",
        comment="events of every stored response; otherwise of background responses",
    ),
    Column("secret", Text, nullable=False, comment="sealed with the server's seal key"),
    Column("old_secret", Text, comment="sealed; signs, too, until old_secret_until"),
    time_column("old_secret_until", comment="until when the secret before the last rotation signs, too"),
    time_column("created_at", required=True, comment="when it was made"),
    time_column("updated_at", required=True, comment="when it was last changed"),
    time_column("disabled_at", comment="since when nothing is sent to it; null: it is enabled"),
    Column("disabled_reason", Text, comment="why"),
    UniqueConstraint("id"),
    comment="where the server reports the ends of a tenant's responses",
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("tenant", Text, primary_key=True, comment="whose it is"),
    Column(
        "id",
        Uuid,
        primary_key=True,
        server_default=text("gen_random_uuid()"),
        comment="random; the receiver sees it as wh_ and its digits",
    ),
    Column("endpoint_id", Uuid, nullable=False, comment="where it is sent"),
    Column("event_id", Uuid, nullable=False, comment="the same for every endpoint of the tenant"),
    Column("response_id", Uuid, nullable=False, comment="the response that ended"),
    Column("type", Text, nullable=False, comment="such as response.completed"),
    time_column("created_at", required=True, comment="the end of the response"),
    Column("attempts", Integer, nullable=False, server_default="0", comment="how many have begun"),
    Column(
        "next_attempt_at",
        DateTime(timezone=True),
        comment="while claimed: when the claim ends; null: no further attempt",
    ),
    Column("give_up_at", DateTime(timezone=True), nullable=False, comment="when no further attempt is made"),
    time_column("last_attempt_at", comment="when the last attempt ended"),
    Column("last_status", Integer, comment="HTTP status of the last answer; null without one"),
    Column("last_error", Text, comment="why the last attempt failed"),
    time_column("delivered_at", comment="when it was received"),
    time_column("given_up_at", comment="when it was given up"),
    Index(
        "ix_webhook_deliveries_due",
        "endpoint_id",
        "next_attempt_at",
        postgresql_where=text("next_attempt_at is not null"),
    ),
    Index("ix_webhook_deliveries_response_id", "tenant", "response_id"),
    Index("ix_webhook_deliveries_created_at", "tenant", text("created_at desc"), "id"),
    Index(
        "ix_webhook_deliveries_ended",
        text("coalesce(delivered_at, given_up_at)"),
        postgresql_where=text("next_attempt_at is null"),
    ),
    comment="the outbox of webhooks: written in the transaction of a response's end",
    postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"},
)

saved_views = Table(
    "saved_views",
    metadata,
    Column(
        "id",
        Uuid,
        primary_key=True,
        server_default=text("gen_random_uuid()"),
        comment="names it in the console's addresses",
    ),
    Column("page", Text, nullable=False, comment="history or sql"),
    Column("name", Text, nullable=False, comment="what operators call it"),
    Column(
        "content",
        Text,
        nullable=False,
        comment="the query of the history's address, or the text of an SQL query",
    ),
    Column("created_by", Text, nullable=False, comment="the actor, as the audit trail names it"),
    time_column("created_at", required=True, comment="when it was saved"),
    UniqueConstraint("page", "name"),
    CheckConstraint("page in ('history', 'sql')", name="page"),
    comment="filters of the history and SQL queries that operators have saved in the console",
)

rate_buckets = Table(
    "rate_buckets",
    metadata,
    Column("tenant", Text, primary_key=True, comment="whose it is"),
    Column("key_id", Text, primary_key=True, comment="empty: of the tenant"),
    Column("kind", Text, primary_key=True, comment="requests or tokens"),
    time_column("full_at", required=True, comment="when all of the limit is there again"),
    comment="rate limits that are in use: a row for each bucket that is not full, or was not of late",
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

budget_reservations = Table(
    "budget_reservations",
    metadata,
    Column("tenant", Text, primary_key=True, comment="whose it is"),
    Column("response_id", Uuid, primary_key=True, comment="the response that may use it"),
    Column("key_id", Text, nullable=False, comment="empty while no key exists"),
    Column("replica_id", Uuid, nullable=False, comment="the replica that accepted the response"),
    Column("stored", Boolean, nullable=False, comment="the response gets a row in responses"),
    Column("tokens", BigInteger, nullable=False, comment="of its prompt and its output at most"),
    Column("cost", Numeric, nullable=False, comment="of these tokens at the prices then"),
    time_column("created_at", required=True, comment="when it was made"),
    comment="what unfinished responses may use of budgets; the end of a response deletes its row",
    postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"},
)

storage_changes = Table(
    "storage_changes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("bytes", BigInteger, nullable=False, comment="less than 0 where something was removed"),
    Column("day", Date, comment="in UTC; null: storage_days has it, or nobody knows"),
    postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"},
)

storage_days = Table(
    "storage_days",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("day", Date, primary_key=True, comment="in UTC"),
    Column("added", BigInteger, nullable=False, comment="bytes that were stored"),
    Column("removed", BigInteger, nullable=False, comment="bytes that were removed"),
    Index("ix_storage_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
    comment="stored and removed bytes by day, as far as storage_changes has been folded",
)

refused_requests = Table(
    "refused_requests",
    metadata,
    Column("tenant", Text, primary_key=True, comment="empty: not known, as with a wrong key"),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("route", Text, primary_key=True, comment="the template of the address; empty: no such address"),
    Column("status", Integer, primary_key=True, autoincrement=False, comment="of HTTP, 400 and above"),
    Column("error_code", Text, primary_key=True, comment="of the error object; empty: it has none"),
    Column("requests", BigInteger, nullable=False),
    Index("ix_refused_requests_hour", "hour"),
    postgresql_with={"fillfactor": "50"},
    comment="requests that were answered with an error object, counted by hour",
)

refused_keys = Table(
    "refused_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("key_id", Text, primary_key=True, comment="the API key of the requests"),
    Column("status", Integer, primary_key=True, autoincrement=False, comment="of HTTP, 400 and above"),
    Column("error_code", Text, primary_key=True, comment="of the error object; empty: it has none"),
    Column("requests", BigInteger, nullable=False),
    Index("ix_refused_keys_hour", "hour"),
    postgresql_with={"fillfactor": "50"},
    comment="those of refused_requests that came with an API key, counted by key",
)

describe(metadata)
ALL_TABLES = metadata
"""The metadata of these tables, and of those in `tables.py`."""


LIMIT_NAMES = tuple(field.name for field in fields(Limits))


def limit_values(limits: Limits) -> dict[str, Any]:
    """The limits by column."""
    return {name: getattr(limits, name) for name in LIMIT_NAMES}


def limits_of_row(columns: Mapping[Any, Any], prefix: str = "") -> Limits:
    """The limits in a row whose columns of them have this prefix."""
    return Limits(**{name: columns[prefix + name] for name in LIMIT_NAMES})
