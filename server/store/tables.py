"""Tables of replicas, responses, conversations and event logs, as `migrations/` makes them.

Payloads are `json`, not `jsonb`: jsonb reorders keys and refuses NUL escapes, and a replay must give the
bytes that were sent. Statuses are text with a CHECK, so that a new one is an ordinary migration. Nothing
here is a trigger, an enum, a sequence or an extension, which keeps Postgres-compatible clusters possible.
"""

from typing import Any, Final

from sqlalchemy import ARRAY, Column, DateTime, Index, MetaData, Table, and_, or_, text
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.schema import CheckConstraint, ForeignKeyConstraint, SchemaItem, UniqueConstraint
from sqlalchemy.types import BigInteger, Boolean, Double, Integer, LargeBinary, SmallInteger, Text, Uuid

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
}
metadata = MetaData(naming_convention=NAMING)
COMMENTS: Final = {
    "tenant": "whose it is",
    "created_at": "when it was made",
    "type": "message, reasoning, function_call and so on",
    "role": "of a message",
    "name": "of a called tool",
    "call_id": "ties a call to its output",
    "payload": "the item's JSON, byte for byte",
    "model": "the model that was asked",
    "background": "it runs whether or not a client waits",
    "first_token_at": "when the engine gave its first token",
    "finished_at": "when it ended",
    "error_code": "the code of its error, if it failed",
    "key_id": "the API key of its create",
    "input_tokens": "tokens of its prompts, cached ones among them",
    "cached_tokens": "tokens of its prompts that the engine had computed before",
    "output_tokens": "tokens that were generated, reasoning among them",
    "reasoning_tokens": "generated tokens of reasoning",
    "requests_per_minute": "null: no limit of its own",
    "tokens_per_minute": "of input and output; null: no limit of its own",
    "budget_period": "day, month or total",
    "responses": "how many",
    "output_index": "the place of its item in the output",
    "content_index": "the place of its part in the item",
}
"""Comments on columns that mean the same in every table, for people who read the database."""
NOW = text("clock_timestamp()")
RANDOM = text("gen_random_uuid()")
TIME = DateTime(timezone=True)


def table(name: str, comment: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, comment=comment, **options)


def tenant_table(name: str, comment: str, *parts: SchemaItem, **options: Any) -> Table:
    """A table whose key begins with the tenant."""
    return table(name, comment, column("tenant", Text, key=True), *parts, **options)


def column(
    name: str, type_: Any, comment: str = "", *, key: bool = False, default: Any = None
) -> Column[Any]:
    """A column that is not null, of the primary key if `key`; without a comment it has that of COMMENTS."""
    options: dict[str, Any] = {"primary_key": key, "nullable": False, "server_default": default}
    return Column(name, type_, autoincrement=False, comment=comment or COMMENTS.get(name), **options)


def optional(name: str, type_: Any, comment: str = "") -> Column[Any]:
    """A column that may be null."""
    return Column(name, type_, comment=comment or COMMENTS.get(name))


def index(name: str, *columns: str, where: str = "") -> Index:
    """An index of columns and expressions, of the rows that fulfil the condition."""
    parts = [part if part.isidentifier() else text(part) for part in columns]
    return Index(name, *parts, postgresql_where=text(where) if where else None)


def _sizes() -> list[Column[Any]]:
    """Columns of items that are asked before the items are read."""
    return [
        column("size", Integer, "bytes of the payload"),
        optional("for_model", Text, "the payload without what no model reads; null where that is all of it"),
    ]


def origin_columns() -> list[Column[Any]]:
    return [
        optional("end_user", Text, "user, else safety_identifier, of its request"),
        column("kind", Text, "response, chat or completion: the API that made it"),
    ]


def cancel_reason() -> Column[Any]:
    return optional(
        "cancel_reason",
        Text,
        "client_request, client_disconnect, deleted, key_ended, erased, operator or window_ended",
    )


def engine_times() -> list[Column[Any]]:
    return [
        optional("request_id", Text, "x-request-id of its create"),
        optional("queue_seconds", Double, "from the engine's acceptance to its first step"),
        optional("prefill_seconds", Double, "from its first step to its first token"),
    ]


