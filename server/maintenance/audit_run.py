"""A run of the audit: what violates an invariant in stored responses, pictures and keys."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from server.maintenance import audit_responses as invariants
from server.maintenance.audit_responses import (
    AuditLimits,
    Violation,
    check_conversation,
    check_image,
    check_stray,
)
from server.store import audit_snapshot as store
from server.store.audit_snapshot import Scope
from server.store.content import responses
from server.store.database import Connection, Database
from server.store.timeout_connection import REQUEST_TIMEOUTS

STATEMENT_SECONDS: Final = 3600
"""The time of a search through a whole table for rows of no response, too long for a request."""


@dataclass(slots=True)
class Tally:
    responses: int = 0
    unfinished: int = 0
    served: bool = False
    """Whether a replica is alive."""
    violations: Counter[str] = field(default_factory=Counter)


def audit_connection(database: Database) -> Connection:
    """A connection on which a statement may read a table of any size; the caller closes it."""
    limits = {**REQUEST_TIMEOUTS, "statement_timeout": f"{STATEMENT_SECONDS}s"}
    return database.dedicated_connection("audit", limits=limits, patience=STATEMENT_SECONDS)


def violations(
    connection: Connection, scope: Scope, limits: AuditLimits, tally: Tally
) -> Iterator[Violation]:
    """The violations, as they are found; counts them in `tally`."""
    of_responses = _response_violations(connection, scope, limits, tally)
    for violation in chain(of_responses, _other_violations(connection, scope, limits)):
        tally.violations[violation.invariant] += 1
        yield violation


def _response_violations(
    connection: Connection, scope: Scope, limits: AuditLimits, tally: Tally
) -> Iterator[Violation]:
    for tenant in _tenants(connection, scope, "responses"):
        for response, moment in store.responses(connection, tenant, scope, limits.grace_seconds):
            tally.responses += 1
            tally.unfinished += invariants.is_unfinished(response)
            tally.served = moment.served_since is not None
            yield from invariants.check(response, moment, limits)


def _tenants(connection: Connection, scope: Scope, *tables: str) -> list[str]:
    """The tenants in the scope that have rows of these tables."""
    if scope.tenant is not None:
        return [scope.tenant]
    with store.snapshot(connection):
        return sorted({tenant for table in tables for tenant in responses.tenants(connection, table)})


def _other_violations(connection: Connection, scope: Scope, limits: AuditLimits) -> Iterator[Violation]:
    """Violations by pictures and conversations, unless responses are bounded, and in whole tables."""
    tenants = _tenants(connection, scope, "images", "conversations") if scope.limit is None else ()
    for tenant in tenants:
        for conversation in store.conversations(connection, tenant):
            for name, sentence in check_conversation(conversation):
                yield Violation(name, tenant, None, sentence)
        for image in store.unsound_images(connection, tenant, scope):
            name, sentence = check_image(image)
            yield Violation(name, tenant, None, sentence)
        yield from map(check_stray, store.stray_uses(connection, tenant))
    yield from map(check_stray, store.strays(connection, scope.tenant, limits.key_seconds))
