"""Tables of replicas, responses, conversations and event logs, as `migrations/` makes them.

Payloads are `json`, not `jsonb`: jsonb reorders keys and refuses NUL escapes, and a replay must give the
bytes that were sent. Statuses are text with a CHECK, so that a new one is an ordinary migration. Nothing
here is a trigger, an enum, a sequence or an extension, which keeps Postgres-compatible clusters possible.
"""

from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    and_,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
}

metadata = MetaData(naming_convention=NAMING)

NOW = text("clock_timestamp()")


def time_column(name: str, *, required: bool = False, comment: str | None = None) -> Column[object]:
    return Column(
        name,
        DateTime(timezone=True),
        nullable=not required,
        server_default=NOW if required else None,
        comment=comment,
    )


def _sizes() -> list[Column[object]]:
    """Columns of items that are asked before the items are read."""
    return [
        Column("size", Integer, nullable=False, comment="bytes of the payload"),
        Column(
            "for_model",
            Text,
            comment="the payload without what no model reads; null where that is all of it",
        ),
    ]


def origin_columns() -> list[Column[object]]:
    return [
        Column("end_user", Text, comment="user, else safety_identifier, of its request"),
        Column("kind", Text, nullable=False, comment="response, chat or completion: the API that made it"),
    ]


def cancel_reason() -> Column[object]:
    return Column(
        "cancel_reason",
        Text,
        comment="client_request, client_disconnect, deleted, key_ended, erased or operator",
    )


def engine_times() -> list[Column[object]]:
    return [
        Column("request_id", Text, comment="x-request-id of its create"),
        Column("queue_seconds", Double, comment="from the engine's acceptance to its first step"),
        Column("prefill_seconds", Double, comment="from its first step to its first token"),
    ]


