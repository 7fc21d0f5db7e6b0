"""Tables of what keys and tenants use of their limits: rate windows, spending, reservations of budgets."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Date,
    Index,
    Numeric,
    Table,
    Text,
    Uuid,
    text,
)

from server.store.tables import metadata, time_column

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
