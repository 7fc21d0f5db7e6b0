"""Tables of counts that are no bill: stored bytes, and refused requests."""

from sqlalchemy import BigInteger, Column, Date, DateTime, Index, Integer, Table, Text, Uuid, text

from server.store.tables import metadata

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