replicas = Table(
    "replicas",
    metadata,
    Column("id", Uuid, primary_key=True, comment="random for every process start"),
    Column("state", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("models", ARRAY(Text), nullable=False),
    time_column("started_at", required=True),
    time_column("heartbeat_at", required=True),
    Column(
        "reading",
        ARRAY(Uuid),
        nullable=False,
        server_default="{}",
        comment="responses that run elsewhere and would end without their readers here",
    ),
    Column(
        "role",
        Text,
        nullable=False,
        server_default="all",
        comment="all; api: generates no background responses; worker: serves no requests",
    ),
    Column("revision", Text, nullable=False, comment="the schema's revision that its release needs"),
    CheckConstraint("state in ('alive', 'stopped', 'dead')", name="state"),
    CheckConstraint("role in ('all', 'api', 'worker')", name="role"),
)

responses = Table(
    "responses",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("previous_id", Uuid),
    Column("conversation_id", Uuid),
    Column("status", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("model", Text, nullable=False),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("replica_id", Uuid),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column(
        "deaths", Integer, nullable=False, server_default="0", comment="replicas that died while they ran it"
    ),
    Column("seed", BigInteger, nullable=False),
    Column("prompt_hash", LargeBinary),
    time_column("cancel_requested_at"),
    time_column("created_at", required=True),
    time_column("queued_at"),
    time_column("started_at"),
    time_column("first_token_at"),
    time_column("finished_at"),
    time_column("expires_at"),
    time_column("deleted_at"),
    Column("input_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("output_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("turns", JSON, comment="tokens of each turn of the model; its input has the tools' output"),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("incomplete_reason", Text),
    Column("key_id", Text),
    Column("request", JSON, nullable=False, comment="what the response repeats of its request"),
    Column("asked", JSON, comment="the request without its input: what a run is begun again from"),
    Column("metadata", JSONB, nullable=False, comment="for search; request has the exact text"),
    Column(
        "choice",
        SmallInteger,
        comment="its place in the chat completion whose choice it is; null for other responses",
    ),
    Column("size", Integer, nullable=False, comment="bytes of the row's contents, and some for the row"),
    *engine_times(),
    Column("trace_parent", Text, comment="traceparent of its create"),
    *origin_columns(),
    Column("root_id", Uuid, comment="the first response of its chain of previous responses"),
    Column("turn", Integer, nullable=False, comment="its place in that chain, the first at 1"),
    Column("weights", Text, comment="digest of the weights that generate it"),
    cancel_reason(),
    Column("user_agent", Text, comment="of its create's client: printable ASCII, at most 200 characters"),
    CheckConstraint(
        "status in ('queued', 'in_progress', 'completed', 'failed', 'incomplete', 'cancelled')",
        name="status",
    ),
    Index(
        "ix_responses_waiting",
        "tenant",
        "priority",
        "queued_at",
        postgresql_where=text("replica_id is null and status in ('queued', 'in_progress')"),
    ),
    Index("ix_responses_replica_id", "replica_id", postgresql_where=text("status = 'in_progress'")),
    Index(
        "ix_responses_previous_id",
        "tenant",
        "previous_id",
        postgresql_where=text("previous_id is not null"),
    ),
    Index(
        "ix_responses_conversation_id",
        "tenant",
        "conversation_id",
        postgresql_where=text("conversation_id is not null and status in ('queued', 'in_progress')"),
    ),
    Index("ix_responses_expires_at", "expires_at", postgresql_where=text("expires_at is not null")),
    Index("ix_responses_created_at", "tenant", text("created_at desc")),
    Index("ix_responses_id", "id"),
    Index("ix_responses_time", "created_at"),
    Index(
        "ix_responses_end_user",
        "tenant",
        "end_user",
        text("created_at desc"),
        postgresql_where=text("end_user is not null"),
    ),
    Index("ix_responses_choice", "tenant", text("created_at desc"), postgresql_where=text("choice = 0")),
    Index("ix_responses_model", "tenant", "model", text("created_at desc")),
    Index(
        "ix_responses_status",
        "tenant",
        "status",
        text("created_at desc"),
        postgresql_where=text("status <> 'completed'"),
    ),
    Index(
        "ix_responses_metadata",
        "metadata",
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    ),
    postgresql_partition_by="range (id)",
)

installation = Table(
    "installation",
    metadata,
    Column("name", Text, primary_key=True, comment="always this"),
    Column(
        "system_identifier",
        Text,
        nullable=False,
        comment="of the cluster, as pg_control_system() has it; empty where that may not be asked",
    ),
    Column("database_oid", BigInteger, nullable=False, comment="of the database in the cluster"),
    time_column("recorded_at", required=True, comment="when the place was seen for the first time"),
    Column(
        "held_before",
        DateTime(timezone=True),
        comment="background responses from before are held: the data is a restored copy",
    ),
    comment="one row: where the data was when a server last started on it",
)

items = Table(
    "items",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("side", SmallInteger, primary_key=True, autoincrement=False, comment="0 input, 1 output"),
    Column("idx", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("role", Text),
    Column("status", Text),
    Column("name", Text),
    Column("call_id", Text),
    Column("payload", JSON, nullable=False),
    time_column("created_at", required=True),
    *_sizes(),
    Column("seconds", Double, comment="how long the call took that the server made"),
    Index("ix_items_id", "tenant", "id"),
    Index("ix_items_calls", "created_at", postgresql_where=text(r"type like '%\_call'")),
    postgresql_partition_by="range (response_id)",
)

conversations = Table(
    "conversations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("metadata", JSONB, nullable=False),
    Column(
        "next_position",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="grows with every item that comes or goes, so that it tells whether any has",
    ),
    time_column("created_at", required=True),
    Column("size", Integer, nullable=False, comment="bytes of the metadata, and some for the row"),
    time_column("touched_at", required=True, comment="when it was made or last changed"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation_id", Uuid, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("role", Text),
    Column("status", Text),
    Column("name", Text),
    Column("call_id", Text),
    Column("payload", JSON, nullable=False),
    Column("response_id", Uuid, comment="what brought it, which may be gone; null for items put by hand"),
    time_column("created_at", required=True),
    *_sizes(),
    UniqueConstraint("tenant", "id"),
)

images = Table(
    "images",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True, comment="SHA-256 of data"),
    Column("media_type", Text, nullable=False, comment="as its first data URL names it"),
    Column("size", Integer, nullable=False, comment="bytes of data"),
    Column("data", LargeBinary, nullable=False, comment="compressed already, so stored as it is"),
    time_column("created_at", required=True),
)

item_images = Table(
    "item_images",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("owner", Uuid, primary_key=True, comment="the response or conversation that has the item"),
    Column("item_id", Text, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    time_column("removed_at"),
    ForeignKeyConstraint(["tenant", "digest"], ["images.tenant", "images.digest"]),
    Index("ix_item_images_digest", "tenant", "digest"),
    Index("ix_item_images_removed_at", "removed_at", postgresql_where=text("removed_at is not null")),
)
"""`removed_at` is the time at which the item was removed. The row stays until it is certain whether it was
the last that names the picture, which is then removed with it."""

prompts = Table(
    "prompts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("content", JSON, nullable=False, comment="instructions and input, with {{variables}}"),
    time_column("created_at", required=True),
)

response_events_hot = Table(
    "response_events_hot",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("first_seq", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, nullable=False, comment="events in this row"),
    Column("kind", SmallInteger, nullable=False, comment="0 whole event, else which delta"),
    Column("output_index", Integer, nullable=False),
    Column("content_index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column(
        "body",
        Text,
        nullable=False,
        comment="kind 0: the event's JSON; else a JSON array of deltas",
    ),
    Column("token_ids", LargeBinary, comment="int32, little-endian: what the engine gave, for exact resume"),
    Column("at", Double, nullable=False, server_default=text("extract(epoch from clock_timestamp())")),
    postgresql_with={
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_vacuum_threshold": "1000",
        "autovacuum_vacuum_cost_delay": "0",
    },
)

response_streams = Table(
    "response_streams",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("last_seq", Integer, nullable=False),
    Column(
        "codec",
        SmallInteger,
        nullable=False,
        comment="2: JSON array of hot rows; 3: without large parameters, which request has",
    ),
    Column("body", Text, nullable=False),
    time_column("finished_at", required=True),
    Column("size", Integer, nullable=False, comment="bytes of the body"),
    postgresql_partition_by="range (response_id)",
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False, comment="SHA-256 of the request that used it first"),
    Column("response_id", Uuid, nullable=False),
    time_column("created_at", required=True),
    Column("replica_id", Uuid, comment="the replica that claimed it"),
    Index("ix_idempotency_keys_created_at", "created_at"),
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
