"""`Actor`: who makes a change. The names of the fields that a change changes, for the audit trail."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from server.store.administration import audit_trail
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change: `key:ID` over HTTP, `user:NAME` at a terminal."""

    name: str
    request_id: str | None = None

    def record(
        self,
        connection: Connection,
        action: str,
        tenant: str | None,
        target: str,
        details: Mapping[str, object],
    ) -> None:
        """Adds an entry to the audit trail, in the transaction of the change."""
        audit_trail.record(connection, self.name, action, tenant, target, details, self.request_id)


def described(value: Any, default: Any) -> dict[str, object]:
    """The fields of a dataclass that differ from those of `default`, as JSON; nested ones by their names."""
    changed: dict[str, object] = {}
    for field in fields(value):
        own, other = getattr(value, field.name), getattr(default, field.name)
        if own == other:
            continue
        if hasattr(own, "__dataclass_fields__"):
            changed |= described(own, other)
        else:
            changed[field.name] = as_json(own)
    return changed


def as_json(value: object) -> object:
    """A field's value as JSON: sets as sorted lists, times in ISO 8601, decimals with all digits as text."""
    match value:
        case frozenset():
            return sorted(value)
        case datetime():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return value
