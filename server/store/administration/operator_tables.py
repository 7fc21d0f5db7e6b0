"""Tables of operators: keys, tenants, what they use of limits, prices, usage, the audit trail, webhooks."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import ARRAY, Column, Date
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import CheckConstraint, PrimaryKeyConstraint, UniqueConstraint
from sqlalchemy.types import BigInteger, Boolean, Integer, LargeBinary, Numeric, Text, Uuid

from server.caller import Limits
from server.store.tables import (
    NOW,
    RANDOM,
    TIME,
    cancel_reason,
    column,
    engine_times,
    index,
    metadata,
    optional,
    origin_columns,
    table,
    tenant_table,
)

_PERIODS = "budget_period in ('day', 'month', 'total')"


def _limits() -> list[Column[Any]]:
    """Limits and budgets of a tenant or a key; null: none of its own."""
    return [
        optional("requests_per_minute", Integer),
        optional("tokens_per_minute", BigInteger),
        optional("budget_tokens", BigInteger, "input and output tokens in a period"),
        optional("budget_cost", Numeric, "in the currency of the prices"),
        column("budget_period", Text, default="month"),
    ]


api_keys = tenant_table(
    "api_keys",
    "API keys: public ids and digests, with scopes, limits and expiry",
    column("id", Text, "its public part", key=True),
    column("name", Text, "what its maker called it"),
    column("digest", LargeBinary, "SHA-256 of the whole key"),
    column("created_at", TIME, default=NOW),
    optional("last_used_at", TIME, "when it was used last, to the minute"),
    optional("expires_at", TIME, "from when on it is refused; null: never"),
    optional("revoked_at", TIME, "when it was revoked"),
    column(
        "priority_floor",
        Integer,
        "the most urgent priority of its requests; a lower number is more urgent",
        default="0",
    ),
    optional("first_used_at", TIME, "when it was used first"),
    column("scopes", ARRAY(Text), "read, write, admin, metrics", default="{read,write}"),
    optional("models", ARRAY(Text), "models it may use; null: all"),
    optional("tools", ARRAY(Text), "tools run by the server that it may use; null: all"),
    optional("replaced_by", Text, "the key that rotation made in its place"),
    optional("first_key", Text, "the first key of its rotations, as which it is counted; null: itself"),
    column(
        "ends_streams", Boolean, "what runs with it is ended when it expires or is revoked", default="false"
    ),
    *_limits(),
    UniqueConstraint("id"),
    CheckConstraint(_PERIODS, name="budget_period"),
)
tenants = tenant_table(
    "tenants",
    "what an operator has set for a tenant; one without a row has the server's settings",
    column("contact", Text, "whom to ask", default=""),
    column("created_at", TIME, default=NOW),
    optional("max_unfinished", Integer, "unfinished responses on one replica"),
    optional("max_queued", Integer, "queued background responses"),
    optional("max_stored_bytes", BigInteger, "beyond it, what would be stored is refused"),
    optional("retention_days", Integer, "0: without expiry"),
    optional("conversation_days", Integer, "0: without expiry"),
    *_limits(),
    CheckConstraint(_PERIODS, name="budget_period"),
)
prices = table(
    "prices",
    "prices of models, all in one currency",
    column("model", Text, "the model's name", key=True),
    column("valid_from", TIME, "for responses that end from then on", key=True, default=NOW),
    column("input", Numeric, "of 1,000,000 tokens"),
    column("cached_input", Numeric, "of 1,000,000 tokens that were computed before"),
    column("output", Numeric, "of 1,000,000 tokens"),
)
usage_ledger = tenant_table(
    "usage_ledger",
    "metering: one row for each ended response, stored or not, without its content",
    column("response_id", Uuid, "a UUIDv7; the API shows it as resp_ and its digits", key=True),
    optional("key_id", Text),
    column("model", Text),
    column("status", Text, "completed, incomplete, failed or cancelled"),
    column("stored", Boolean, "it had a row in responses"),
    column("input_tokens", Integer),
    column("cached_tokens", Integer),
    column("output_tokens", Integer),
    column("reasoning_tokens", Integer),
    column("started_at", TIME, "when it was accepted", default=NOW),
    column("finished_at", TIME, default=NOW),
    *engine_times(),
    optional("first_token_at", TIME),
    optional("error_code", Text),
    optional("cost", Numeric, "null: no price"),
    *origin_columns(),
    column("background", Boolean),
    column("attempt", Integer, "how many replicas ran it"),
    cancel_reason(),
    optional("metadata", JSONB, "of a stored response: pairs whose values have at most 64 characters"),
    index("ix_usage_ledger_finished_at", "tenant", "finished_at"),
    index("ix_usage_ledger_time", "finished_at"),
    postgresql_partition_by="range (response_id)",
)


def _usage_groups() -> list[Column[Any]]:
    """Columns by which the sums of a day are grouped, besides the tenant; empty strings stand for nulls."""
    return [
        column("day", Date, "in UTC"),
        column("key_id", Text, "empty: without a key"),
        column("model", Text),
        column("kind", Text, "response, chat or completion: the API of the request"),
        column("status", Text, "completed, incomplete, failed or cancelled"),
        column("error_code", Text, "empty: no error"),
    ]


def _usage_sums() -> list[Column[Any]]:
    return [
        column("responses", BigInteger),
        column("input_tokens", BigInteger, "cached ones among them"),
        column("cached_tokens", BigInteger),
        column("output_tokens", BigInteger, "reasoning among them"),
        column("reasoning_tokens", BigInteger),
        column("cost", Numeric, "of the responses that have one"),
        column("unpriced", BigInteger, "responses whose model had no price"),
    ]


_OFTEN_CHANGED = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"}
usage_changes = tenant_table(
    "usage_changes",
    "what usage_days and user_days lack of the ledger; the retention thread folds it into them",
    column("id", Uuid, "random", key=True, default=RANDOM),
    *_usage_groups(),
    column("end_user", Text, "empty: none named"),
    *_usage_sums(),
    postgresql_with=_OFTEN_CHANGED,
)
usage_days = table(
    "usage_days",
    "sums of the ledger by day, of all that was ever in it",
    column("tenant", Text),
    *_usage_groups(),
    *_usage_sums(),
    PrimaryKeyConstraint(
        "tenant", "day", "key_id", "model", "kind", "status", "error_code", name="pk_usage_days"
    ),
    index("ix_usage_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
)
user_days = tenant_table(
    "user_days",
    "sums of the ledger by end user and day, as far back as the ledger goes",
    column("end_user", Text, "user, else safety_identifier, of the requests", key=True),
    column("day", Date, "in UTC", key=True),
    *_usage_sums(),
    index("ix_user_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
)
audit_trail = table(
    "audit_trail",
    "what operators and callers changed; rows are added and never changed",
    column("id", Uuid, "random", key=True, default=RANDOM),
    column("at", TIME, "when it was changed", default=NOW),
    column("actor", Text, "key:ID, user:NAME, token:SUBJECT"),
    column("action", Text, "such as key.create, tenant.update"),
    optional("tenant", Text, "whose it was; null: nobody's"),
    optional("target", Text, "the id of what was changed"),
    optional("request_id", Text, "x-request-id of the request that changed it"),
    column("details", JSONB, "what was changed, without secrets", default="{}"),
    index("ix_audit_trail_at", "at desc"),
)
seal_keys = table(
    "seal_keys",
    "the key of sealed content, unless a setting gives it",
    column("name", Text, "which key it is", key=True),
    column("key", LargeBinary, "of all replicas; clients' sealed texts open with it"),
    column("created_at", TIME, default=NOW),
)
key_requirement = table(
    "key_requirement",
    "one row once requests need a key; nothing removes it",
    column("name", Text, "always this", key=True),
    column("since", TIME, "when the first key was made, or an issuer was first set", default=NOW),
)
reader_tenants = tenant_table(
    "reader_tenants",
    "whose rows the readers of single tenants see",
    column("role", Text, "a database user", key=True),
)
schema_compatibility = table(
    "schema_compatibility",
    "a row for each migration that has run",
    column("revision", Text, "of the migration", key=True),
    column("oldest_code", Text, "the last revision that the oldest release knows that may serve on this one"),
    column("release", Text, "the release that applied it"),
    column("applied_at", TIME, "when it was applied", default=NOW),
)
webhook_endpoints = tenant_table(
    "webhook_endpoints",
    "where the server reports the ends of a tenant's responses",
    column("id", Uuid, "a UUIDv7; the API shows it as we_ and its digits", key=True),
    column("name", Text, "a note of its owner"),
    column("url", Text, "where events are sent"),
    column("event_types", ARRAY(Text), "the events that are sent to it"),
    column(
        "all_responses",
        Boolean,
        "events of every stored response; otherwise of background responses",
        default="false",
    ),
    column("secret", Text, "sealed with the server's seal key"),
    optional("old_secret", Text, "sealed; signs, too, until old_secret_until"),
    optional("old_secret_until", TIME, "until when the secret before the last rotation signs, too"),
    column("created_at", TIME, default=NOW),
    column("updated_at", TIME, "when it was last changed", default=NOW),
    optional("disabled_at", TIME, "since when nothing is sent to it; null: it is enabled"),
    optional("disabled_reason", Text, "why"),
    UniqueConstraint("id"),
)
webhook_deliveries = tenant_table(
    "webhook_deliveries",
    "the outbox of webhooks: written in the transaction of a response's end",
    column("id", Uuid, "random; the receiver sees it as wh_ and its digits", key=True, default=RANDOM),
    column("endpoint_id", Uuid, "where it is sent"),
    column("event_id", Uuid, "the same for every endpoint of the tenant"),
    column("response_id", Uuid, "the response that ended"),
    column("type", Text, "such as response.completed"),
    column("created_at", TIME, "the end of the response", default=NOW),
    column("attempts", Integer, "how many have begun", default="0"),
    optional("next_attempt_at", TIME, "while claimed: when the claim ends; null: no further attempt"),
    column("give_up_at", TIME, "when no further attempt is made"),
    optional("last_attempt_at", TIME, "when the last attempt ended"),
    optional("last_status", Integer, "HTTP status of the last answer; null without one"),
    optional("last_error", Text, "why the last attempt failed"),
    optional("delivered_at", TIME, "when it was received"),
    optional("given_up_at", TIME, "when it was given up"),
    index("ix_webhook_deliveries_due", "endpoint_id", "next_attempt_at", where="next_attempt_at is not null"),
    index("ix_webhook_deliveries_response_id", "tenant", "response_id"),
    index("ix_webhook_deliveries_created_at", "tenant", "created_at desc", "id"),
    index(
        "ix_webhook_deliveries_ended", "coalesce(delivered_at, given_up_at)", where="next_attempt_at is null"
    ),
    postgresql_with=_OFTEN_CHANGED,
)
saved_views = table(
    "saved_views",
    "filters of the history and SQL queries that operators have saved in the console",
    column("id", Uuid, "names it in the console's addresses", key=True, default=RANDOM),
    column("page", Text, "history or sql"),
    column("name", Text, "what operators call it"),
    column("content", Text, "the query of the history's address, or the text of an SQL query"),
    column("created_by", Text, "the actor, as the audit trail names it"),
    column("created_at", TIME, "when it was saved", default=NOW),
    UniqueConstraint("page", "name"),
    CheckConstraint("page in ('history', 'sql')", name="page"),
)
rate_buckets = tenant_table(
    "rate_buckets",
    "rate limits that are in use: a row for each bucket that is not full, or was not of late",
    column("key_id", Text, "empty: of the tenant", key=True),
    column("kind", Text, "requests or tokens", key=True),
    column("full_at", TIME, "when all of the limit is there again", default=NOW),
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
)
spend = tenant_table(
    "spend",
    "a row for each response; those of a key and day are folded into one",
    column("key_id", Text, "empty while no key exists", key=True),
    column("day", Date, "in UTC", key=True),
    column("id", Uuid, "random", key=True, default=RANDOM),
    column("tokens", BigInteger, "of input and output"),
    column("cost", Numeric, "at the prices then"),
    index("ix_spend_day", "day"),
)
budget_reservations = tenant_table(
    "budget_reservations",
    "what unfinished responses may use of budgets; the end of a response deletes its row",
    column("response_id", Uuid, "the response that may use it", key=True),
    column("key_id", Text, "empty while no key exists"),
    column("replica_id", Uuid, "the replica that accepted the response"),
    column("stored", Boolean, "the response gets a row in responses"),
    column("tokens", BigInteger, "of its prompt and its output at most"),
    column("cost", Numeric, "of these tokens at the prices then"),
    column("created_at", TIME, default=NOW),
    postgresql_with=_OFTEN_CHANGED,
)
storage_changes = tenant_table(
    "storage_changes",
    "changes of each tenant's stored bytes, which the retention thread folds",
    column("id", Uuid, "random", key=True, default=RANDOM),
    column("bytes", BigInteger, "less than 0 where something was removed"),
    optional("day", Date, "in UTC; null: storage_days has it, or nobody knows"),
    postgresql_with=_OFTEN_CHANGED,
)
storage_days = tenant_table(
    "storage_days",
    "stored and removed bytes by day, as far as storage_changes has been folded",
    column("day", Date, "in UTC", key=True),
    column("added", BigInteger, "bytes that were stored"),
    column("removed", BigInteger, "bytes that were removed"),
    index("ix_storage_days_day", "day"),
    postgresql_with={"fillfactor": "80"},
)
refused_requests = table(
    "refused_requests",
    "requests that were answered with an error object, counted by hour",
    column("tenant", Text, "empty: not known, as with a wrong key", key=True),
    column("hour", TIME, "its begin", key=True),
    column("route", Text, "the template of the address; empty: no such address", key=True),
    column("status", Integer, "of HTTP, 400 and above", key=True),
    column("error_code", Text, "of the error object; empty: it has none", key=True),
    column("requests", BigInteger, "how many"),
    index("ix_refused_requests_hour", "hour"),
    postgresql_with={"fillfactor": "50"},
)
refused_keys = tenant_table(
    "refused_keys",
    "those of refused_requests that came with an API key, counted by key",
    column("hour", TIME, "its begin", key=True),
    column("key_id", Text, "the API key of the requests", key=True),
    column("status", Integer, "of HTTP, 400 and above", key=True),
    column("error_code", Text, "of the error object; empty: it has none", key=True),
    column("requests", BigInteger, "how many"),
    index("ix_refused_keys_hour", "hour"),
    postgresql_with={"fillfactor": "50"},
)
ALL_TABLES = metadata
"""The metadata of these tables, and of those in `tables.py`."""
LIMIT_NAMES = tuple(field.name for field in fields(Limits))


def limit_values(limits: Limits) -> dict[str, Any]:
    """The limits by column."""
    return {name: getattr(limits, name) for name in LIMIT_NAMES}


def limits_of_row(columns: Mapping[Any, Any], prefix: str = "") -> Limits:
    """The limits in a row whose columns of them have this prefix."""
    return Limits(**{name: columns[prefix + name] for name in LIMIT_NAMES})
