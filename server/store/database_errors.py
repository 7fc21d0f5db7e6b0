"""Postgres errors by SQLSTATE: unavailable, contention, disk full, time-out; `classify` for commits,
`classify_read` for what is read of one response.
"""

from typing import Literal

import psycopg
from sqlalchemy import exc

DatabaseError = exc.SQLAlchemyError
"""Raised by store functions when Postgres is unreachable or reports an error."""
TransientError = (exc.OperationalError, exc.InterfaceError, exc.InternalError)
"""Errors that may pass: a lost or timed out connection, a restarting server, a full disk."""
AlreadyThere = exc.IntegrityError
"""A row with that key is there, or another constraint does not hold."""
CommitFailure = Literal[
    "unavailable", "timed_out", "limited", "rejected", "ownership_lost", "schema_mismatch"
]
"""`unavailable`: the database does not answer, or cannot write anything for now.
`timed_out`: it answers, but these statements did not finish: a lock, their length, a deadlock. A retry may.
`limited`: these statements exceed a limit of the operator, such as `temp_file_limit`; others may not.
`rejected`: these statements cannot succeed as they are: data that Postgres does not take, a row that is there
already, an exception of our own code.
`ownership_lost`: the response is not this replica's.
`schema_mismatch`: the schema, or a right to it, is not what this release needs, whatever is written."""
ReadFailure = Literal["undecodable", "passing", "environment"]
"""`undecodable`: the row's own content is at fault, and stays so.
`passing`: this row cannot be read now, perhaps for its size; others may be.
`environment`: a right, a column, the session or the server is at fault, whichever row is read."""
_RETRYABLE = frozenset({"40001", "40P01", "55P03", "25P03"})
"""Serialization failure, deadlock, a lock not got in time, a transaction that was silent for too long."""
_UNAVAILABLE = ("08", "53", "57P", "58", "25006", "25P03")
"""SQLSTATEs, or how they begin: connection exceptions; disk full, out of memory, too many connections; the
server stops, starts or has crashed; system errors; a standby; a transaction that was silent for too long."""
_OF_ONE_STATEMENT = ("40", "53100", "53200", "53400", "54", "55", "57014", "25P03", "XX")
"""SQLSTATEs of reading, or how they begin, that one row may cause: rollbacks, locks and time limits;
temporary files, memory and limits that one long history exceeds; a damaged page."""
_DECODING_ERRORS = (exc.DataError, psycopg.DataError, exc.NoResultFound)
"""Errors without an SQLSTATE that the driver raises for values, and for a row that is missing."""


class OwnershipLost(Exception):
    """The response's row is deleted, ended, owned by another replica, or of a later attempt."""


def first_line(error: Exception) -> str:
    """The first line of the driver's message, without the statement and details, which may have content."""
    message = str(getattr(error, "orig", None) or error).strip()
    return message.partition("\n")[0] or type(error).__name__


def in_one_line(error: Exception) -> str:
    """All that the driver says, without the statement, for an operator who has the error before them."""
    message = str(getattr(error, "orig", None) or error)
    return " ".join(message.split()).rstrip(".") or type(error).__name__


def is_unavailable(error: DatabaseError) -> bool:
    """Whether Postgres did not answer, is starting up or shutting down, or takes no writes."""
    sqlstate = _sqlstate(error)
    away = sqlstate == "" or sqlstate.startswith(("08", "57P")) or is_read_only(error)
    return isinstance(error, TransientError) and away


def is_read_only(error: Exception) -> bool:
    """Whether the session takes no writes: that of a standby, or one around a switchover."""
    return _sqlstate(error) == "25006"


def is_contention(error: DatabaseError) -> bool:
    """Whether the transaction was aborted for another one, or for its silence: a retry may succeed."""
    return _sqlstate(error) in _RETRYABLE


def is_disk_full(error: DatabaseError) -> bool:
    """Whether Postgres reported `disk_full`."""
    return _sqlstate(error) == "53100"


def is_statement_timeout(error: Exception) -> bool:
    """Whether the statement exceeded `statement_timeout`, which Postgres reports as `query_canceled`."""
    return _sqlstate(error) == "57014"


def classify(error: Exception) -> CommitFailure:
    """The kind of a commit's exception, which says whether, and how, the commit can be retried."""
    if isinstance(error, OwnershipLost):
        return "ownership_lost"
    sqlstate = _sqlstate(error)
    if sqlstate == "53400":  # configuration_limit_exceeded
        return "limited"
    passes = isinstance(error, (*TransientError, psycopg.OperationalError, psycopg.InterfaceError))
    if sqlstate.startswith(_UNAVAILABLE) or (passes and not sqlstate):
        return "unavailable"
    if sqlstate.startswith("42"):
        return "schema_mismatch"
    if passes and not sqlstate.startswith("54"):  # program_limit_exceeded: larger than Postgres can take
        return "timed_out"
    return "rejected"


def classify_read(error: Exception) -> ReadFailure:
    """The kind of an exception of reading and decoding one response's rows."""
    if isinstance(error, OSError | MemoryError | ImportError):
        return "passing"
    if not isinstance(error, exc.SQLAlchemyError | psycopg.Error):
        return "undecodable"
    sqlstate = _sqlstate(error)
    if sqlstate.startswith("22") or (not sqlstate and isinstance(error, _DECODING_ERRORS)):
        return "undecodable"
    return "passing" if sqlstate.startswith(_OF_ONE_STATEMENT) else "environment"


def _sqlstate(error: Exception) -> str:
    """The SQLSTATE; empty for an error that did not come from the server."""
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return getattr(original, "sqlstate", None) or ""
