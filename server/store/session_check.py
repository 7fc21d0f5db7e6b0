"""Checks of a database URL: that it leads to a session of Postgres, not to a pooler that drops or shares
settings, and that the cluster keeps what it has confirmed.

`probe` and `probe_durability` ask; pure functions say what an operator must change. Some storage, such as
that of managed databases, is safe with settings that are unsafe on a disk, so `complaints` only warn.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from server.errors import ConfigError, DatabaseAway
from server.store.driver_statements import as_database_error
from server.store.timeout_connection import REQUEST_TIMEOUTS, connect, synchronous, with_network_timeouts

_PROBE = """
    select current_setting('statement_timeout'), pg_backend_pid(), current_database(),
           extract(epoch from pg_postmaster_start_time())::text
"""
_REFUSALS = ("unsupported startup parameter", "command-line options")
"""Errors of PgBouncer and Amazon's RDS Proxy about a session's settings, or another startup parameter."""
_PASSING_REFUSALS = ("too many", "connection slots", "not currently accepting connections")
"""Errors of a Postgres that accepts connections, but not this one now. A refused login has no SQLSTATE."""
_ROUNDS = 3
"""Looks for a shared process; a pooler that takes its servers in turn may show none in one."""
_STATEMENT_MODE = "statement pooling mode"
_ADVICE = (
    "set HOLDFAST_DATABASE_POOLER=transaction, and HOLDFAST_DATABASE_DIRECT_URL to the URL of Postgres itself"
)


@dataclass(frozen=True, slots=True)
class SessionProbe:
    """The settings, process and server that one transaction shows."""

    keeps_settings: bool
    """Whether the time limits hold in it."""
    is_own_backend: bool
    """Whether its process is the one that answered the connection."""
    server: tuple[str, str]
    """The database's name and its server's start, which only one database has."""


def probe(setting: str, url: str, *, pooled: bool) -> SessionProbe:
    """Looks at a session of that URL. Raises ConfigError for lost time limits, else DatabaseAway."""
    try:
        with closing(connect(url, "holdfast", REQUEST_TIMEOUTS, pooled=pooled)) as connection:
            row = connection.execute(_PROBE).fetchone()
            backend = connection.info.backend_pid
    except psycopg.Error as error:
        message = str(error).strip()
        if sentence := refusal(setting, message, pooled=pooled):
            raise ConfigError(sentence) from error
        raise no_answer(url, message) from error
    assert row is not None
    limit, pid, name, started = row
    session = SessionProbe(limit == REQUEST_TIMEOUTS["statement_timeout"], pid == backend, (name, started))
    if sentence := complaint(setting, session):
        raise ConfigError(sentence)
    return session


def require_session(setting: str, url: str) -> None:
    """Raises ConfigError if the URL of that setting gives each transaction a process of its own: a pooler.

    A pooler in transaction mode gives the process of an idle session to the next transaction of another.
    """
    with_timeouts = with_network_timeouts(url)
    try:
        with closing(psycopg.connect(with_timeouts, autocommit=True)) as idle:
            for _ in range(_ROUNDS):
                own = _backend_of(idle)
                with closing(psycopg.connect(with_timeouts)) as other:
                    if _backend_of(other) == own or _backend_of(idle) != own:
                        raise ConfigError(
                            f"{setting} leads to a pooler that pools transactions, and the schema changes in"
                            f" one session: {_ADVICE}."
                        )
    except psycopg.Error as error:
        raise no_answer(url, str(error).strip()) from error


def _backend_of(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    pid: int = row[0]
    return pid


def no_answer(url: str, message: str) -> ConfigError:
    """The error for a failed connection: a DatabaseAway, unless trying again would not help."""
    passes = any(words in message for words in _PASSING_REFUSALS)
    kind = DatabaseAway if passes or not accepts_connections(url) else ConfigError
    return kind(f"The database does not answer: {' '.join(message.split()).rstrip('.')}.")


def accepts_connections(url: str) -> bool:
    """Whether Postgres accepts connections there, asked as by `pg_isready`. True for an unusable URL."""
    try:
        with_timeouts = with_network_timeouts(url)
    except psycopg.Error:
        return True
    answer = psycopg.pq.PGconn.ping(with_timeouts.encode())
    return answer not in (psycopg.pq.Ping.REJECT, psycopg.pq.Ping.NO_RESPONSE)


def refusal(setting: str, message: str, *, pooled: bool) -> str | None:
    """A sentence for the operator about an error of a pooler; None if the error is not one of a pooler."""
    first = message.strip().partition("\n")[0].rpartition("FATAL:")[2].strip()
    if _STATEMENT_MODE in message:
        return f"{setting} leads to a pooler that pools statements: set its mode to transaction."
    if not any(words in message for words in _REFUSALS):
        return None
    if pooled:
        return f"The pooler refuses a parameter of {setting} ({first}): remove it from the URL."
    if setting == "database-url":
        return f"{setting} leads to a pooler, which refuses the settings of a session ({first}): {_ADVICE}."
    return f"{setting} leads to a pooler ({first}), not to Postgres itself."


def complaint(setting: str, session: SessionProbe) -> str | None:
    """A sentence about the fault of a URL that answers; None if its time limits hold."""
    if session.keeps_settings:
        return None
    if setting == "database-url":
        return f"{setting} leads to a pooler that drops the settings of a session: {_ADVICE}."
    return f"{setting} leads to a pooler that drops the settings of a session, not to Postgres itself."


_DURABILITY = """
    select current_setting('fsync', true), current_setting('full_page_writes', true),
           current_setting('synchronous_commit', true), current_setting('synchronous_standby_names', true),
           pg_is_in_recovery()
