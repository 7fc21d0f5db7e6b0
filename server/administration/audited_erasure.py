"""Erases a tenant or one of its users, with one audit entry that names neither."""

from server.administration.actor import Actor
from server.caller import check_tenant
from server.errors import Conflict, InvalidRequest, NotFound
from server.maintenance.erasure import Erasure, Outcome
from server.protocol.administration.requests import MAX_USER
from server.store.administration import stored_keys
from server.store.database import Database
from server.store.erasure.subject import Subject


def check_subject(subject: Subject) -> None:
    """Raises InvalidRequest."""
    check_tenant(subject.tenant)
    if subject.user is None:
        return
    if not 1 <= len(subject.user) <= MAX_USER or "\0" in subject.user:
        raise InvalidRequest(f"A user's name is 1 to {MAX_USER} characters, none of them NUL.", param="user")
    if subject.keep_usage:
        raise InvalidRequest(
            "Usage is always kept of a user, without the user's name; it can be kept or not of a tenant.",
            param="keep_usage",
        )


def refuse_own_tenant(subject: Subject, tenant: str) -> None:
    """Raises Conflict for the whole tenant of the caller, whose key would go with it."""
    if subject.user is None and subject.tenant == tenant:
        raise Conflict(f"Tenant {tenant} is your own; use another's key, or `holdfast erase`.")


def count(database: Database, subject: Subject, lease_seconds: float) -> Outcome:
    """Counts what would be removed. Raises InvalidRequest, NotFound for nothing, or DatabaseError."""
    check_subject(subject)
    outcome = Erasure(database, subject, lease_seconds).count()
    if not (outcome.rows or outcome.unfinished):
        raise _nothing_of(subject)
    return outcome


def erase(
    database: Database, actor: Actor, subject: Subject, lease_seconds: float, seconds: float
) -> Outcome:
    """Erases for about so many seconds; the outcome says whether anything is left. Raises as `count` does."""
    check_subject(subject)
    outcome = Erasure(database, subject, lease_seconds).run(seconds)
    outcome.rows = +outcome.rows
    if outcome.complete and not outcome.rows:
        raise _nothing_of(subject)
    if outcome.rows:
        tenant = None if subject.user is None else subject.tenant
        action = "tenant.erase" if subject.user is None else "user.erase"
        details = {"complete": outcome.complete, "rows": dict(outcome.rows), "keep_usage": subject.keep_usage}
        with database.begin() as connection:
            actor.record(connection, action, tenant, "", details)
    return outcome


def _nothing_of(subject: Subject) -> NotFound:
    """An erased tenant or user leaves no name, so it cannot be told from one that never was."""
    whose = f"tenant {subject.tenant}"
    if subject.user is not None:
        whose = f"user {subject.user!r} of {whose}"
    return NotFound(f"There is nothing to erase of {whose}: the name is unknown, or was erased before.")


def locked_out(database: Database) -> bool:
    """Whether requests need a key and no valid one is left."""
    with database.begin() as connection:
        return stored_keys.key_required(connection) and not stored_keys.any_valid(connection)
