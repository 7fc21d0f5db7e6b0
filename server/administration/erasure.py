"""Erases a tenant or one of its users, with one audit entry that names neither."""

from server.administration import checks
from server.administration.actor import Actor
from server.errors import Conflict, InvalidRequest
from server.maintenance.erasure import Erasure, Outcome
from server.protocol.administration.requests import MAX_USER
from server.store.database import Database
from server.store.erasure.subject import Subject


def check_subject(subject: Subject) -> None:
    """Raises InvalidRequest."""
    checks.check_tenant(subject.tenant)
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
    """What would be erased. Raises InvalidRequest or DatabaseError."""
    check_subject(subject)
    return Erasure(database, subject, lease_seconds).count()


def erase(
    database: Database, actor: Actor, subject: Subject, lease_seconds: float, seconds: float
) -> Outcome:
    """Erases for about so many seconds; the outcome says whether anything is left for another call.

    Raises InvalidRequest or DatabaseError.
    """
    check_subject(subject)
    outcome = Erasure(database, subject, lease_seconds).run(seconds)
    if outcome.complete or outcome.rows:
        tenant = None if subject.user is None else subject.tenant
        action = "tenant.erase" if subject.user is None else "user.erase"
        details = {"complete": outcome.complete, "rows": dict(outcome.rows), "keep_usage": subject.keep_usage}
        with database.begin() as connection:
            actor.record(connection, action, tenant, "", details)
    return outcome