replicas = table(
    "replicas",
    "server processes: one row for each start",
    column("id", Uuid, "random for every process start", key=True),
    column("state", Text, "alive, stopped or dead"),
    column("host", Text, "the machine's name"),
    column("pid", Integer, "the process's id there"),
    column("version", Text, "its release"),
    column("models", ARRAY(Text), "the names that it serves"),
    column("started_at", TIME, "when it was registered, with its model loaded", default=NOW),
    column("heartbeat_at", TIME, "when it said last that it lives", default=NOW),
    column(
        "reading",
        ARRAY(Uuid),
        "responses that run elsewhere and would end without their readers here",
        default="{}",
    ),
    column(
        "role", Text, "all; api: generates no background responses; worker: serves no requests", default="all"
    ),
    column("revision", Text, "the schema's revision that its release needs"),
    CheckConstraint("state in ('alive', 'stopped', 'dead')", name="state"),
    CheckConstraint("role in ('all', 'api', 'worker')", name="role"),
)
responses = tenant_table(
    "responses",
    "one row for each stored response",
    column("id", Uuid, "a UUIDv7; the API shows it as resp_ and its digits", key=True),
    optional("previous_id", Uuid, "the response that it goes on from"),
    optional("conversation_id", Uuid, "the conversation that it belongs to"),
    column("status", Text, "queued, in_progress, completed, incomplete, failed or cancelled"),
    column("background", Boolean),
    column("stream", Boolean, "its create asked for a stream"),
    column("model", Text),
    column("priority", Integer, "a lower number is more urgent", default="0"),
    optional("replica_id", Uuid, "the replica that runs it, or ran it last; null: in the queue"),
    column("attempt", Integer, "how many replicas have run it", default="1"),
    column("deaths", Integer, "replicas that died while they ran it", default="0"),
    column("seed", BigInteger, "of its sampling, given or drawn"),
    optional(
        "prompt_hash", LargeBinary, "of its prompt's tokens, which a replica that goes on must find again"
    ),
    optional("cancel_requested_at", TIME, "when somebody asked to cancel it"),
    column("created_at", TIME, default=NOW),
    optional("queued_at", TIME, "when a background response was queued"),
    optional("started_at", TIME, "when a replica began it first"),
    optional("first_token_at", TIME),
    optional("finished_at", TIME),
    optional("expires_at", TIME, "when it may be purged; null: never"),
    optional("deleted_at", TIME, "when it was deleted; its row stays while later responses need its items"),
    optional("input_tokens", Integer),
    optional("cached_tokens", Integer),
    optional("output_tokens", Integer),
    optional("reasoning_tokens", Integer),
    optional("turns", JSON, "tokens of each turn of the model; its input has the tools' output"),
    optional("error_code", Text),
    optional("error_message", Text, "the message of its error"),
    optional("incomplete_reason", Text, "max_output_tokens, if that is why it is incomplete"),
    optional("key_id", Text),
    column("request", JSON, "what the response repeats of its request"),
    optional("asked", JSON, "the request without its input: what a run is begun again from"),
    column("metadata", JSONB, "for search; request has the exact text"),
    optional(
        "choice",
        SmallInteger,
        "its place in the chat completion whose choice it is; null for other responses",
    ),
    column("size", Integer, "bytes of the row's contents, and some for the row"),
    *engine_times(),
    optional("trace_parent", Text, "traceparent of its create"),
    *origin_columns(),
    optional("root_id", Uuid, "the first response of its chain of previous responses"),
    column("turn", Integer, "its place in that chain, the first at 1"),
    optional("weights", Text, "digest of the weights that generate it"),
    cancel_reason(),
    optional("user_agent", Text, "of its create's client: printable ASCII, at most 200 characters"),
    CheckConstraint(
        "status in ('queued', 'in_progress', 'completed', 'failed', 'incomplete', 'cancelled')", name="status"
    ),
    index(
        "ix_responses_waiting",
        "tenant",
        "priority",
        "queued_at",
        where="replica_id is null and status in ('queued', 'in_progress')",
    ),
    index("ix_responses_replica_id", "replica_id", where="status = 'in_progress'"),
    index("ix_responses_previous_id", "tenant", "previous_id", where="previous_id is not null"),
    index(
        "ix_responses_conversation_id",
        "tenant",
        "conversation_id",
        where="conversation_id is not null and status in ('queued', 'in_progress')",
    ),
    index("ix_responses_expires_at", "expires_at", where="expires_at is not null"),
    index("ix_responses_created_at", "tenant", "created_at desc"),
    index("ix_responses_id", "id"),
    index("ix_responses_time", "created_at"),
    index("ix_responses_end_user", "tenant", "end_user", "created_at desc", where="end_user is not null"),
    index("ix_responses_choice", "tenant", "created_at desc", where="choice = 0"),
    index("ix_responses_model", "tenant", "model", "created_at desc"),
    index("ix_responses_status", "tenant", "status", "created_at desc", where="status <> 'completed'"),
    Index(
        "ix_responses_metadata",
        "metadata",
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    ),
    postgresql_partition_by="range (id)",
)
installation = table(
    "installation",
    "one row: where the data was when a server last started on it",
    column("name", Text, "always this", key=True),
    column(
        "system_identifier",
        Text,
        "of the cluster, as pg_control_system() has it; empty where that may not be asked",
    ),
    column("database_oid", BigInteger, "of the database in the cluster"),
    column("recorded_at", TIME, "when the place was seen for the first time", default=NOW),
    optional("held_before", TIME, "background responses from before are held: the data is a restored copy"),
)
items = tenant_table(
    "items",
    "input and output items of stored responses",
    column("response_id", Uuid, "the response that it belongs to", key=True),
    column("side", SmallInteger, "0 input, 1 output", key=True),
    column("idx", Integer, "its place in its side, the first at 0", key=True),
    column("id", Text, "as the API shows it"),
    column("type", Text),
    optional("role", Text),
    optional("status", Text, "completed, incomplete, in_progress or failed"),
    optional("name", Text),
    optional("call_id", Text),
    column("payload", JSON),
    column("created_at", TIME, default=NOW),
    *_sizes(),
    optional("seconds", Double, "how long the call took that the server made"),
    index("ix_items_id", "tenant", "id"),
    index("ix_items_calls", "created_at", where=r"type like '%\_call'"),
    postgresql_partition_by="range (response_id)",
)
conversations = tenant_table(
    "conversations",
    "conversations, which hold their items themselves",
    column("id", Uuid, "a UUIDv7; the API shows it as conv_ and its digits", key=True),
    column("metadata", JSONB, "what the client has attached"),
    column(
        "next_position",
        BigInteger,
        "grows with every item that comes or goes, so that it tells whether any has",
        default="0",
    ),
    column("created_at", TIME, default=NOW),
    column("size", Integer, "bytes of the metadata, and some for the row"),
    column("touched_at", TIME, "when it was made or last changed", default=NOW),
)
conversation_items = tenant_table(
    "conversation_items",
    "the items of conversations",
    column("conversation_id", Uuid, "the conversation that holds it", key=True),
    column("position", BigInteger, "grows with every item", key=True),
    column("id", Text, "as the API shows it"),
    column("type", Text),
    optional("role", Text),
    optional("status", Text, "completed, incomplete, in_progress or failed"),
    optional("name", Text),
    optional("call_id", Text),
    column("payload", JSON),
    optional("response_id", Uuid, "what brought it, which may be gone; null for items put by hand"),
    column("created_at", TIME, default=NOW),
    *_sizes(),
    UniqueConstraint("tenant", "id"),
)
images = tenant_table(
    "images",
    "pictures of items, each once for a tenant",
    column("digest", LargeBinary, "SHA-256 of data", key=True),
    column("media_type", Text, "as its first data URL names it"),
    column("size", Integer, "bytes of data"),
    column("data", LargeBinary, "compressed already, so stored as it is"),
    column("created_at", TIME, default=NOW),
)
item_images = tenant_table(
    "item_images",
    "which item of which response or conversation names which picture",
    column("owner", Uuid, "the response or conversation that has the item", key=True),
    column("item_id", Text, "the item's id, as the API shows it", key=True),
    column("digest", LargeBinary, "the picture", key=True),
    optional("removed_at", TIME, "when the item was removed; its picture goes after that"),
    ForeignKeyConstraint(["tenant", "digest"], ["images.tenant", "images.digest"]),
    index("ix_item_images_digest", "tenant", "digest"),
    index("ix_item_images_removed_at", "removed_at", where="removed_at is not null"),
)
"""`removed_at` is the time at which the item was removed. The row stays until it is certain whether it was
the last that names the picture, which is then removed with it."""
prompts = tenant_table(
    "prompts",
    "numbered versions of prompt templates",
    column("id", Text, "as clients name it", key=True),
    column("version", Integer, "the first is 1", key=True),
    column("content", JSON, "instructions and input, with {{variables}}"),
    column("created_at", TIME, default=NOW),
)
response_events_hot = tenant_table(
    "response_events_hot",
    "the event log of running responses: a row for each commit and kind of delta",
    column("response_id", Uuid, "the response whose events these are", key=True),
    column("first_seq", Integer, "the sequence number of its first event", key=True),
    column("n", Integer, "events in this row"),
    column("kind", SmallInteger, "0 whole event, else which delta"),
    column("output_index", Integer),
    column("content_index", Integer),
    column("attempt", Integer, "the attempt that wrote it"),
    column("body", Text, "kind 0: the event's JSON; else a JSON array of deltas"),
    optional("token_ids", LargeBinary, "int32, little-endian: what the engine gave, for exact resume"),
    column(
        "at",
        Double,
        "when they were written, in seconds since 1970",
        default=text("extract(epoch from clock_timestamp())"),
    ),
    postgresql_with={
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_vacuum_threshold": "1000",
        "autovacuum_vacuum_cost_delay": "0",
    },
)
response_streams = tenant_table(
    "response_streams",
    "the event log of an ended response, folded into one row",
    column("response_id", Uuid, "the response whose events these are", key=True),
    column("last_seq", Integer, "the sequence number of its last event"),
    column(
        "codec", SmallInteger, "2: JSON array of hot rows; 3: without large parameters, which request has"
    ),
    column("body", Text, "what the hot rows held"),
    column("finished_at", TIME, "when it was folded", default=NOW),
    column("size", Integer, "bytes of the body"),
    postgresql_partition_by="range (response_id)",
)
idempotency_keys = tenant_table(
    "idempotency_keys",
    "keys of requests and the response that each began, for a day",
    column("key", Text, "the header Idempotency-Key", key=True),
    column("digest", LargeBinary, "SHA-256 of the request that used it first"),
    column("response_id", Uuid, "the response that it began"),
    column("created_at", TIME, default=NOW),
    optional("replica_id", Uuid, "the replica that claimed it"),
    index("ix_idempotency_keys_created_at", "created_at"),
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
