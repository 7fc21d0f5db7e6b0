"""What an exception of a commit says: about the database, about one response, or about our own code."""

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DataError, IntegrityError, InternalError, OperationalError, ProgrammingError

from server.store.database_errors import CommitFailure, OwnershipLost, classify


def of(kind: type[psycopg.Error]) -> OperationalError:
    return OperationalError("copy", None, kind("Why."))


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OperationalError("", None, psycopg.OperationalError("the connection is lost")), "unavailable"),
        (psycopg.OperationalError("the connection is lost"), "unavailable"),
        (of(errors.AdminShutdown), "unavailable"),
        (of(errors.CannotConnectNow), "unavailable"),
        (of(errors.ConnectionFailure), "unavailable"),
        (of(errors.TooManyConnections), "unavailable"),
        (of(errors.DiskFull), "unavailable"),
        (InternalError("", None, errors.ReadOnlySqlTransaction("Why.")), "unavailable"),
        (InternalError("", None, errors.IdleInTransactionSessionTimeout("Why.")), "unavailable"),
        (of(errors.LockNotAvailable), "timed_out"),
        (of(errors.QueryCanceled), "timed_out"),
        (of(errors.DeadlockDetected), "timed_out"),
        (of(errors.SerializationFailure), "timed_out"),
        (InternalError("", None, errors.InternalError_("invalid memory alloc request size")), "timed_out"),
        (of(errors.ProgramLimitExceeded), "rejected"),
        (IntegrityError("", None, errors.UniqueViolation("Why.")), "rejected"),
        (DataError("", None, errors.UntranslatableCharacter("Why.")), "rejected"),
        (DataError("", None, psycopg.DataError("no NUL")), "rejected"),
        (ValueError("a mistake of ours"), "rejected"),
        (ProgrammingError("", None, errors.UndefinedColumn("Why.")), "schema_mismatch"),
        (OwnershipLost(), "ownership_lost"),
    ],
)
def test_a_failure_is_told_by_its_sqlstate(error: Exception, trouble: CommitFailure) -> None:
    assert classify(error) == trouble
