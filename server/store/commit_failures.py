"""Classifies the failures of commits by whether, and how, they can be retried. Pure."""

from typing import Literal

import psycopg
from sqlalchemy.exc import DBAPIError

from server.store.database import TransientError

CommitFailure = Literal["unavailable", "timed_out", "rejected", "ownership_lost", "schema_mismatch"]
"""`away`: the database does not answer, or cannot write anything for now, whatever it is asked.
`blocked`: it answers, but these statements did not finish: a lock, their length, a deadlock. A later try may.
`refused`: these statements cannot succeed as they are: data that Postgres does not take, a row that is there
already, an exception of our own code.
`lost`: the response is not this replica's.
`broken`: the schema, or a right to it, is not what this release needs, whatever is written."""

_UNAVAILABLE = ("08", "53", "57P", "58", "25006", "25P03")
"""SQLSTATEs, or how they begin: connection exceptions; disk full, out of memory, too many connections; the
server stops, starts or has crashed; system errors; a standby; a transaction that was silent for too long."""


class OwnershipLost(Exception):
    """The response's row is deleted, ended, owned by another replica, or of a later attempt."""


def classify(error: Exception) -> CommitFailure:
    """The kind of a commit's exception."""
    if isinstance(error, OwnershipLost):
        return "ownership_lost"
    original = error.orig if isinstance(error, DBAPIError) else error
    sqlstate = getattr(original, "sqlstate", None) or ""
    passes = isinstance(error, TransientError) or isinstance(
        original, psycopg.OperationalError | psycopg.InterfaceError
    )
    if sqlstate.startswith(_UNAVAILABLE) or (passes and not sqlstate):
        return "unavailable"
    if sqlstate.startswith("42"):
        return "schema_mismatch"
    if passes and not sqlstate.startswith("54"):  # program_limit_exceeded: larger than Postgres can take
        return "timed_out"
    return "rejected"
