"""What an exception of a commit says: about the database, about one response, or about our own code."""

import msgspec
import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InternalError,
    NoResultFound,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from server.store.database_errors import CommitFailure, OwnershipLost, ReadFailure, classify, classify_read


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


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("no such role"), "undecodable"),
        (msgspec.DecodeError("truncated"), "undecodable"),
        (KeyError("type"), "undecodable"),
        (DataError("", None, errors.InvalidTextRepresentation("Why.")), "undecodable"),
        (DataError("", None, psycopg.DataError("a time that never was")), "undecodable"),
        (NoResultFound(), "undecodable"),
        (ProgrammingError("", None, errors.InsufficientPrivilege("Why.")), "environment"),
        (ProgrammingError("", None, errors.UndefinedColumn("Why.")), "environment"),
        (ProgrammingError("", None, errors.UndefinedTable("Why.")), "environment"),
        (NotSupportedError("", None, errors.FeatureNotSupported("Why.")), "environment"),
        (InternalError("", None, errors.ReadOnlySqlTransaction("Why.")), "environment"),
        (of(errors.AdminShutdown), "environment"),
        (of(errors.TooManyConnections), "environment"),
        (OperationalError("", None, psycopg.OperationalError("the connection is lost")), "environment"),
        (psycopg.OperationalError("the connection is lost"), "environment"),
        (PoolTimeout(), "environment"),
        (of(errors.QueryCanceled), "passing"),
        (of(errors.LockNotAvailable), "passing"),
        (of(errors.SerializationFailure), "passing"),
        (of(errors.DiskFull), "passing"),
        (InternalError("", None, errors.InternalError_("invalid page in block 1")), "passing"),
        (MemoryError(), "passing"),
        (OSError(24, "Too many open files"), "passing"),
    ],
)
def test_only_what_is_stored_of_a_response_is_a_reason_to_end_it(
    error: Exception, failure: ReadFailure
) -> None:
    assert classify_read(error) == failure
