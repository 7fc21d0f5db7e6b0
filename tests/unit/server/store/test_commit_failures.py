"""What an exception of a commit says: about the database, about one response, or about our own code."""

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DataError, IntegrityError, InternalError, OperationalError, ProgrammingError

from server.store.commit_failures import CommitFailure, OwnershipLost, classify


def of(kind: type[psycopg.Error]) -> OperationalError:
    return OperationalError("copy", None, kind("Why."))


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OperationalError("", None, psycopg.OperationalError("the connection is lost")), "away"),
        (psycopg.OperationalError("the connection is lost"), "away"),
        (of(errors.AdminShutdown), "away"),
        (of(errors.CannotConnectNow), "away"),
        (of(errors.ConnectionFailure), "away"),
        (of(errors.TooManyConnections), "away"),
        (of(errors.DiskFull), "away"),
        (InternalError("", None, errors.ReadOnlySqlTransaction("Why.")), "away"),
        (InternalError("", None, errors.IdleInTransactionSessionTimeout("Why.")), "away"),
        (of(errors.LockNotAvailable), "blocked"),
        (of(errors.QueryCanceled), "blocked"),
        (of(errors.DeadlockDetected), "blocked"),
        (of(errors.SerializationFailure), "blocked"),
        (InternalError("", None, errors.InternalError_("invalid memory alloc request size")), "blocked"),
        (of(errors.ProgramLimitExceeded), "refused"),
        (IntegrityError("", None, errors.UniqueViolation("Why.")), "refused"),
        (DataError("", None, errors.UntranslatableCharacter("Why.")), "refused"),
        (DataError("", None, psycopg.DataError("no NUL")), "refused"),
        (ValueError("a mistake of ours"), "refused"),
        (ProgrammingError("", None, errors.UndefinedColumn("Why.")), "broken"),
        (OwnershipLost(), "lost"),
    ],
)
def test_a_failure_is_told_by_its_sqlstate(error: Exception, trouble: CommitFailure) -> None:
    assert classify(error) == trouble
