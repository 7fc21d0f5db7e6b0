"""What a database URL leads to: a session of Postgres, or a pooler that drops its settings or shares it.

`probe` asks; `refusal` and `complaint` are pure and say what an operator must change.
"""

from contextlib import closing
from dataclasses import dataclass

import psycopg

from server.errors import ConfigError
from server.store.timeout_connection import REQUEST_TIMEOUTS, connect

_PROBE = """
    select current_setting('statement_timeout'), pg_backend_pid(), current_database(),
           extract(epoch from pg_postmaster_start_time())::text
"""
_REFUSALS = ("unsupported startup parameter", "command-line options")
"""What PgBouncer and Amazon's RDS Proxy say to the settings of a session, or to another startup parameter."""
_STATEMENT_MODE = "statement pooling mode"
_ADVICE = (
    "set HOLDFAST_DATABASE_POOLER=transaction, and HOLDFAST_DATABASE_DIRECT_URL to the URL of Postgres itself"
)


@dataclass(frozen=True, slots=True)
class SessionProbe:
    """What one transaction shows."""

    keeps_settings: bool
    """Whether the time limits hold in it."""
    is_own_backend: bool
    """Whether its process is the one that answered the connection."""
    server: tuple[str, str]
    """The database's name and its server's start, which only one database has."""


def probe(setting: str, url: str, *, pooled: bool) -> SessionProbe:
    """What is behind the URL of that setting. Raises ConfigError unless its time limits hold."""
    try:
        with closing(connect(url, "holdfast", REQUEST_TIMEOUTS, pooled=pooled)) as connection:
            row = connection.execute(_PROBE).fetchone()
            backend = connection.info.backend_pid
    except psycopg.Error as error:
        said = str(error).strip()
        wrong = refusal(setting, said, pooled=pooled)
        raise ConfigError(wrong or f"The database does not answer: {said.rstrip('.')}") from error
    assert row is not None
    limit, pid, name, started = row
    found = SessionProbe(limit == REQUEST_TIMEOUTS["statement_timeout"], pid == backend, (name, started))
    if wrong := complaint(setting, found):
        raise ConfigError(wrong)
    return found


def refusal(setting: str, message: str, *, pooled: bool) -> str | None:
    """What to tell the operator of an error that a pooler gives; None if it is not one of a pooler."""
    first = message.strip().partition("\n")[0].rpartition("FATAL:")[2].strip()
    if _STATEMENT_MODE in message:
        return f"{setting} leads to a pooler that pools statements: set its mode to transaction."
    if not any(said in message for said in _REFUSALS):
        return None
    if pooled:
        return f"The pooler refuses a parameter of {setting} ({first}): remove it from the URL."
    if setting == "database-url":
        return f"{setting} leads to a pooler, which refuses the settings of a session ({first}): {_ADVICE}."
    return f"{setting} leads to a pooler ({first}), not to Postgres itself."


def complaint(setting: str, found: SessionProbe) -> str | None:
    """What is wrong with a URL that answers; None if its time limits hold."""
    if found.keeps_settings:
        return None
    if setting == "database-url":
        return f"{setting} leads to a pooler that drops the settings of a session: {_ADVICE}."
    return f"{setting} leads to a pooler that drops the settings of a session, not to Postgres itself."
