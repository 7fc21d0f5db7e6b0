"""Postgres errors by SQLSTATE: unavailable, contention, disk full, time-out; `classify` for commits."""

from typing import Literal

import psycopg
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)

DatabaseError = SQLAlchemyError
"""Raised by store functions when Postgres is unreachable or reports an error."""

TransientError = (OperationalError, InterfaceError, InternalError)
"""Errors that may pass: a lost or timed out connection, a restarting server, a full disk."""

AlreadyThere = IntegrityError
"""A row with that key is there, or another constraint does not hold."""

CommitFailure = Literal["unavailable", "timed_out", "rejected", "ownership_lost", "schema_mismatch"]
"""`unavailable`: the database does not answer, or cannot write anything for now.
`timed_out`: it answers, but these statements did not finish: a lock, their length, a deadlock. A retry may.
`rejected`: these statements cannot succeed as they are: data that Postgres does not take, a row that is there
already, an exception of our own code.
`ownership_lost`: the response is not this replica's.
`schema_mismatch`: the schema, or a right to it, is not what this release needs, whatever is written."""

_RETRYABLE = frozenset({"40001", "40P01", "55P03", "25P03"})
"""Serialization failure, deadlock, a lock not got in time, a transaction that was silent for too long."""
_UNAVAILABLE = ("08", "53", "57P", "58", "25006", "25P03")
"""SQLSTATEs, or how they begin: connection exceptions; disk full, out of memory, too many connections; the
server stops, starts or has crashed; system errors; a standby; a transaction that was silent for too long."""


class OwnershipLost(Exception):
    """The response's row is deleted, ended, owned by another replica, or of a later attempt."""


def first_line(error: Exception) -> str:
    """What the driver says, without the statement and without details, which may have content."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.partition("\n")[0] or type(error).__name__


def in_one_line(error: Exception) -> str:
    """All that the driver says, without the statement, for an operator who has the error before them."""
    said = str(getattr(error, "orig", None) or error)
    return " ".join(said.split()).rstrip(".") or type(error).__name__


def is_unavailable(error: DatabaseError) -> bool:
    """Whether Postgres did not answer, or is starting up or shutting down."""
    sqlstate = _sqlstate(error)
    return isinstance(error, TransientError) and (sqlstate == "" or sqlstate.startswith(("08", "57P")))


def is_contention(error: DatabaseError) -> bool:
    """Whether the transaction was aborted for another one, or for its silence: a retry may succeed."""
    return _sqlstate(error) in _RETRYABLE


def is_disk_full(error: DatabaseError) -> bool:
    """Whether Postgres reported `disk_full`."""
    return _sqlstate(error) == "53100"


def is_statement_timeout(error: DatabaseError) -> bool:
    """Whether the statement exceeded `statement_timeout`, which Postgres reports as `query_canceled`."""
    return _sqlstate(error) == "57014"


def classify(error: Exception) -> CommitFailure:
    """The kind of a commit's exception, which says whether, and how, the commit can be retried."""
    if isinstance(error, OwnershipLost):
        return "ownership_lost"
    sqlstate = _sqlstate(error)
    passes = isinstance(error, (*TransientError, psycopg.OperationalError, psycopg.InterfaceError))
    if sqlstate.startswith(_UNAVAILABLE) or (passes and not sqlstate):
        return "unavailable"
    if sqlstate.startswith("42"):
        return "schema_mismatch"
    if passes and not sqlstate.startswith("54"):  # program_limit_exceeded: larger than Postgres can take
        return "timed_out"
    return "rejected"


def _sqlstate(error: Exception) -> str:
    """The SQLSTATE; empty for an error that did not come from the server."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlstate", None) or ""