"""
"""Settings as a server's session has them: of the cluster, the database, the role and the URL."""
STANDBY = (
    "The database is a standby, which takes no writes: point the URL at the primary, or name all hosts in it "
    "with target_session_attrs=read-write."
)


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """Settings of a server's session; None where Postgres does not know one."""

    fsync: str | None
    full_page_writes: str | None
    synchronous_commit: str | None
    synchronous_standby_names: str | None
    in_recovery: bool
    hosts: int = 1


def probe_durability(url: str, *, pooled: bool) -> DurabilitySettings:
    """The settings behind a URL. Raises DatabaseError."""
    try:
        settings = {**synchronous(url), **REQUEST_TIMEOUTS}
        with closing(connect(url, "holdfast", settings, pooled=pooled)) as connection:
            row = connection.execute(_DURABILITY).fetchone()
    except psycopg.Error as error:
        raise as_database_error("probe", error) from error
    assert row is not None
    fsync, full_page_writes, commit, standbys, in_recovery = row
    return DurabilitySettings(fsync, full_page_writes, commit, standbys, in_recovery, _hosts(url))


def _hosts(url: str) -> int:
    parameters = conninfo_to_dict(url)
    return max(len(str(parameters.get(name) or "").split(",")) for name in ("host", "hostaddr"))


def complaints(settings: DurabilitySettings) -> Iterator[str]:
    """A sentence for each setting by which less is kept than clients have seen, with what to do."""
    if settings.in_recovery:
        yield STANDBY
    if settings.fsync == "off":
        yield (
            "The cluster has fsync = off, so a power cut can lose or destroy everything in it: set it to on, "
            "unless the storage itself keeps what is written."
        )
    if settings.full_page_writes == "off":
        yield (
            "The cluster has full_page_writes = off, so a power cut can leave torn pages: set it to on, "
            "unless the storage writes whole pages."
        )
    if settings.synchronous_commit == "off":
        yield (
            "The database URL has synchronous_commit = off, so a crash of Postgres can lose responses that "
            "clients have been told of: leave it out of the URL."
        )
    if settings.hosts > 1 and not settings.in_recovery and settings.synchronous_standby_names == "":
        yield (
            "The URL names several hosts, and the primary waits for no standby, so a failover can lose the "
            "last responses that clients have seen: set synchronous_standby_names."
        )
