"""Settings of the database and of what is stored: connection, durability, retention, quotas."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from server.configuration.setting_groups.declare import days, setting


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """Database."""

    data_dir: Path | None = setting(
        None, "the embedded database's directory; default: holdfast in the XDG data directory"
    )
    database_url: str | None = setting(
        None,
        "a Postgres to use instead of the embedded one; DATABASE_URL is read too; a password in the flag is "
        "visible in `ps`, one in the variable is not",
    )
    database_pooler: Literal["none", "transaction"] = setting(
        "none",
        "whether a pooler, such as PgBouncer, is behind the database URL: `transaction` if each transaction "
        "may have another session",
    )
    database_direct_url: str | None = setting(
        None,
        "Postgres itself, where the database URL leads to a pooler: for the recorder, notifications, `db` "
        "and `psql`",
    )
    reader_database_url: str | None = setting(
        None,
        "the database as a user of `holdfast db create-user NAME --as reader`, for the console's SQL page; "
        "an embedded database has one of its own",
    )
    database_connections: int = setting(
        16, "database connections, and threads, for requests; at least 5 are used", low=1, high=1000
    )
    durability: Literal["normal", "strict"] = setting(
        "strict",
        "commits that wait for the disk: `strict` all, `normal` not those of the tokens between a response's "
        "start and its end",
    )
    delivery: Literal["notify", "poll"] = setting(
        "notify",
        "how replicas learn of queued responses and cancellations: `notify` uses LISTEN and NOTIFY, `poll` "
        "only queries",
    )


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Storage."""

    retention_days: int = days(
        30, "days that responses are stored, unless the request sets its own; 0: without expiry"
    )
    conversation_days: int = days(
        0, "days that conversations are stored after they were last changed; 0: without expiry"
    )
    ledger_days: int = days(
        0, "days that the usage ledger keeps entries of deleted responses; 0: for ever; sums by day stay"
    )
    purge_seconds: float = setting(60.0, "seconds between two purges of expired responses", low=0.1)
    max_stored_bytes_of_tenant: int | None = setting(
        None,
        "bytes of responses and conversations that one tenant may store; default: 100 GiB, no limit while "
        "no key exists",
        low=1,
    )
    disk_reserve: int | None = setting(
        None,
        "free bytes on the embedded database's disk below which new work is refused; default: the smaller of "
        "10 % and 2 GiB",
        low=0,
    )
