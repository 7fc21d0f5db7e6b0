"""Every table by its columns, as `migrations/` makes them: their names, types, keys and which may be null.

Lines of an export have their fields in this order. Indexes, constraints, defaults and comments are in
`migrations/tables/` alone; `docs/data-dictionary.md` says what each column holds.

Payloads are `json`, not `jsonb`: jsonb reorders keys and refuses NUL escapes, and a replay must give the
bytes that were sent. Statuses are text with a CHECK, so that a new one is an ordinary migration. Nothing
here is a trigger, an enum, a sequence or an extension, which keeps Postgres-compatible clusters possible.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

from sqlalchemy import ARRAY, Column, Date, DateTime, MetaData, Table, and_, or_, text
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.types import (
    BigInteger,
    Boolean,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    Uuid,
)

ALL_TABLES: Final = MetaData()
TIME: Final = DateTime(timezone=True)
TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def table(name: str, *columns: Iterable[Column[Any]]) -> Table:
    return Table(name, ALL_TABLES, *chain.from_iterable(columns))


def tenant_table(name: str, *columns: Iterable[Column[Any]]) -> Table:
    """A table whose key begins with the tenant."""
    return table(name, key(Text, "tenant"), *columns)


def key(type_: Any, *names: str) -> list[Column[Any]]:
    """The next columns of the primary key."""
    return [Column(name, type_, primary_key=True, autoincrement=False) for name in names]


def required(type_: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, type_, nullable=False) for name in names]


def optional(type_: Any, *names: str) -> list[Column[Any]]:
    """Columns that may be null."""
    return [Column(name, type_) for name in names]


def _limits() -> Iterable[Column[Any]]:
    """Limits and budgets of a tenant or a key; null: none of its own."""
    return chain(
        optional(Integer, "requests_per_minute"),
        optional(BigInteger, "tokens_per_minute", "budget_tokens"),
        optional(Numeric, "budget_cost"),
        required(Text, "budget_period"),
    )


def _usage_sums() -> Iterable[Column[Any]]:
    return chain(required(BigInteger, "responses", *TOKENS, "unpriced"), required(Numeric, "cost"))


replicas = table(
    "replicas",
    key(Uuid, "id"),
    required(Text, "state", "host", "version", "role", "revision"),
    required(Integer, "pid"),
    required(ARRAY(Text), "models"),
    required(TIME, "started_at", "heartbeat_at"),
    required(ARRAY(Uuid), "reading"),
)
responses = tenant_table(
    "responses",
    key(Uuid, "id"),
    optional(Uuid, "previous_id", "conversation_id"),
    required(Text, "status"),
    required(Boolean, "background", "stream"),
    required(Text, "model"),
    required(Integer, "priority"),
    optional(Uuid, "replica_id"),
    required(Integer, "attempt", "deaths"),
    required(BigInteger, "seed"),
    optional(LargeBinary, "prompt_hash"),
    optional(TIME, "cancel_requested_at"),
    required(TIME, "created_at"),
    optional(TIME, "queued_at", "started_at", "first_token_at", "finished_at", "expires_at", "deleted_at"),
    optional(Integer, *TOKENS),
    optional(JSON, "turns"),
    optional(Text, "error_code", "error_message", "incomplete_reason", "key_id"),
    required(JSON, "request"),
    optional(JSON, "asked"),
    required(JSONB, "metadata"),
    optional(SmallInteger, "choice"),
    required(Integer, "size"),
    optional(Text, "request_id"),
    optional(Double, "queue_seconds", "prefill_seconds"),
    optional(Text, "trace_parent", "end_user"),
    required(Text, "kind"),
    optional(Uuid, "root_id"),
    required(Integer, "turn"),
    optional(Text, "weights", "cancel_reason", "user_agent"),
)
installation = table(
    "installation",
    key(Text, "name"),
    required(Text, "system_identifier"),
    required(BigInteger, "database_oid"),
    required(TIME, "recorded_at"),
    optional(TIME, "held_before"),
)
items = tenant_table(
    "items",
    key(Uuid, "response_id"),
    key(SmallInteger, "side"),
    key(Integer, "idx"),
    required(Text, "id", "type"),
    optional(Text, "role", "status", "name", "call_id"),
    required(JSON, "payload"),
    required(TIME, "created_at"),
    required(Integer, "size"),
    optional(Text, "for_model"),
    optional(Double, "seconds"),
)
conversations = tenant_table(
    "conversations",
    key(Uuid, "id"),
    required(JSONB, "metadata"),
    required(BigInteger, "next_position"),
    required(TIME, "created_at"),
    required(Integer, "size"),
    required(TIME, "touched_at"),
)
conversation_items = tenant_table(
    "conversation_items",
    key(Uuid, "conversation_id"),
    key(BigInteger, "position"),
    required(Text, "id", "type"),
    optional(Text, "role", "status", "name", "call_id"),
    required(JSON, "payload"),
    optional(Uuid, "response_id"),
    required(TIME, "created_at"),
    required(Integer, "size"),
    optional(Text, "for_model"),
)
images = tenant_table(
    "images",
    key(LargeBinary, "digest"),
    required(Text, "media_type"),
    required(Integer, "size"),
    required(LargeBinary, "data"),
    required(TIME, "created_at"),
)
item_images = tenant_table(
    "item_images",
    key(Uuid, "owner"),
    key(Text, "item_id"),
    key(LargeBinary, "digest"),
    optional(TIME, "removed_at"),
)
prompts = tenant_table(
    "prompts",
    key(Text, "id"),
    key(Integer, "version"),
    required(JSON, "content"),
    required(TIME, "created_at"),
)
response_events_hot = tenant_table(
    "response_events_hot",
    key(Uuid, "response_id"),
    key(Integer, "first_seq"),
    required(Integer, "n", "output_index", "content_index", "attempt"),
    required(SmallInteger, "kind"),
    required(Text, "body"),
    required(Double, "at"),
    optional(LargeBinary, "token_ids"),
)
response_streams = tenant_table(
    "response_streams",
    key(Uuid, "response_id"),
    required(Integer, "last_seq"),
    required(SmallInteger, "codec"),
    required(Text, "body"),
    required(TIME, "finished_at"),
    required(Integer, "size"),
)
idempotency_keys = tenant_table(
    "idempotency_keys",
    key(Text, "key"),
    required(LargeBinary, "digest"),
    required(Uuid, "response_id"),
    required(TIME, "created_at"),
    optional(Uuid, "replica_id"),
)
api_keys = tenant_table(
    "api_keys",
    key(Text, "id"),
    required(Text, "name"),
    required(LargeBinary, "digest"),
    required(TIME, "created_at"),
    required(Integer, "priority_floor"),
    required(ARRAY(Text), "scopes"),
    required(Boolean, "ends_streams"),
    optional(TIME, "last_used_at", "expires_at", "revoked_at", "first_used_at"),
    optional(ARRAY(Text), "models", "tools"),
    optional(Text, "replaced_by", "first_key"),
    _limits(),
)
tenants = tenant_table(
    "tenants",
    required(Text, "contact"),
    required(TIME, "created_at"),
    optional(Integer, "max_unfinished", "max_queued", "retention_days", "conversation_days"),
    optional(BigInteger, "max_stored_bytes"),
    _limits(),
)
prices = table(
    "prices",
    key(Text, "model"),
    key(TIME, "valid_from"),
    required(Numeric, "input", "cached_input", "output"),
)
usage_ledger = tenant_table(
    "usage_ledger",
    key(Uuid, "response_id"),
    optional(Text, "key_id"),
    required(Text, "model", "status"),
    required(Boolean, "stored"),
    required(Integer, *TOKENS),
    required(TIME, "started_at", "finished_at"),
    optional(Text, "request_id"),
    optional(Double, "queue_seconds", "prefill_seconds"),
    optional(TIME, "first_token_at"),
    optional(Text, "error_code"),
    optional(Numeric, "cost"),
    optional(Text, "end_user"),
    required(Text, "kind"),
    required(Boolean, "background"),
    required(Integer, "attempt"),
    optional(Text, "cancel_reason"),
    optional(JSONB, "metadata"),
)
usage_changes = tenant_table(
    "usage_changes",
    key(Uuid, "id"),
    required(Date, "day"),
    required(Text, "key_id", "model", "kind", "status", "error_code", "end_user"),
    _usage_sums(),
)
usage_days = tenant_table(
    "usage_days",
    key(Date, "day"),
    key(Text, "key_id", "model", "kind", "status", "error_code"),
    _usage_sums(),
)
user_days = tenant_table("user_days", key(Text, "end_user"), key(Date, "day"), _usage_sums())
audit_trail = table(
    "audit_trail",
    key(Uuid, "id"),
    required(TIME, "at"),
    required(Text, "actor", "action"),
    required(JSONB, "details"),
    optional(Text, "tenant", "target", "request_id"),
)
seal_keys = table("seal_keys", key(Text, "name"), required(LargeBinary, "key"), required(TIME, "created_at"))
key_requirement = table("key_requirement", key(Text, "name"), required(TIME, "since"))
reader_tenants = tenant_table("reader_tenants", key(Text, "role"))
schema_compatibility = table(
    "schema_compatibility",
    key(Text, "revision"),
    required(Text, "oldest_code", "release"),
    required(TIME, "applied_at"),
)
webhook_endpoints = tenant_table(
    "webhook_endpoints",
    key(Uuid, "id"),
    required(Text, "name", "url", "secret"),
    required(ARRAY(Text), "event_types"),
    required(Boolean, "all_responses"),
    required(TIME, "created_at", "updated_at"),
    optional(Text, "old_secret", "disabled_reason"),
    optional(TIME, "old_secret_until", "disabled_at"),
)
webhook_deliveries = tenant_table(
    "webhook_deliveries",
    key(Uuid, "id"),
    required(Uuid, "endpoint_id", "event_id", "response_id"),
    required(Text, "type"),
    required(TIME, "created_at", "give_up_at"),
    required(Integer, "attempts"),
    optional(TIME, "next_attempt_at", "last_attempt_at", "delivered_at", "given_up_at"),
    optional(Integer, "last_status"),
    optional(Text, "last_error"),
)
saved_views = table(
    "saved_views",
    key(Uuid, "id"),
    required(Text, "page", "name", "content", "created_by"),
    required(TIME, "created_at"),
)
rate_buckets = tenant_table("rate_buckets", key(Text, "key_id", "kind"), required(TIME, "full_at"))
spend = tenant_table(
    "spend",
    key(Text, "key_id"),
    key(Date, "day"),
    key(Uuid, "id"),
    required(BigInteger, "tokens"),
    required(Numeric, "cost"),
)
budget_reservations = tenant_table(
    "budget_reservations",
    key(Uuid, "response_id"),
    required(Text, "key_id"),
    required(Uuid, "replica_id"),
    required(Boolean, "stored"),
    required(BigInteger, "tokens"),
    required(Numeric, "cost"),
    required(TIME, "created_at"),
)
storage_changes = tenant_table(
    "storage_changes", key(Uuid, "id"), required(BigInteger, "bytes"), optional(Date, "day")
)
storage_days = tenant_table("storage_days", key(Date, "day"), required(BigInteger, "added", "removed"))
refused_requests = tenant_table(
    "refused_requests",
    key(TIME, "hour"),
    key(Text, "route"),
    key(Integer, "status"),
    key(Text, "error_code"),
    required(BigInteger, "requests"),
)
refused_keys = tenant_table(
    "refused_keys",
    key(TIME, "hour"),
    key(Text, "key_id"),
    key(Integer, "status"),
    key(Text, "error_code"),
    required(BigInteger, "requests"),
)
JUST_ENDED: Final = "1 hour"
"""Longer than anybody takes who follows a response (`quiet_seconds` of retention)."""
READABLE: Final = and_(
    responses.c.deleted_at.is_(None),
    or_(
        responses.c.expires_at.is_(None),
        responses.c.expires_at > text("statement_timestamp()"),
        responses.c.finished_at.is_(None),
        responses.c.finished_at > text(f"statement_timestamp() - interval '{JUST_ENDED}'"),
    ),
)
"""The condition by which a stored response exists for readers.

An expired response may wait for its partition to go, for up to a tenth of the retention; nobody can read it
then. A response that ended a short time ago stays readable: whoever follows it is to see its end.
"""
